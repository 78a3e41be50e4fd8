"""What becomes of an optimizer's update: tangent and angle, against the formulas and on every path."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import pbwn
from counting import LAYOUTS, Counting, FakeCopies, fake_weights
from drawing import constrained, laid_out
from pbwn import Axes, functional
from pbwn.paths.batch import Batch
from processes import run_on_processes
from twins import neurons_of

RULES = ["tangent", "angle"]
KINDS = [
    (Axes((0,)), (6, 5), "contiguous"),
    (Axes((1,)), (6, 5), "contiguous"),
    (Axes((0,)), (4, 3, 3, 3), "channels last"),
    (Axes((1,), groups=2), (4, 3, 3, 3), "contiguous"),
    (Axes((0, 1)), (3, 4, 5), "contiguous"),
]


def by_hand(before, after, neurons, rule, rate, radius=1.0):
    """The rule for one neuron after the other, in float64."""
    result = after.double().clone()
    for neuron in neurons:
        w = torch.stack([before[index].double() for index in neuron])
        u = torch.stack([after[index].double() for index in neuron]) - w
        if not u.isfinite().all() or not u.any() or (rule == "angle" and rate == 0):
            new = w
        elif rule == "tangent":
            new = w + u - (w @ u) / (w @ w) * w
            new = radius * new / new.norm()
        else:
            new = w + rate * radius * u / u.norm()
            new = radius * new / new.norm()
        for index, value in zip(neuron, new, strict=True):
            result[index] = value
    return result


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("axes", "shape", "layout"), KINDS)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1e-4, 0.1, 3.0]),
    radius=st.sampled_from([1.0, 2.5]),
    rate=st.sampled_from([0.0, 0.01, 0.7]),
)
def test_every_path_takes_the_step_that_the_formula_takes(
    rule, axes, shape, layout, dtype, backend, seed, size, radius, rate
):
    generator = torch.Generator().manual_seed(seed)
    start = functional.project_(
        torch.randn(shape, generator=generator, dtype=torch.float64), axes, pbwn.UnitNorm(radius)
    )
    entry = constrained(laid_out(start.to(dtype), layout), axes)
    before = entry.tensor.detach().clone()
    update = size * torch.randn(shape, generator=generator, dtype=torch.float64)
    axes.rows(update)[0] = 0
    with torch.no_grad():
        entry.tensor.add_(update.to(dtype))
    after = entry.tensor.detach().clone()
    expected = by_hand(before, after, neurons_of(shape, axes.neurons, axes.groups), rule, rate, radius)
    reference = after.clone()
    if rule == "tangent":
        functional.tangent_step_(reference, before, axes, radius)
    else:
        functional.angle_step_(reference, before, axes, radius, rate)
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5}[dtype] * radius
    torch.testing.assert_close(reference.double(), expected, rtol=0, atol=tolerance)
    batch = Batch([entry], pbwn.UnitNorm(radius), backend="auto" if backend == "numba" else backend)
    batch.step_([before], [rate] if rule == "angle" else None)
    torch.testing.assert_close(entry.tensor.detach().double(), expected, rtol=0, atol=tolerance)
    if rule == "angle":
        assert torch.equal(axes.rows(entry.tensor)[0], axes.rows(before)[0])  # bit for bit


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_whose_update_is_not_finite_stays_as_it_was_and_a_free_one_keeps_its_update(bad, rule, backend):
    torch.manual_seed(0)
    entry = constrained(functional.project_(torch.randn(4, 6), Axes((0,))), Axes((0,)))
    before = entry.tensor.detach().clone()
    with torch.no_grad():
        entry.tensor.add_(0.1 * torch.randn(4, 6))
        entry.tensor[1, 2] = bad
    after = entry.tensor.detach().clone()
    radii = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    Batch([entry], pbwn.UnitNorm("initial"), {"weight": radii}, backend=backend).step_(
        [before], [0.1] if rule == "angle" else None
    )
    assert torch.equal(entry.tensor[1], before[1])
    torch.testing.assert_close(entry.tensor[3], after[3])
    assert not torch.equal(entry.tensor[0], before[0])
    torch.testing.assert_close(entry.tensor[[0, 2]].norm(dim=1), torch.ones(2))


@pytest.mark.parametrize("backend", ["torch", "numba", pytest.param("compile", marks=pytest.mark.long)])
@pytest.mark.parametrize("rule", RULES)
def test_a_row_that_became_zero_takes_the_direction_of_its_update_as_it_does_in_a_plain_step(rule, backend):
    torch.manual_seed(0)
    entry = constrained(functional.project_(torch.randn(4, 6), Axes((0,))), Axes((0,)))
    with torch.no_grad():
        entry.tensor[2:] = 0
    before = entry.tensor.detach().clone()
    with torch.no_grad():
        entry.tensor[:3].add_(0.1 * torch.randn(3, 6))
    reference, rates = entry.tensor.detach().clone(), [0.1] if rule == "angle" else None
    expected = functional.project_(reference[2].clone(), Axes(()))
    if rule == "angle":
        functional.angle_step_(reference, before, Axes((0,)), 1.0, 0.1)
    else:
        functional.tangent_step_(reference, before, Axes((0,)), 1.0)
    torch.testing.assert_close(reference[2], expected)
    Batch([entry], pbwn.UnitNorm(), backend=backend).step_([before], rates)
    torch.testing.assert_close(entry.tensor.detach(), reference)
    assert not entry.tensor[3].any()  # without an update it stays zero


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("size", [1e22, 1e30])
def test_a_tangent_update_whose_squares_overflow_ends_on_the_sphere(size, backend):
    torch.manual_seed(0)
    entry = constrained(functional.project_(torch.randn(4, 6), Axes((0,))), Axes((0,)))
    before = entry.tensor.detach().clone()
    with torch.no_grad():
        entry.tensor[1:].add_(size * torch.randn(3, 6))
    Batch([entry], pbwn.UnitNorm(), backend=backend).step_([before], None)
    torch.testing.assert_close(entry.tensor.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(entry.tensor[0], before[0])


@pytest.mark.parametrize("backend", ["torch", "numba", pytest.param("compile", marks=pytest.mark.long)])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_a_row_without_an_update_is_projected_if_it_was_off_the_sphere_and_stays_if_not(rate, dtype, rule, backend):
    if backend == "compile":
        torch.compiler.reset()  # its limit of compilations is for a process
    torch.manual_seed(0)
    entry = constrained(functional.project_(torch.randn(5, 6, dtype=dtype), Axes((0,)), radii=2.0), Axes((0,)))
    with torch.no_grad():
        entry.tensor[1:4] *= 1.5
    before = entry.tensor.detach().clone()
    with torch.no_grad():
        entry.tensor[2, 3] = torch.nan
        entry.tensor[3:] += 0.1 * torch.randn(2, 6, dtype=dtype)
    updated = entry.tensor.detach().clone()
    for tensor, step_ in (
        (entry.tensor, Batch([entry], pbwn.UnitNorm(2.0), backend=backend).step_),
        (updated, lambda old, rates: by_function(updated, old[0], rates)),
    ):
        step_([before], [rate] if rule == "angle" else None)
        assert torch.equal(tensor[0], before[0]) or (rule == "tangent" and backend == "torch")  # that up to rounding
        torch.testing.assert_close(tensor[:3].detach(), functional.project_(before[:3].clone(), Axes((0,)), radii=2.0))
        torch.testing.assert_close(tensor.detach().norm(dim=1), torch.full((5,), 2.0, dtype=dtype))
    torch.testing.assert_close(entry.tensor.detach(), updated)


def by_function(weight, before, rates):
    if rates is None:
        functional.tangent_step_(weight, before, Axes((0,)), 2.0)
    else:
        functional.angle_step_(weight, before, Axes((0,)), 2.0, rates[0])


def make(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(16, 6, generator=generator).to(model[0].weight.dtype)
        optimizer.zero_grad()
        (model(batch) - batch[:, :2]).square().mean().backward()
        optimizer.step()


class Unscaled(torch.optim.Optimizer):
    """Has no learning rate."""

    def step(self):
        """Moves nothing."""


def test_angle_needs_a_learning_rate():
    model = make()
    with pytest.raises(ValueError, match=r"the parameter group of '0\.weight' has no \"lr\": add it"):
        pbwn.attach(model, Unscaled(model.parameters(), {}), step="angle")
    projection = pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), step="angle")
    with pytest.raises(ValueError, match=r"the parameter group of '0\.weight' has no \"lr\": add it"):
        projection.rebind(Unscaled(model.parameters(), {}))
    with pytest.warns(UserWarning, match=r"weight_decay=0\.01 is part of it: set weight_decay=0"):
        projection.rebind(torch.optim.AdamW(model.parameters(), lr=0.1))


def test_angle_turns_each_neuron_by_about_the_rate_of_its_own_group():
    model = make()
    optimizer = torch.optim.Adam(
        [
            {"params": model[0].parameters(), "lr": 0.01},
            {"params": model[2].parameters(), "lr": torch.tensor(0.05)},
            {"params": model[4].parameters()},
        ],
        lr=0.1,
    )
    pbwn.attach(model, optimizer, step="angle", gradient="riemannian")
    before = [model[index].weight.detach().clone() for index in (0, 2)]
    train(model, optimizer, 1)
    for index, old, rate in ((0, before[0], 0.01), (2, before[1], 0.05)):
        cosine = (old * model[index].weight).sum(1).clamp(-1, 1).double()
        assert (cosine.arccos() / rate).max() < 1.05
        assert (cosine.arccos() / rate).max() > 0.8


def test_angle_does_not_turn_a_weight_that_is_no_longer_the_optimizers():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, step="angle")
    projection.monitor(1)
    new = model[0].weight = nn.Parameter(torch.randn_like(model[0].weight))
    expected = functional.project_(new.detach().clone(), Axes((0,)))
    train(model, optimizer, 1)
    torch.testing.assert_close(new.detach(), expected)
    before = new.detach().clone()
    train(model, optimizer, 1)
    assert torch.equal(new, before)
    assert "0.weight: replaced after attach" in str(projection.check())


@pytest.mark.parametrize("step", ["plain", *RULES])
@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("off", ["from the start", "cast", "loaded"])
def test_weights_that_no_update_moves_come_to_the_sphere_with_every_rule(off, backend, step):
    model = make()
    with torch.no_grad():
        model[0].weight.mul_(3)
        model[0].bias[3] = torch.inf  # tanh passes no gradient on
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, backend=backend, step=step, initial=off != "from the start")
    if off == "cast":
        model.double()
    if off == "loaded":
        with torch.no_grad():
            model[0].weight.mul_(2)
    train(model, optimizer, 1)
    assert not model[0].weight.grad[3].any()
    assert projection.check().ok


@pytest.mark.parametrize("step", RULES)
def test_a_row_that_a_nan_has_stalled_for_ever_is_named(step):
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    projection = pbwn.attach(model, optimizer, step=step)
    train(model, optimizer, 1)
    assert projection.check().ok
    model[2].weight.grad[2, 1] = torch.nan
    optimizer.step()
    assert projection.check().stalled == ("2.weight",)
    assert "2.weight: NaN in the optimizer's state" in str(projection.check())


def sharded_weights_that_no_update_moves_come_to_the_sphere():
    from torch.distributed.fsdp import fully_shard

    for per in ("neuron", "matrix"):
        for step in RULES:
            model = make()
            fully_shard(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            projection = pbwn.attach(model, optimizer, per=per, step=step, initial=False)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            assert projection.check().ok


def test_sharded_weights_that_no_update_moves_come_to_the_sphere():
    run_on_processes(sharded_weights_that_no_update_moves_come_to_the_sphere)


def test_with_tangent_gradients_and_plain_sgd_the_tangent_step_is_the_plain_one():
    plain, tangent = make(dtype=torch.float64), make(dtype=torch.float64)
    for model, step in ((plain, "plain"), (tangent, "tangent")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pbwn.attach(model, optimizer, gradient="riemannian", step=step)
        train(model, optimizer, 20)
    for left, right in zip(plain.parameters(), tangent.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_sees_the_update_of_the_whole_step_whatever_the_optimizer_did(rule):
    """Closures, accumulation and nested steps: the same as by hand around one step."""
    model, twin = make(dtype=torch.float64), make(dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
    plain = torch.optim.AdamW(twin.parameters(), lr=0.02, weight_decay=0.0)
    pbwn.attach(model, optimizer, step=rule)
    pbwn.project_(twin)
    for step in range(10):
        train(model, optimizer, 1, step)
        before = [twin[index].weight.detach().clone() for index in (0, 2)]
        train(twin, plain, 1, step)
        for index, old in zip((0, 2), before, strict=True):
            weight = twin[index].weight.data
            if rule == "tangent":
                functional.tangent_step_(weight, old, Axes((0,)), 1.0)
            else:
                functional.angle_step_(weight, old, Axes((0,)), 1.0, 0.02)
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rule", RULES)
def test_a_run_with_a_step_rule_resumes_bit_for_bit(rule):
    def begin():
        model = make()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    model, optimizer = begin()
    pbwn.attach(model, optimizer, step=rule)
    train(model, optimizer, 8)
    first, its_optimizer = begin()
    projection = pbwn.attach(first, its_optimizer, step=rule)
    train(first, its_optimizer, 5)
    saved = copy.deepcopy((first.state_dict(), its_optimizer.state_dict(), projection.state_dict()))
    again, new_optimizer = begin()
    again.load_state_dict(saved[0])
    new_optimizer.load_state_dict(saved[1])
    pbwn.attach(again, new_optimizer, step=rule, state=saved[2])
    train(again, new_optimizer, 3, first=5)
    for left, right in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": "angle", "every": 5}, r'step="angle" changes every update.*drop every=5'),
        ({"step": "tangent", "every": None}, "drop every=None"),
        ({"step": "angle", "constraint": pbwn.MaxNorm(1.0)}, 'step="angle" needs a sphere'),
        ({"step": "straight"}, 'step must be "plain", "tangent" or "angle"; got'),
    ],
)
def test_combinations_that_mean_nothing_are_refused(options, words):
    model = make()
    with pytest.raises(ValueError, match=words):
        pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_half_precision_without_masters_is_refused_with_what_to_do():
    model = make(dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=r"'0\.weight' is torch\.bfloat16: keep the model in float32 \(with autocast\)"):
        pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), step="tangent")


def test_decay_that_becomes_part_of_the_direction_is_warned_of():
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.05)
    with pytest.warns(UserWarning, match=r"direction of the whole update, and weight_decay=0\.05"):
        projection = pbwn.attach(model, optimizer, step="angle")
    assert "angle step (keeps a copy of the constrained weights)" in " ".join(str(projection).split())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_rule_asks_little_of_an_accelerator(layout, rule):
    with FakeTensorMode(), FakeCopies():
        weights = fake_weights([LAYOUTS[layout]] * 5, torch.float32)
        batch = Batch(weights, pbwn.UnitNorm())
        rates = [0.1] * 5 if rule == "angle" else None
        batch.step_(batch.snapshot(), rates)
        with Counting() as counting:
            batch.step_(batch.snapshot(), rates)
    elements = sum(weight.tensor.numel() for weight in weights)
    assert len(counting.counts.operations) <= 9 * len(weights) + 20
    # 8 of them clear rows that are not finite, which no other operation can do on its way.
    assert counting.counts.bytes_moved <= {"angle": 56.5, "tangent": 60.5}[rule] * elements


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("axes", [Axes((0,)), Axes(())], ids=["neurons", "matrix"])
def test_on_the_cpu_a_step_without_broken_rows_moves_fewer_bytes(axes, rule):
    weights = [constrained(torch.randn(96, 512), axes, str(index)) for index in range(5)]
    batch = Batch(weights, pbwn.UnitNorm(), backend="torch")
    rates = [0.1] * 5 if rule == "angle" else None
    batch.step_(batch.snapshot(), rates)
    with Counting() as counting:
        batch.step_(batch.snapshot(), rates)
    assert counting.counts.bytes_moved <= 52.5 * 5 * 96 * 512
