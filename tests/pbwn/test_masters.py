"""Optimizers that keep float32 masters of half-precision weights: the master is projected, and the weight follows."""

import copy

import pytest
import torch
from torch import nn

import pbwn
from pbwn import Axes
from pbwn.functional import row_norms
from processes import run_on_processes


class MasterSGD(torch.optim.Optimizer):
    """Steps on a float32 copy of each weight, kept in its state, and rounds it into the weight."""

    def __init__(self, params, lr=0.1, momentum=0.9, key="master_param"):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.key = key

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight, dtype=torch.float32)
                    state[self.key] = self.copy_of(weight)
                buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(weight.grad.float())
                self.move(weight, state, buffer, group["lr"])

    def copy_of(self, weight):
        return weight.detach().float().clone()

    def move(self, weight, state, buffer, lr):
        state[self.key].sub_(buffer, alpha=lr)
        weight.copy_(state[self.key])

    def load_state_dict(self, state_dict):
        """As optimizers with masters have to: torch's own casts state to the weight's dtype."""
        super().load_state_dict(state_dict)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for number, state in state_dict["state"].items():
            self.state[weights[number]] = {key: value.clone() for key, value in state.items()}


def make_model(dtype=torch.bfloat16, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 4)).to(dtype)


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        batch = torch.randn(16, 20, generator=generator).to(model[0].weight.dtype)
        (model(batch) - 1).float().square().mean().backward()
        optimizer.step()


def masters(model, optimizer):
    return [optimizer.state[model[index].weight]["master_param"] for index in (0, 2)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gradient", ["ordinary", "riemannian"])
@pytest.mark.parametrize("every", [1, 3])
def test_the_master_is_projected_and_the_weight_is_its_rounded_copy(dtype, gradient, every):
    model = make_model(dtype)
    optimizer = MasterSGD(model.parameters())
    projection = pbwn.attach(model, optimizer, gradient=gradient, every=every)
    train(model, optimizer, range(30))
    for index, master in zip((0, 2), masters(model, optimizer), strict=True):
        assert master.dtype == torch.float32
        torch.testing.assert_close(row_norms(master, Axes((0,))), torch.ones(len(master)).double(), rtol=0, atol=1e-5)
        assert torch.equal(model[index].weight, master.to(dtype))
    certificate = projection.check()
    assert certificate.ok
    assert certificate.largest_deviation < 1e-5  # of the masters: the weights are off by rounding


@pytest.mark.parametrize("step", ["tangent", "angle"])
@pytest.mark.parametrize("per", ["neuron", "matrix"])
def test_step_rules_act_on_the_masters_as_on_a_model_in_float32(per, step):
    half, wide = make_model(torch.bfloat16), make_model(torch.bfloat16).float()
    optimizers = [MasterSGD(half.parameters(), lr=0.01), torch.optim.SGD(wide.parameters(), lr=0.01, momentum=0.9)]
    for model, optimizer in zip((half, wide), optimizers, strict=True):
        projection = pbwn.attach(model, optimizer, per=per, step=step, constraint=pbwn.UnitNorm("initial"))
        for number in range(20):
            generator = torch.Generator().manual_seed(number)
            for parameter in model.parameters():  # the same for both, so that nothing but the rule is compared
                parameter.grad = torch.randn(parameter.shape, generator=generator).bfloat16().to(parameter.dtype)
            optimizer.step()
        assert projection.check().ok
    for master, index in zip(masters(half, optimizers[0]), (0, 2), strict=True):
        torch.testing.assert_close(master, wide[index].weight.detach(), rtol=0, atol=1e-5)


def test_a_master_off_the_sphere_is_named_by_the_certificate_though_the_weight_is_on_it():
    model = make_model()
    optimizer = MasterSGD(model.parameters())
    projection = pbwn.attach(model, optimizer)
    train(model, optimizer, range(2))
    with torch.no_grad():
        masters(model, optimizer)[0].mul_(1.5)
    assert not projection.check().ok
    assert "0.weight: off by 5.0e-01" in str(projection.check())


def test_masters_that_exist_at_attach_are_projected_by_the_initial_projection():
    model = make_model()
    optimizer = MasterSGD(model.parameters())
    train(model, optimizer, range(2))
    pbwn.attach(model, optimizer)
    for master in masters(model, optimizer):
        torch.testing.assert_close(row_norms(master, Axes((0,))), torch.ones(len(master)).double(), rtol=0, atol=1e-5)


def test_a_run_with_masters_resumes_bit_for_bit():
    def begin():
        model = make_model()
        return model, MasterSGD(model.parameters())

    model, optimizer = begin()
    pbwn.attach(model, optimizer, every=2)
    train(model, optimizer, range(9))

    first, its_optimizer = begin()
    projection = pbwn.attach(first, its_optimizer, every=2)
    train(first, its_optimizer, range(5))
    saved = copy.deepcopy((first.state_dict(), its_optimizer.state_dict(), projection.state_dict()))
    assert saved[2]["masters"] == {"0.weight": "master_param", "2.weight": "master_param"}

    again, new_optimizer = begin()
    again.load_state_dict(saved[0])
    new_optimizer.load_state_dict(saved[1])
    pbwn.attach(again, new_optimizer, every=2, state=saved[2])
    train(again, new_optimizer, range(5, 9))
    for left, right in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)
    for left, right in zip(masters(model, optimizer), masters(again, new_optimizer), strict=True):
        assert torch.equal(left, right)


def test_a_master_that_loading_has_cast_to_the_weights_dtype_is_refused():
    model = make_model()
    optimizer = MasterSGD(model.parameters())
    projection = pbwn.attach(model, optimizer)
    train(model, optimizer, range(3))
    weight = model[0].weight
    optimizer.state[weight]["master_param"] = optimizer.state[weight]["master_param"].bfloat16()
    with pytest.raises(
        RuntimeError, match=r"master weight 'master_param' of '0\.weight' is torch\.bfloat16 now: .*casts"
    ):
        train(model, optimizer, range(1))
    del optimizer.state[weight]["master_param"]
    with pytest.raises(RuntimeError, match=r"no longer has the master weight 'master_param' of '0\.weight': load"):
        projection.check()


def test_the_fresh_moment_of_a_weight_that_is_all_zero_is_no_master():
    model = make_model()
    nn.init.zeros_(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    projection = pbwn.attach(model, optimizer, also=["0.weight"])
    train(model, optimizer, range(2))
    assert projection.state_dict()["masters"] == {}


def test_moments_in_float32_are_no_masters():
    model = make_model()
    optimizer = MasterSGD(model.parameters(), momentum=0.9, key="shadow")
    projection = pbwn.attach(model, optimizer)
    train(model, optimizer, range(3))
    assert set(projection.state_dict()["masters"].values()) == {"shadow"}


class Remainders(MasterSGD):
    """Keeps the lower 16 bits of each master."""

    def copy_of(self, weight):
        return torch.zeros_like(weight, dtype=torch.int16)

    def move(self, weight, state, buffer, lr):
        weight.sub_(buffer, alpha=lr)


class Flattened(MasterSGD):
    def copy_of(self, weight):
        return weight.detach().float().flatten()

    def move(self, weight, state, buffer, lr):
        state[self.key].sub_(buffer.flatten(), alpha=lr)
        weight.copy_(state[self.key].view_as(weight))


class Scaled(MasterSGD):
    def copy_of(self, weight):
        return (weight.detach() / 2).half()

    def move(self, weight, state, buffer, lr):
        weight.sub_(buffer, alpha=lr)


class InAnAttribute(MasterSGD):
    """As mixed-precision wrappers that keep their own list of groups."""

    def __init__(self, params):
        super().__init__(params, momentum=0.0)
        self.fp32_groups = [
            [weight.detach().float().clone() for weight in group["params"]] for group in self.param_groups
        ]

    @torch.no_grad()
    def step(self):
        for group, wide in zip(self.param_groups, self.fp32_groups, strict=True):
            for weight, master in zip(group["params"], wide, strict=True):
                if weight.grad is not None:
                    master.sub_(weight.grad.float(), alpha=group["lr"])
                    weight.copy_(master)


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (Remainders, "its state 'master_param', as int16"),
        (Flattened, r"its state 'master_param', as float32 of shape \(640,\)"),
        (Scaled, "its state 'master_param', as float16"),
        (InAnAttribute, "its attribute 'fp32_groups', as float32"),
    ],
)
def test_masters_of_another_form_are_refused_by_name(kind, where):
    model = make_model()
    optimizer = kind(model.parameters())
    pbwn.attach(model, optimizer, initial=False)
    with pytest.raises(TypeError, match=f"{kind.__name__} keeps master weights of '0.weight' in {where}.*float32"):
        train(model, optimizer, range(1))


def sharded_masters_equal_those_of_one_process():
    from torch.distributed.fsdp import fully_shard

    alone = make_model()
    optimizer = MasterSGD(alone.parameters())
    pbwn.attach(alone, optimizer)
    train(alone, optimizer, range(4))

    model = make_model()
    fully_shard(model)
    its_optimizer = MasterSGD(model.parameters())
    projection = pbwn.attach(model, its_optimizer)
    train(model, its_optimizer, range(4))
    assert projection.check().ok
    assert set(projection.state_dict()["masters"]) == {"0.weight", "2.weight"}
    for index in (0, 2):
        whole = its_optimizer.state[model[index].weight]["master_param"].full_tensor()
        torch.testing.assert_close(row_norms(whole, Axes((0,))), torch.ones(len(whole)).double(), rtol=0, atol=1e-5)
        torch.testing.assert_close(model[index].weight.full_tensor(), whole.bfloat16(), rtol=0, atol=0)
        torch.testing.assert_close(whole, optimizer.state[alone[index].weight]["master_param"], rtol=0, atol=2e-2)


def test_sharded_masters():
    run_on_processes(sharded_masters_equal_those_of_one_process)
