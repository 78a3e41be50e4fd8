"""Optimizers that keep wider masters of weights: the master is projected, and the weight follows."""

import copy

import pytest
import torch
from torch import nn

import pbwn
from pbwn import Axes
from pbwn.functional import row_norms
from processes import run_on_processes


class MasterSGD(torch.optim.Optimizer):
    """Steps on a wider copy of each weight, kept in its state, and rounds it into the weight."""

    def __init__(self, params, lr=0.1, momentum=0.9, key="master_param", dtype=torch.float32):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.key, self.dtype = key, dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight, dtype=self.dtype)
                    state[self.key] = self.copy_of(weight)
                buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(weight.grad.to(self.dtype))
                self.move(weight, state, buffer, group["lr"])

    def copy_of(self, weight):
        return weight.detach().to(self.dtype, copy=True)

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


def assert_masters_are_on_the_sphere(model, optimizer, projection):
    assert set(projection.state_dict()["masters"]) == {"0.weight", "2.weight"}
    assert projection.check().ok
    for master in masters(model, optimizer):
        torch.testing.assert_close(row_norms(master, Axes((0,))), torch.ones(len(master)).double(), rtol=0, atol=1e-5)


def test_a_weight_that_has_its_first_gradient_late_has_its_master_projected_too():
    model = make_model()
    optimizer = MasterSGD(model.parameters())
    projection = pbwn.attach(model, optimizer)
    model[2].requires_grad_(False)
    train(model, optimizer, range(3))
    assert set(projection.state_dict()["masters"]) == {"0.weight"}
    model[2].requires_grad_(True)
    train(model, optimizer, range(3, 30))
    assert_masters_are_on_the_sphere(model, optimizer, projection)


def test_the_masters_of_an_optimizer_that_comes_later_are_found():
    model = make_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    projection = pbwn.attach(model, plain)
    train(model, plain, range(2))
    optimizer = MasterSGD(model.parameters())
    projection.rebind(optimizer)
    train(model, optimizer, range(2, 30))
    assert_masters_are_on_the_sphere(model, optimizer, projection)
    saved = projection.state_dict()
    projection.detach()
    again = pbwn.attach(model, optimizer, state={**saved, "masters": {}})  # as the states of the first version
    assert_masters_are_on_the_sphere(model, optimizer, again)  # at once


@pytest.mark.parametrize("step", ["plain", "angle"])
def test_masters_end_with_the_optimizer_that_kept_them(step):
    model = make_model()
    first = MasterSGD(model.parameters())
    projection = pbwn.attach(model, first, step=step)
    train(model, first, range(2))
    optimizer = MasterSGD(model.parameters(), lr=0.01, key="another")
    projection.rebind(optimizer)
    assert projection.check().ok  # of the weights: their optimizer has no masters yet
    train(model, optimizer, range(2, 10))
    assert projection.check().ok
    assert set(projection.state_dict()["masters"].values()) == {"another"}
    copied = copy.deepcopy((model, optimizer, projection))
    copied[2].rebind(copied[1])
    assert set(copied[2].state_dict()["masters"].values()) == {"another"}


def test_a_plain_run_that_resumes_with_master_weights_has_them_projected():
    model = make_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, plain)
    train(model, plain, range(2))
    projection.detach()
    optimizer = MasterSGD(model.parameters())
    again = pbwn.attach(model, optimizer, state=projection.state_dict())
    train(model, optimizer, range(2, 30))
    assert_masters_are_on_the_sphere(model, optimizer, again)


def test_masters_in_float64_of_a_model_in_float32_are_projected():
    model = make_model(torch.float32)
    optimizer = MasterSGD(model.parameters(), dtype=torch.float64)
    projection = pbwn.attach(model, optimizer)
    train(model, optimizer, range(30))
    assert_masters_are_on_the_sphere(model, optimizer, projection)
    assert projection.check().largest_deviation < 1e-12


@pytest.mark.parametrize("key", ["master_param", "shadow"])
def test_the_master_of_a_weight_that_is_still_zero_is_known_by_its_key(key):
    model = make_model()
    nn.init.zeros_(model[0].weight)
    first = list(model[0].parameters())
    rest = [{"params": layer.parameters(), "lr": 0.1} for layer in (model[2], model[4])]
    optimizer = MasterSGD([{"params": first, "lr": 0.0}, *rest], key=key)
    projection = pbwn.attach(model, optimizer, also=["0.weight"])
    train(model, optimizer, range(1))
    assert projection.state_dict()["masters"] == {"0.weight": key, "2.weight": key}


@pytest.mark.parametrize(("key", "steps"), [("master_param", 1), ("shadow", 4)])
def test_a_master_without_a_masters_name_is_known_once_its_weight_has_moved(key, steps):
    model = make_model()
    optimizer = MasterSGD(model.parameters(), lr=0.0, key=key)
    projection = pbwn.attach(model, optimizer)
    for step in range(4):  # a warm-up whose first three rates are zero
        optimizer.param_groups[0]["lr"] = 0.1 if step == 3 else 0.0
        train(model, optimizer, [step])
        assert bool(projection.state_dict()["masters"]) == (step + 1 >= steps)
    assert set(projection.state_dict()["masters"].values()) == {key}
    assert projection.check().ok


class Averaging(torch.optim.SGD):
    """Keeps an average of each weight in float32, from before or after its first step."""

    def __init__(self, params, lr, starts_before, where="state"):
        super().__init__(params, lr=lr)
        self.starts_before, self.where, self.averages = starts_before, where, {}

    @torch.no_grad()
    def step(self):
        if self.starts_before:
            self.averages_as_they_are()
        super().step()
        for weight, average in self.averages_as_they_are():
            average.lerp_(weight.float(), 0.01)

    def averages_as_they_are(self):
        weights = [weight for group in self.param_groups for weight in group["params"]]
        kept = [self.state[weight] if self.where == "state" else self.averages for weight in weights]
        keys = ["ema" if self.where == "state" else str(index) for index in range(len(weights))]
        return [
            (weight, each.setdefault(key, weight.detach().float().clone()))
            for weight, each, key in zip(weights, kept, keys, strict=True)
        ]


@pytest.mark.parametrize("starts_before", [True, False])
@pytest.mark.parametrize("where", ["state", "attribute"])
@pytest.mark.parametrize("warm_up", [0, 3])
def test_an_average_of_the_weights_in_float32_is_no_master(warm_up, where, starts_before):
    model, plain = make_model(), make_model()
    optimizer = Averaging(model.parameters(), 0.1, starts_before, where)
    projection = pbwn.attach(model, optimizer)
    twin = torch.optim.SGD(plain.parameters(), lr=0.1)
    pbwn.attach(plain, twin)
    for step in range(8):
        for each in (optimizer, twin):
            each.param_groups[0]["lr"] = 0.1 * min(1.0, step / warm_up) if warm_up else 0.1
        train(model, optimizer, [step])
        train(plain, twin, [step])
    assert projection.state_dict()["masters"] == {}
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_weights_are_compared_once_where_the_first_step_moves_them(monkeypatch):
    searched = []
    compare = pbwn.masters._compare
    monkeypatch.setattr(pbwn.masters, "_compare", lambda each: searched.append(len(each)) or compare(each))
    model = make_model()
    optimizer = MasterSGD(model.parameters(), key="shadow")
    pbwn.attach(model, optimizer)
    train(model, optimizer, range(5))
    assert searched == [4]  # a master and a moment of each of two weights


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


class ScaledInFloat32(MasterSGD):
    def copy_of(self, weight):
        return 4 * weight.detach().float()

    def move(self, weight, state, buffer, lr):
        state[self.key].sub_(buffer, alpha=4 * lr)
        weight.copy_(state[self.key] / 4)


class FlatRemainders(Remainders):
    def __init__(self, params):
        super().__init__(params, key="rest")

    def copy_of(self, weight):
        return super().copy_of(weight).flatten()


class Nested(MasterSGD):
    def copy_of(self, weight):
        return {"w32": super().copy_of(weight)}

    def move(self, weight, state, buffer, lr):
        super().move(weight, {self.key: state[self.key]["w32"]}, buffer, lr)


class InTheGroups(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        for group in self.param_groups:
            group["fp32_params"] = [weight.detach().float() for weight in group["params"]]

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight, master in zip(group["params"], group["fp32_params"], strict=True):
                weight.copy_(master.sub_(weight.grad.float(), alpha=group["lr"]))


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


class InFlatBuffers(torch.optim.Optimizer):
    """One buffer for each list of parameters, longer than they are together."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 0.1})
        self.buffers = [
            torch.cat([weight.detach().float().flatten() for weight in weights] + [torch.zeros(3)])
            for weights in self.lists()
        ]

    def lists(self):
        return [group["params"] for group in self.param_groups]

    @torch.no_grad()
    def step(self):
        for weights, buffer in zip(self.lists(), self.buffers, strict=True):
            sizes = [weight.numel() for weight in weights]
            for weight, master in zip(weights, buffer[:-3].split(sizes), strict=True):
                weight.copy_(master.sub_(weight.grad.float().flatten(), alpha=0.1).view_as(weight))


class InOneFlatBuffer(InFlatBuffers):
    def lists(self):
        return [[weight for group in self.param_groups for weight in group["params"]]]


@pytest.mark.parametrize("kind", [InFlatBuffers, InOneFlatBuffer])
@pytest.mark.parametrize("first", [[0, 2, 4], [4], [4, 2]], ids=["one group", "another first", "two others first"])
def test_masters_in_a_flat_buffer_are_refused_by_name(first, kind):
    model = make_model()
    groups = [[model[index] for index in first], [model[index] for index in (0, 2, 4) if index not in first]]
    parameters = [[parameter for layer in group for parameter in layer.parameters()] for group in groups if group]
    optimizer = kind([{"params": each} for each in parameters])
    pbwn.attach(model, optimizer)
    with pytest.raises(
        TypeError,
        match=rf"{kind.__name__} keeps master weights of '0\.weight' in a piece of its attribute 'buffers', as float32",
    ):
        train(model, optimizer, range(1))


def test_flat_moments_are_no_masters():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.moments = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    projection = pbwn.attach(model, optimizer)
    train(model, optimizer, range(2))
    assert projection.check().ok


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (Remainders, "its state 'master_param', as int16"),
        (Flattened, r"its state 'master_param', as float32 of shape \(640,\)"),
        (Scaled, "its state 'master_param', as float16"),
        (ScaledInFloat32, "its state 'master_param', as float32"),
        (FlatRemainders, "its state 'rest', as int16"),
        (Nested, "its state 'master_param', as float32"),
        (InTheGroups, "its parameter group's 'fp32_params', as float32"),
        (InAnAttribute, "its attribute 'fp32_groups', as float32"),
    ],
)
def test_masters_of_another_form_are_refused_by_name(kind, where):
    model = make_model()
    optimizer = kind(model.parameters())
    pbwn.attach(model, optimizer, initial=False)
    with pytest.raises(TypeError, match=f"{kind.__name__} keeps master weights of '0.weight' in {where}.*float32"):
        train(model, optimizer, range(1))


def test_a_master_that_is_no_wider_than_its_weight_is_refused_unless_it_is_the_weight():
    model = make_model(torch.float32)
    optimizer = MasterSGD(model.parameters())
    projection = pbwn.attach(model, optimizer)
    with pytest.raises(TypeError, match=r"master weights of '0\.weight' in its state 'master_param', as float32"):
        train(model, optimizer, range(1))
    projection.detach()
    for weight in model.parameters():
        optimizer.state[weight]["master_param"] = weight.detach()
    assert pbwn.attach(model, optimizer).state_dict()["masters"] == {}


def masters_of_which_a_process_has_nothing_are_found_by_all():
    from torch.distributed.fsdp import fully_shard

    for key, layers in (("shadow", [(8, 1), (1, 6), (6, 2)]), ("master", [(8, 1), (1, 1), (1, 2)])):
        model = nn.Sequential(*[nn.Linear(*sizes) for sizes in layers]).bfloat16()
        fully_shard(model)
        optimizer = MasterSGD(model.parameters(), key=key)
        projection = pbwn.attach(model, optimizer)
        model(torch.randn(4, 8).bfloat16()).square().mean().backward()
        optimizer.step()
        assert projection.state_dict()["masters"] == {"0.weight": key, "1.weight": key}
        assert projection.check().ok


def test_masters_of_which_a_process_has_nothing():
    run_on_processes(masters_of_which_a_process_has_nothing_are_found_by_all)


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
