"""Averages of the weights: projected with one line, and batch statistics estimated after that."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import pbwn


def build():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def loader():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(8, 6, generator=generator) for _ in range(6)]


def train(model, optimizer, averages=()):
    for x in loader():
        optimizer.zero_grad()
        nn.functional.cross_entropy(5 * model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
        for average in averages:
            average.update_parameters(model)


def averages_of(model):
    return [AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))]


@pytest.mark.parametrize("constraint", [pbwn.UnitNorm(), pbwn.UnitNorm(radius="initial")], ids=str)
def test_an_average_is_projected_like_its_model(constraint):
    model = build()
    start = model[0].weight.detach().norm(dim=1)
    radii = start if constraint == pbwn.UnitNorm(radius="initial") else torch.ones(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    projection = pbwn.attach(model, optimizer, constraint=constraint)
    averages = averages_of(model)
    train(model, optimizer, averages)
    trained = copy.deepcopy(model.state_dict())
    for average in averages:
        norms = average.module[0].weight.norm(dim=1)
        assert (norms < radii - 1e-3).any()  # an average of points on a sphere lies inside
        projection.project(average)
        torch.testing.assert_close(average.module[0].weight.norm(dim=1), radii)
    for name, tensor in trained.items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_an_average_is_projected_without_a_projection_at_hand():
    model = build()
    average = AveragedModel(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.5), [average])
    assert [weight.name for weight in pbwn.project_(average).constrained] == ["0.weight"]
    torch.testing.assert_close(average.module[0].weight.norm(dim=1), torch.ones(8))


class ScheduleFreeSGD(torch.optim.Optimizer):
    """Trains y = (1 - beta) z + beta x, where z takes the steps of SGD and x is their average, which is evaluated."""

    def __init__(self, params, lr, beta=0.9):
        super().__init__(params, {"lr": lr})
        self.beta, self.count = beta, 0

    @torch.no_grad()
    def step(self):
        share, self.count = 1 / (self.count + 1), self.count + 1
        for group in self.param_groups:
            for y in group["params"]:
                z = self.state[y].setdefault("z", y.detach().clone())
                y.lerp_(z, share).sub_(y.grad, alpha=group["lr"] * (1 - self.beta * (1 - share)))
                z.sub_(y.grad, alpha=group["lr"])

    def eval(self):
        self.blend_(1 - 1 / self.beta)

    def train(self):
        self.blend_(1 - self.beta)

    @torch.no_grad()
    def blend_(self, share):
        for weight, state in self.state.items():
            weight.lerp_(state["z"], share)


def test_the_average_of_a_schedule_free_optimizer_is_projected_in_a_copy():
    model = build()
    optimizer = ScheduleFreeSGD(model.parameters(), lr=0.5)
    projection = pbwn.attach(model, optimizer)
    train(model, optimizer)
    optimizer.eval()
    average = copy.deepcopy(model)
    projection.project(average)
    optimizer.train()
    torch.testing.assert_close(average[0].weight.norm(dim=1), torch.ones(8))
    assert projection.check().ok

    optimizer.eval()
    projection.project()
    optimizer.train()
    assert not projection.check().ok  # what is trained is computed from the average


def largest_error_of_statistics(average):
    """How far the running mean is from the mean of what the layer puts out now."""
    outputs = average.module[0](torch.cat(loader())).detach()
    return (average.module[1].running_mean - outputs.mean(0)).abs().max()


def test_statistics_are_estimated_after_the_projection():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    projection = pbwn.attach(model, optimizer)
    right = AveragedModel(model)
    train(model, optimizer, [right])
    wrong = copy.deepcopy(right)

    projection.project(right)
    update_bn(loader(), right)
    assert largest_error_of_statistics(right) < 1e-6

    update_bn(loader(), wrong)
    projection.project(wrong)
    assert largest_error_of_statistics(wrong) > 1e-4


@pytest.mark.parametrize("backend", ["auto", "torch", "numba"])
def test_a_copy_in_half_precision_is_projected_whatever_the_backend_of_the_model(backend):
    model = build()
    projection = pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.5), backend=backend)
    half = copy.deepcopy(model).half()
    with torch.no_grad():
        half[0].weight.mul_(3)
    projection.project(half)
    torch.testing.assert_close(half[0].weight.float().norm(dim=1), torch.ones(8), rtol=0, atol=2e-3)


def test_what_is_no_model_is_refused_as_a_copy():
    model = build()
    projection = pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match=r"project\(\) takes a copy of the model, or nothing; got OrderedDict"):
        projection.project(model.state_dict())


def test_a_copy_in_a_dtype_without_norms_is_refused_by_name():
    model = build()
    projection = pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.5))
    with pytest.raises(ValueError, match=r"weight '0\.weight': its dtype torch\.float8_e4m3fn is not supported"):
        projection.project(copy.deepcopy(model).to(torch.float8_e4m3fn))


def test_a_copy_that_cannot_hold_the_radius_is_refused_and_left_as_it_is():
    model = build()
    projection = pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.5), constraint=pbwn.UnitNorm(1e5))
    half = build().half()
    before = half[0].weight.detach().clone()
    with pytest.raises(ValueError, match=r"weight '0\.weight': a norm of 100000.0 is beyond what float16 can hold"):
        projection.project(half)
    assert torch.equal(half[0].weight, before)
