"""Every combination of per, radius and step with every optimizer of torch.optim trains and resumes, sharded or not."""

import io
import itertools

import pytest
import torch
from torch import nn

import pbwn
from optimizers import OPTIMIZERS, take_step
from processes import run_on_processes


def growing(step):
    return 1 + step / 50


PERS = ["neuron", "matrix"]
RADII = {
    "1": 1.0,
    "2.5": 2.5,
    "initial": "initial",
    "sqrt-fan-in": "sqrt-fan-in",
    "mapping": {"first": "initial", "second": 2.0},
    "function": growing,
}
STEPS = ["plain", "tangent", "angle"]
RATES = {"Adadelta": 1.0, "Adafactor": 0.05, "Rprop": 0.01, "LBFGS": 0.1, "ASGD": 0.1, "SGD": 0.1}
# These take steps of their own size: what is asked of them is to stay finite and on the sphere.
UNTUNED = {"Adadelta", "LBFGS", "Rprop"}


class Network(nn.Module):
    """Two constrained layers and an output layer; the first is an embedding where gradients are to be sparse."""

    def __init__(self, sparse=False):
        super().__init__()
        self.first = nn.Embedding(8, 6, sparse=True) if sparse else nn.Linear(8, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, tokens):
        inputs = tokens if isinstance(self.first, nn.Embedding) else nn.functional.one_hot(tokens, 8).float()
        return self.head(torch.tanh(self.second(torch.tanh(self.first(inputs)))))


class Run:
    """A model that learns a table of eight tokens, its optimizer and its projection."""

    def __init__(self, kind, per, radius, step, state=None, wrap=None):
        torch.manual_seed(1)
        is_sparse = kind is torch.optim.SparseAdam
        self.model = Network(is_sparse)
        if wrap is not None:
            wrap(self.model)
        if is_sparse:
            trained = [self.model.first.weight]
            radius = "initial" if isinstance(radius, dict) else radius
        else:
            trained = list(self.model.parameters())
        options = {"lr": RATES.get(kind.__name__, 0.02)}
        if kind.__name__ in ("AdamW", "Muon", "Adafactor"):
            options["weight_decay"] = 0.0  # which the rule "angle" warns of
        self.optimizer = kind(trained, **options)
        self.attach = lambda state=None: pbwn.attach(
            self.model,
            self.optimizer,
            per=per,
            step=step,
            constraint=pbwn.UnitNorm(radius),
            also=["first"] if is_sparse else [],
            output_layer=["head"],
            state=state,
        )
        if state is None:
            self.projection = self.attach()
        else:
            self.model.load_state_dict(state[0])
            self.optimizer.load_state_dict(state[1])
            self.projection = self.attach(state[2])

    def train(self, steps, tokens=None):
        tokens = torch.arange(8) if tokens is None else tokens

        def closure():
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(tokens), tokens % 3)
            loss.backward()
            return loss

        return [take_step(self.optimizer, closure).item() for _ in range(steps)]

    def saved(self):
        file = io.BytesIO()
        torch.save([part.state_dict() for part in (self.model, self.optimizer, self.projection)], file)
        file.seek(0)
        return torch.load(file, weights_only=True)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("per", PERS)
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_every_combination_trains_on_its_spheres_and_resumes_bit_for_bit(kind, per, radius, step):
    settings = kind, per, RADII[radius], step
    whole = Run(*settings)
    losses = whole.train(6)
    state = whole.saved()
    losses += whole.train(6)
    assert whole.projection.check().ok, whole.projection.check()
    assert all(parameter.isfinite().all() for parameter in whole.model.parameters())
    if kind.__name__ not in UNTUNED:
        assert losses[-1] < losses[0]
    again = Run(*settings, state=state)
    again.train(6)
    for left, right in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(left, right)


def two_processes_equal_one():
    from torch.distributed.fsdp import fully_shard

    rank = torch.distributed.get_rank()
    own = torch.arange(8)[4 * rank : 4 * rank + 4]
    for per, radius, step in itertools.product(PERS, RADII.values(), STEPS):
        for kind in (torch.optim.SGD, torch.optim.Adam):
            alone, sharded = Run(kind, per, radius, step), Run(kind, per, radius, step, wrap=fully_shard)
            alone.train(4)
            sharded.train(4, own)
            assert sharded.projection.check().ok
            for left, right in zip(alone.model.parameters(), sharded.model.parameters(), strict=True):
                torch.testing.assert_close(right.full_tensor(), left, rtol=0, atol=2e-4, msg=f"{per} {radius} {step}")


def test_two_processes_equal_one():
    run_on_processes(two_processes_equal_one)
