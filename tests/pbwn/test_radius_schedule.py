"""A radius that changes over the steps: on every path, saved and resumed by its step."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import pbwn
from counting import LAYOUTS, Counting, fake_weights
from pbwn.paths.batch import Batch
from processes import run_on_processes


def growing(step):
    return 1 + step / 10


def shrinking(step):
    return 2.0 ** -min(step, 4)


def make(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        batch = torch.randn(16, 6, generator=torch.Generator().manual_seed(step)).to(model[0].weight.dtype)
        optimizer.zero_grad()
        (model(batch) - batch[:, :2]).square().mean().backward()
        optimizer.step()


def begin(model=None, **options):
    model = model or make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options.setdefault("constraint", pbwn.UnitNorm(growing))
    return model, optimizer, pbwn.attach(model, optimizer, **options)


def norms(weight, per="neuron"):
    return weight.detach().norm(dim=1) if per == "neuron" else weight.detach().norm().reshape(1)


@pytest.mark.parametrize("step", ["plain", "tangent", "angle"])
@pytest.mark.parametrize("per", ["neuron", "matrix"])
@pytest.mark.parametrize("backend", ["torch", "numba", pytest.param("compile", marks=pytest.mark.long)])
def test_after_each_step_the_norms_are_the_radius_of_that_step(backend, per, step):
    model, optimizer, projection = begin(backend=backend, per=per, step=step)
    for taken in range(4):
        for layer in (model[0], model[2]):
            torch.testing.assert_close(
                norms(layer.weight, per), torch.full_like(norms(layer.weight, per), growing(taken))
            )
        assert projection.check().ok
        train(model, optimizer, 1, taken)


@pytest.mark.parametrize("step", ["tangent", "angle"])
@pytest.mark.parametrize("per", ["neuron", "matrix"])
@pytest.mark.parametrize("backend", ["torch", "numba", pytest.param("compile", marks=pytest.mark.long)])
def test_rows_that_no_update_moves_have_the_radius_of_the_step_too(backend, per, step):
    model, optimizer, projection = begin(backend=backend, per=per, step=step)
    start = model[2].weight.detach().clone()
    for _ in range(3):
        model[0].weight.grad = torch.randn(8, 6)
        model[0].weight.grad[3] = 0
        optimizer.step()  # the other layers have no gradient
    assert projection.check().ok
    torch.testing.assert_close(norms(model[0].weight, per), torch.full_like(norms(model[0].weight, per), growing(3)))
    torch.testing.assert_close(model[2].weight.detach(), start * growing(3))


def test_it_equals_the_projection_by_hand():
    model, optimizer, _ = begin(make(torch.float64))
    twin = make(torch.float64)
    plain = torch.optim.Adam(twin.parameters(), lr=0.01)
    for taken in range(6):
        with torch.no_grad():
            for layer in (twin[0], twin[2]):
                layer.weight.mul_(growing(taken) / layer.weight.norm(dim=1, keepdim=True))
        if taken < 5:
            train(twin, plain, 1, taken)
    train(model, optimizer, 5)
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def test_patterns_choose_schedules_and_numbers_side_by_side():
    model, optimizer, projection = begin(constraint=pbwn.UnitNorm({"0": growing, "2": 3.0}))
    train(model, optimizer, 3)
    torch.testing.assert_close(norms(model[0].weight), torch.full((8,), growing(3)))
    torch.testing.assert_close(norms(model[2].weight), torch.full((8,), 3.0))
    assert "UnitNorm(radius={'0': growing, '2': 3.0})" in repr(projection)


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_weights_of_several_schedules_have_their_own_radii(backend):
    model, optimizer, projection = begin(constraint=pbwn.UnitNorm({"0": growing, "2": shrinking}), backend=backend)
    train(model, optimizer, 3)
    torch.testing.assert_close(norms(model[0].weight), torch.full((8,), growing(3)))
    torch.testing.assert_close(norms(model[2].weight), torch.full((8,), shrinking(3)))
    assert projection.check().ok


def test_with_an_interval_the_check_knows_the_radius_of_the_last_projection():
    model, optimizer, projection = begin(every=3)
    train(model, optimizer, 3)
    assert projection.check().largest_deviation < 1e-5
    train(model, optimizer, 2, first=3)
    certificate = projection.check()
    assert certificate.ok
    assert certificate.between_projections
    projection.project()  # by hand: of the fifth step
    torch.testing.assert_close(norms(model[0].weight), torch.full((8,), growing(5)))
    assert projection.check().largest_deviation < 1e-5
    average = copy.deepcopy(model)
    with torch.no_grad():
        average[0].weight.mul_(0.5)
    projection.project(average)
    torch.testing.assert_close(norms(average[0].weight), torch.full((8,), growing(5)))


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_resumes_bit_for_bit_with_the_step_of_its_state(every, tmp_path):
    model, optimizer, _ = begin(every=every)
    train(model, optimizer, 8)
    first, its_optimizer, projection = begin(every=every)
    train(first, its_optimizer, 5)
    torch.save([first.state_dict(), its_optimizer.state_dict(), projection.state_dict()], tmp_path / "run.pt")
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    again = make()
    again.load_state_dict(saved[0])
    new_optimizer = torch.optim.Adam(again.parameters(), lr=0.01)
    new_optimizer.load_state_dict(saved[1])
    resumed = pbwn.attach(again, new_optimizer, every=every, constraint=pbwn.UnitNorm(growing), state=saved[2])
    assert resumed.check().ok
    assert resumed.check().largest_deviation == projection.check().largest_deviation
    train(again, new_optimizer, 3, first=5)
    for left, right in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("order", ["aaa", "aaab", "bba", "abab"])
def test_of_two_optimizers_that_share_weights_the_last_that_projected_says_the_radius(order):
    model = make()
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name in "ab"}
    projection = pbwn.attach(model, optimizers.values(), constraint=pbwn.UnitNorm(growing))
    for index, name in enumerate(order):
        train(model, optimizers[name], 1, first=index)
        radius = growing(order[: index + 1].count(name))
        torch.testing.assert_close(norms(model[0].weight), torch.full((8,), radius))
        assert projection.check().ok
        average = copy.deepcopy(model)
        projection.project(average)
        torch.testing.assert_close(norms(average[0].weight), torch.full((8,), radius))


def test_rows_that_start_at_zero_stay_free_of_a_schedule():
    model = make()
    with torch.no_grad():
        model[0].weight[3] = 0
    _, optimizer, projection = begin(model)
    train(model, optimizer, 2)
    assert projection.check().free == {"0.weight": (3,)}
    assert norms(model[0].weight)[3] < 0.5
    others = torch.tensor([0, 1, 2, 4, 5, 6, 7])
    torch.testing.assert_close(norms(model[0].weight)[others], torch.full((7,), growing(2)))


def test_a_state_of_a_schedule_is_not_that_of_a_number():
    model, optimizer, projection = begin()
    state = projection.state_dict()
    projection.detach()
    with pytest.raises(ValueError, match=r"unit-norm, radius a function of the step, this projection of .*radius 1\.0"):
        pbwn.attach(model, optimizer, state=state)


@pytest.mark.parametrize("found", [0.0, -1.0, float("nan"), float("inf"), None, "2", True, 1e20, torch.tensor(2.0)])
def test_a_schedule_that_returns_no_radius_is_refused_with_the_step(found):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def odd(step):
        return found if step == 2 else 1.0

    pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(odd))
    train(model, optimizer, 1)
    with pytest.raises(ValueError, match=r"radius=odd returned .* for step 2: .* a number from 1e-15 to 1e\+15"):
        train(model, optimizer, 1)
    always = pbwn.UnitNorm(lambda step: found)
    with pytest.raises(ValueError, match="for step 0"):
        pbwn.attach(fresh := make(), torch.optim.SGD(fresh.parameters(), lr=0.1), constraint=always)


@pytest.mark.parametrize("radius", [lambda: 1.0, lambda step, epoch: 1.0, {"0": lambda: 1.0}])
def test_a_function_that_does_not_take_the_step_is_refused_when_it_is_given(radius):
    with pytest.raises(ValueError, match=r"cannot be called with the number of steps taken .*: pass a function of one"):
        pbwn.UnitNorm(radius)


def test_a_radius_that_a_dtype_cannot_hold_is_refused_when_it_comes():
    model = make(torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(lambda step: 10.0 ** (3 * step)))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    with pytest.raises(ValueError, match=r"'0\.weight': a norm of 1000000\.0 is beyond what float16 can hold"):
        optimizer.step()


def test_a_projection_without_steps_takes_no_schedule():
    with pytest.raises(ValueError, match=r"UnitNorm\(radius=growing\) depends on the step.*use a number"):
        pbwn.project_(make(), constraint=pbwn.UnitNorm(growing))


@pytest.mark.parametrize(("kinds", "operations"), [(1, 1), (5, 5)])
def test_a_new_radius_is_a_factor_and_makes_no_new_views(kinds, operations):
    with FakeTensorMode():
        weights = fake_weights([LAYOUTS["rows"]] * 5, torch.float32)
        batch = Batch(weights, pbwn.UnitNorm(growing), {weight.name: 1.0 for weight in weights})
        batch.scale_radii({weight.name: 0.5 for weight in weights})  # the first keeps a copy of the radii
        batch.project_()
        batch.scale_radii({weight.name: 0.7 for weight in weights})
        with Counting() as counting:
            batch.scale_radii({weight.name: 1.0 + index % kinds for index, weight in enumerate(weights, start=1)})
        with Counting() as projecting:
            batch.project_()
    assert len(counting.counts.operations) <= operations
    assert len(counting.counts.operations) + len(projecting.counts.operations) <= 3 * 5 + 12
    assert counting.counts.largest_allocation == 0


def test_a_schedule_that_cannot_be_hashed_may_stand_in_a_mapping():
    @dataclass
    class Growing:  # with fields to compare, and so without a hash
        rate: float

        def __call__(self, step):
            return 1 + self.rate * step

    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(radius={"*": Growing(0.5)}))
    train(model, optimizer, 2)
    assert projection.check().ok
    torch.testing.assert_close(model[0].weight.norm(dim=1), torch.full((len(model[0].weight),), 2.0))


def sharded_weights_follow_the_radius():
    from torch.distributed.fsdp import fully_shard

    for per in ("neuron", "matrix"):
        for step in ("plain", "tangent", "angle"):
            alone, model = make(), make()
            fully_shard(model)
            for each in (alone, model):
                _, optimizer, projection = begin(each, per=per, step=step)
                train(each, optimizer, 4)
                assert projection.check().ok
            for left, right in zip(alone.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(right.full_tensor(), left, rtol=0, atol=1e-5)


def test_sharded_weights_follow_the_radius():
    run_on_processes(sharded_weights_follow_the_radius)
