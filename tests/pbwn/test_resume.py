"""Every optimizer of torch.optim trains on the sphere, and a resumed run equals an uninterrupted one bit for bit."""

import copy
import io
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import pbwn
from optimizers import OPTIMIZERS, take_step

EVERY = 3


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6, sparse=True)
        self.hidden = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
        self.head = nn.Linear(8, 3, bias=False)

    def forward(self, tokens):
        return self.head(torch.relu(self.hidden(self.embedding(tokens))))


class Run:
    """A model, an optimizer and a projection, with data that depend on the step alone."""

    def __init__(self, optimizer, **options):
        torch.manual_seed(1)
        self.model = Network()
        sparse = optimizer is torch.optim.SparseAdam
        trained = self.model.embedding if sparse else nn.ModuleList([self.model.hidden, self.model.head])
        self.optimizer = optimizer(trained.parameters(), lr=0.02)
        self.options = {"every": EVERY, "also": ["embedding"] if sparse else [], **options}

    def attach(self, state=None):
        self.projection = pbwn.attach(self.model, self.optimizer, state=state, **self.options)

    def train(self, steps):
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            tokens = torch.randint(0, 7, (16,), generator=generator)
            labels = torch.randint(0, 3, (16,), generator=generator)

            def closure(tokens=tokens, labels=labels):
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(tokens), labels)
                loss.backward()
                return loss

            take_step(self.optimizer, closure)

    def save(self):
        file = io.BytesIO()
        torch.save([part.state_dict() for part in (self.model, self.optimizer, self.projection)], file)
        return file

    def load(self, file, attach_first):
        file.seek(0)
        model, optimizer, projection = torch.load(file, weights_only=True)
        if attach_first:
            self.attach()
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        if attach_first:
            self.projection.load_state_dict(projection)
        else:
            self.attach(state=projection)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.__name__)
def test_every_optimizer_trains_on_the_sphere(optimizer):
    run = Run(optimizer, every=1)
    run.attach()
    start = [weight.tensor.detach().clone() for weight in run.projection.selection.constrained]
    run.train(range(4))
    assert run.projection.check().ok
    assert not run.projection.check().between_projections
    for weight, before in zip(run.projection.selection.constrained, start, strict=True):
        assert not torch.equal(weight.tensor, before)


@pytest.mark.parametrize("attach_first", [False, True], ids=["load, then attach", "attach, then load"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.__name__)
def test_every_optimizer_resumes_bit_exactly_in_the_middle_of_an_interval(optimizer, attach_first):
    whole = Run(optimizer)
    whole.attach()
    whole.train(range(8))

    first = Run(optimizer)
    first.attach()
    first.train(range(4))
    assert first.projection.check().between_projections
    second = Run(optimizer)
    second.load(first.save(), attach_first)
    assert second.projection.check().between_projections
    second.train(range(4, 8))

    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor), name
    assert second.projection.state_dict() == whole.projection.state_dict()


@pytest.mark.parametrize("gradient", ["ordinary", "riemannian"])
@pytest.mark.parametrize("constraint", [pbwn.UnitNorm(), pbwn.UnitNorm(radius="initial")], ids=str)
@pytest.mark.parametrize("cut", [1, 3])
def test_every_kind_of_projection_resumes_bit_exactly(constraint, gradient, cut):
    options = {"constraint": constraint, "gradient": gradient}
    whole = Run(torch.optim.AdamW, **options)
    whole.attach()
    whole.train(range(7))
    first = Run(torch.optim.AdamW, **options)
    first.attach()
    first.train(range(cut))
    second = Run(torch.optim.AdamW, **options)
    second.load(first.save(), attach_first=False)
    second.train(range(cut, 7))
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor), name


def test_attaching_a_saved_model_anew_leaves_it_bit_for_bit():
    run = Run(torch.optim.SGD, every=1)
    run.attach()
    run.train(range(3))
    again = Run(torch.optim.SGD, every=1)
    again.model.load_state_dict(run.model.state_dict())
    again.attach()
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 99}, "version 99; this pbwn reads versions 1 and 2: update pbwn"),
        ({"steps": [1, 2], "projected": [True, True]}, "of 2 optimizers; this projection has 1"),
        ({"steps": ["one"]}, "steps must be non-negative integers"),
        (
            {"constraint": {"kind": "max-norm", "limit": 3.0}},
            r"max-norm, limit 3.0, this projection of unit-norm, radius 1",
        ),
        ({"weights": {"elsewhere.weight": {}}}, r"of other weights .*elsewhere\.weight"),
        (
            {"weights": {name: {"neurons": [1], "groups": 1} for name in ("hidden.0.weight", "hidden.2.weight")}},
            r"axes neurons \[1\], groups 1 for hidden\.0\.weight, this projection \(0,\)",
        ),
        ({"radii": {"hidden.0.weight": torch.ones(3)}}, r"radii of shape \(3,\) for hidden\.0\.weight"),
    ],
)
def test_the_state_of_another_run_is_refused(change, words):
    run = Run(torch.optim.SGD)
    run.attach()
    with pytest.raises(ValueError, match=words):
        run.projection.load_state_dict({**run.projection.state_dict(), **change})


@pytest.mark.parametrize("other", [{"direction": "outgoing"}, {"per": "matrix"}, {"axes": {"0.weight": (1,)}}], ids=str)
def test_a_state_of_other_axes_is_refused_even_where_its_radii_fit(other):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm("initial"))
    state = first.state_dict()
    first.detach()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="the same axes, direction and per"):
        pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm("initial"), state=state, **other)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("axes", [{}, {"axes": {"0.weight": "(0,)"}}], ids=["before axes were saved", "axes as text"])
@pytest.mark.parametrize(
    ("constraint", "text"),
    [(pbwn.UnitNorm("initial"), "UnitNorm(radius='initial')"), (pbwn.MaxNorm(3.0), "MaxNorm(limit=3.0)")],
)
def test_a_state_of_the_first_version_is_still_read(axes, constraint, text):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = {
        "version": 1,
        "constraint": text,
        "weights": ["0.weight"],
        "steps": [7],
        "projected": [False],
        "radii": {},
        **axes,
    }
    if constraint == pbwn.UnitNorm("initial"):
        old["radii"]["0.weight"] = torch.full((4,), 2.0, dtype=torch.float64)
    projection = pbwn.attach(model, optimizer, constraint=constraint, every=8, state=old)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    assert projection.state_dict()["steps"] == [8]
    assert projection.check().ok
    if constraint == pbwn.UnitNorm("initial"):
        torch.testing.assert_close(model[0].weight.norm(dim=1), torch.full((4,), 2.0))


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"every": 5}, "every=2, now 5"), ({"gradient": "riemannian"}, "gradient='ordinary', now 'riemannian'")],
)
def test_resuming_with_other_settings_says_which_differ_and_where(changed, words):
    run = Run(torch.optim.SGD, every=2)
    run.attach()
    again = Run(torch.optim.SGD, **{"every": 2, **changed})
    message = f"other settings than those that the state was saved with: {words}"
    with pytest.warns(UserWarning, match=message) as by_attach:
        again.load(run.save(), attach_first=False)
    with pytest.warns(UserWarning, match=message) as by_load:
        again.projection.load_state_dict(run.projection.state_dict())
    assert {warning.filename for warning in (*by_attach, *by_load)} == {__file__}


@pytest.mark.parametrize(
    ("constraint", "same"),
    [
        (pbwn.MaxNorm(3), pbwn.MaxNorm(3.0)),
        (pbwn.UnitNorm(np.float64(2)), pbwn.UnitNorm(2)),
        (pbwn.UnitNorm(np.float32(0.5)), pbwn.UnitNorm(Fraction(1, 2))),
    ],
    ids=str,
)
def test_a_length_is_the_same_number_however_it_is_written(constraint, same):
    assert constraint == same
    run = Run(torch.optim.SGD, constraint=constraint)
    run.attach()
    assert all(type(value) in (str, float) for value in run.projection.state_dict()["constraint"].values())
    again = Run(torch.optim.SGD, constraint=same)
    again.load(run.save(), attach_first=False)
    again.train(range(EVERY))
    assert again.projection.check().ok


def test_an_interval_of_numpys_can_be_saved_and_loaded_safely():
    run = Run(torch.optim.SGD, every=np.int64(2))
    run.attach()
    run.train(range(3))
    again = Run(torch.optim.SGD, every=2)
    again.load(run.save(), attach_first=False)
    assert again.projection.state_dict() == run.projection.state_dict()


def test_weights_that_are_frozen_only_where_a_run_resumes_are_named_as_the_cause():
    run = Run(torch.optim.SGD)
    run.attach()
    again = Run(torch.optim.SGD)
    again.model.hidden[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"differing: hidden\.0\.weight.*same weights frozen \(requires_grad=False\)"):
        again.load(run.save(), attach_first=False)
    again.model.hidden[0].weight.requires_grad_(True)
    again.load(run.save(), attach_first=False)
    again.model.hidden[0].weight.requires_grad_(False)  # as advised: after attach
    again.train(range(3))
    assert again.projection.check().ok


def test_a_state_without_the_radii_of_a_weight_is_refused():
    run = Run(torch.optim.SGD, constraint=pbwn.UnitNorm("initial"))
    run.attach()
    state = run.projection.state_dict()
    del state["radii"]["hidden.2.weight"]
    with pytest.raises(ValueError, match=r"no radii for hidden\.2\.weight"):
        run.projection.load_state_dict(state)


@pytest.mark.parametrize("every", [1, 3])
def test_steps_that_torch_takes_to_make_an_optimizer_s_state_do_not_count(every):
    """Its functions for checkpoints take one with zero gradients and rates where an optimizer has no state yet."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    run = Run(torch.optim.AdamW, every=every)
    run.attach()
    run.train(range(5))
    weights, projected = copy.deepcopy(run.model.state_dict()), run.projection.state_dict()
    optimizer = copy.deepcopy(get_optimizer_state_dict(run.model, run.optimizer))
    resumed = Run(torch.optim.AdamW, every=every)
    resumed.attach(projected)
    resumed.model.load_state_dict(weights)
    set_optimizer_state_dict(resumed.model, resumed.optimizer, optimizer)
    assert resumed.projection.state_dict()["steps"] == [5]
    for name, weight in resumed.model.state_dict().items():
        assert torch.equal(weight, weights[name]), name


def test_saving_an_optimizer_without_state_is_no_step():
    from torch.distributed.checkpoint.state_dict import get_state_dict

    run = Run(torch.optim.SGD, every=3)
    run.attach()
    run.train(range(2))
    run.optimizer.zero_grad()
    before = copy.deepcopy(run.model.state_dict())
    get_state_dict(run.model, run.optimizer)
    assert run.projection.state_dict()["steps"] == [2]
    for name, weight in run.model.state_dict().items():
        assert torch.equal(weight, before[name]), name
