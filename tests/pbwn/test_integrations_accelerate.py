"""attach() on optimizers that Accelerate has wrapped, before and after `prepare`."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn

import pbwn

STEPS = 6


@pytest.fixture
def accelerator():
    # Accelerate keeps its settings in globals: each test begins and ends without them.
    reset()
    yield Accelerator(cpu=True, gradient_accumulation_steps=2)
    reset()


def reset():
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def build(optimizer=torch.optim.AdamW, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    return model, optimizer(model.parameters(), lr=0.05, **options)


def batch(index):
    generator = torch.Generator().manual_seed(index)
    return torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def train(accelerator, model, optimizer, indices):
    for index in indices:
        with accelerator.accumulate(model):
            x, y = batch(index)
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def plain_loop(**options):
    model, optimizer = build()
    projection = pbwn.attach(model, optimizer, **options)
    for index in range(2 * STEPS):
        x, y = batch(index)
        (nn.functional.cross_entropy(model(x), y) / 2).backward()
        if index % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    return model, projection


def assert_same_weights(model, expected):
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.parametrize("gradient", ["ordinary", "riemannian"])
@pytest.mark.parametrize("when", ["before prepare", "after prepare"])
def test_accumulated_steps_give_what_a_plain_loop_gives(accelerator, when, gradient):
    model, optimizer = build()
    if when == "before prepare":
        projection = pbwn.attach(model, optimizer, every=4, gradient=gradient)
        model, optimizer = accelerator.prepare(model, optimizer)
    else:
        model, optimizer = accelerator.prepare(model, optimizer)
        projection = pbwn.attach(model, optimizer, every=4, gradient=gradient)
    train(accelerator, model, optimizer, range(2 * STEPS))
    expected, of_plain_loop = plain_loop(every=4, gradient=gradient)
    assert_same_weights(model, expected)
    assert projection.state_dict() == of_plain_loop.state_dict()
    assert projection.check().ok


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_skipped_amp_step_does_not_count(accelerator, fused):
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)  # Accelerate makes one on accelerators alone
    model, optimizer = accelerator.prepare(*build(fused=fused))
    projection = pbwn.attach(model, optimizer, every=2)
    train(accelerator, model, optimizer, range(2))
    before = model[0].weight.clone()
    x, y = batch(2)
    with accelerator.accumulate(model):
        accelerator.backward(model(x).sum() * torch.inf)
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    assert accelerator.optimizer_step_was_skipped or fused  # a fused optimizer is called, and leaves the weights alone
    assert torch.equal(model[0].weight, before)
    assert projection.state_dict()["steps"] == [1]
    train(accelerator, model, optimizer, range(4, 6))
    assert projection.state_dict()["steps"] == [2]
    assert projection.check().ok
    assert not projection.check().between_projections


def test_the_state_is_saved_and_restored_with_the_rest(accelerator, tmp_path):
    model, optimizer = accelerator.prepare(*build())
    projection = pbwn.attach(model, optimizer, every=4, constraint=pbwn.UnitNorm(radius="initial"))
    accelerator.register_for_checkpointing(projection)
    train(accelerator, model, optimizer, range(6))
    accelerator.save_state(tmp_path)
    assert projection.check().between_projections
    train(accelerator, model, optimizer, range(6, 2 * STEPS))
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    reset()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(*build())
    projection = pbwn.attach(model, optimizer, every=4, constraint=pbwn.UnitNorm(radius="initial"))
    accelerator.register_for_checkpointing(projection)
    accelerator.load_state(tmp_path)
    train(accelerator, model, optimizer, range(6, 2 * STEPS))
    for name, tensor in whole.items():
        assert torch.equal(model.state_dict()[name], tensor), name


class Wrapper:
    """An optimizer's wrapper that passes on everything that it is asked for."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def __getattr__(self, name):
        return getattr(self.optimizer, name)


@pytest.mark.parametrize("inner", ["bare", "prepared"])
def test_a_wrapper_of_a_wrapper_is_looked_through(accelerator, inner):
    model, optimizer = build()
    wrapped = Wrapper(Wrapper(accelerator.prepare(optimizer) if inner == "prepared" else optimizer))
    projection = pbwn.attach(model, wrapped)
    assert len(optimizer._optimizer_step_post_hooks) == 1
    del wrapped
    assert projection.check().ok  # the hooks are on the optimizer itself, and stay


class Circle:
    """No optimizer at all, and its wrapper is itself."""

    param_groups = ()

    @property
    def optimizer(self):
        return self


def test_what_has_no_optimizer_inside_is_refused():
    model, _ = build()
    with pytest.raises(TypeError, match=r"Circle has no step hooks: pass the torch.optim.Optimizer"):
        pbwn.attach(model, Circle())
