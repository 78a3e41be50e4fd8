"""Algorithm 1 on real optimizers: when weights are projected, and what may happen around a step."""

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections import OrderedDict

import pytest
import torch
from torch import nn

import pbwn
from pbwn.functional import tangent_


def make_model():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def make(optimizer=torch.optim.SGD, lr=0.1, **options):
    model = make_model()
    return model, optimizer(model.parameters(), lr=lr, **options)


def backward(model, scale=1.0):
    (scale * model(torch.randn(4, 6)).square().mean()).backward()


def step(model, optimizer):
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


@torch.no_grad()
def deviation(model):
    return max(float((layer.weight.norm(dim=1) - 1).abs().max()) for layer in (model[0], model[2]))


def on_sphere(model):
    return deviation(model) < 2e-6


# When


def test_attaching_projects_once_and_every_step_projects_again():
    model, optimizer = make()
    assert not on_sphere(model)
    pbwn.attach(model, optimizer)
    assert on_sphere(model)
    for _ in range(3):
        step(model, optimizer)
        assert on_sphere(model)


def test_without_initial_projection_the_first_step_is_of_the_weights_as_they_were():
    model, optimizer = make()
    start = model[0].weight.detach().clone()
    projection = pbwn.attach(model, optimizer, initial=False)
    assert torch.equal(model[0].weight, start)
    assert projection.check().ok
    assert projection.check().largest_deviation > 0.01
    step(model, optimizer)
    assert on_sphere(model)


def test_an_interval_projects_after_every_so_many_steps():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, every=3)
    found = []
    for _ in range(7):
        step(model, optimizer)
        found.append(on_sphere(model))
        certificate = projection.check()
        assert certificate.ok
        assert certificate.between_projections is not found[-1]
        assert (certificate.largest_deviation < 2e-6) is found[-1]
    assert found == [False, False, True, False, False, True, False]


def test_by_hand_nothing_is_projected_until_asked():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, every=None)
    step(model, optimizer)
    assert not on_sphere(model)
    assert projection.check().between_projections
    projection.project()
    assert on_sphere(model)
    assert not projection.check().between_projections


def test_micro_batches_do_not_count():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, every=2)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(4):
            backward(model, 0.25)
        optimizer.step()
    assert projection.state_dict()["steps"] == [3]
    assert not on_sphere(model)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("every", [1, 2])
def test_a_skipped_amp_step_does_not_count(fused, every):
    model, optimizer = make(fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    projection = pbwn.attach(model, optimizer, every=every)
    for broken in (False, True, False):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 6)).square().mean()).backward()
        if broken:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
    assert projection.state_dict()["steps"] == [2]
    assert on_sphere(model)
    assert projection.check().ok


class Nested(torch.optim.SGD):
    """An optimizer that extends its parent's step, as many do."""

    def step(self, closure=None):
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1.5)
        return loss


def test_a_step_inside_a_step_counts_once_and_projects_last():
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # from here on the parent's own step carries hooks too
    model, optimizer = make(Nested)
    projection = pbwn.attach(model, optimizer, every=2)
    step(model, optimizer)
    assert projection.state_dict()["steps"] == [1]
    step(model, optimizer)
    assert projection.state_dict()["steps"] == [2]
    assert on_sphere(model)


class Fragile(Nested):
    fail = ""

    def step(self, closure=None):
        if self.fail == "outside":
            raise RuntimeError("out of memory")
        if self.fail == "caught":
            try:
                return super().step(lambda: 1 / 0)
            except ZeroDivisionError:
                pass
        return super().step(closure)


@pytest.mark.parametrize("gradient", ["ordinary", "riemannian"])
def test_an_exception_inside_a_step_leaves_nothing_stuck(gradient):
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    model, optimizer = make(Fragile)
    projection = pbwn.attach(model, optimizer, gradient=gradient)

    def broken_closure():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimizer.step(broken_closure)
    Fragile.fail = "outside"
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    assert projection.state_dict()["steps"] == [0]
    for Fragile.fail in ("", "caught", ""):
        step(model, optimizer)
        assert on_sphere(model)
    assert projection.state_dict()["steps"] == [3]


def test_a_compiled_step_projects_like_any_other():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, every=2, gradient="riemannian")
    compiled = torch.compile(optimizer.step, backend="eager")
    found = []
    for _ in range(4):
        optimizer.zero_grad()
        backward(model)
        compiled()
        found.append(on_sphere(model))
    assert found == [False, True, False, True]
    assert projection.state_dict()["steps"] == [4]


def test_a_compiled_step_with_a_closure_is_not_traced_into_the_hooks():
    model, optimizer = make()
    pbwn.attach(model, optimizer, gradient="riemannian")

    def closure():
        optimizer.zero_grad()
        return backward(model)

    torch._dynamo.reset()
    torch.compile(optimizer.step, backend="eager")(closure)  # any warning is an error
    assert on_sphere(model)


# Gradient


def test_the_riemannian_gradient_is_formed_before_the_optimizer_sees_it():
    model, optimizer = make(momentum=0.9, weight_decay=0.01)
    twin = copy.deepcopy(model)
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    pbwn.attach(model, optimizer, gradient="riemannian", initial=False, every=2)
    for count in (1, 2, 3):
        torch.manual_seed(count)
        step(model, optimizer)
        torch.manual_seed(count)
        twin_optimizer.zero_grad()
        backward(twin)
        for layer in (twin[0], twin[2]):
            tangent_(layer.weight.grad, layer.weight, pbwn.Axes((0,)))
        twin_optimizer.step()
        if count == 2:
            pbwn.project_(twin)
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


@pytest.mark.parametrize("gradient", ["ordinary", "riemannian"])
@pytest.mark.parametrize("as_keyword", [False, True])
def test_one_step_with_a_closure_equals_one_without(gradient, as_keyword):
    ends = []
    for closure in (False, True):
        torch.manual_seed(0)
        model, optimizer = make()
        pbwn.attach(model, optimizer, gradient=gradient)
        x = torch.randn(4, 6)

        def evaluate(model=model, optimizer=optimizer, x=x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        if not closure:
            evaluate()
            optimizer.step()
        elif as_keyword:
            assert optimizer.step(closure=evaluate) > 0
        else:
            assert optimizer.step(evaluate) > 0
        ends.append(model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_lbfgs_sees_a_tangent_gradient_at_each_evaluation():
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    pbwn.attach(model, optimizer, gradient="riemannian")
    x, seen = torch.randn(16, 6), []  # the weights at each evaluation

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        seen.append(model[0].weight.detach().clone())
        assert float((model[0].weight.grad * seen[-1]).sum(1).abs().max()) > 1e-4
        return loss

    optimizer.step(closure)
    assert len(seen) > 2
    assert float((model[0].weight.grad * seen[-1]).sum(1).abs().max()) < 1e-7
    assert on_sphere(model)


def test_sparse_gradients_of_an_embedding_are_made_tangent_too():
    model = nn.Sequential(nn.Embedding(6, 4, sparse=True), nn.Linear(4, 2))
    optimizer = torch.optim.SparseAdam(model[0].parameters(), lr=0.1)
    pbwn.attach(model, optimizer, also=["0"], gradient="riemannian")
    model(torch.tensor([1, 1, 4])).square().sum().backward()
    before = model[0].weight.detach().clone()
    optimizer.step()
    gradient = model[0].weight.grad.to_dense()
    assert float((gradient * before).sum(1).abs().max()) < 1e-6
    assert float(gradient.abs().sum()) > 0


# Which optimizer, which weights


def test_each_optimizer_drives_its_own_weights():
    model = make_model()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam([*model[2].parameters(), *model[4].parameters()], lr=0.1)
    projection = pbwn.attach(model, [first, second], every=2)

    @torch.no_grad()
    def deviations():
        return [float((layer.weight.norm(dim=1) - 1).abs().max()) < 2e-6 for layer in (model[0], model[2])]

    backward(model)
    first.step()
    assert deviations() == [False, True]
    first.step()
    second.step()
    assert deviations() == [True, False]
    assert projection.state_dict()["steps"] == [2, 1]
    projection.project()
    assert deviations() == [True, True]


def test_only_weights_of_the_given_optimizer_are_touched():
    model = make_model()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    untouched = model[0].weight.detach().clone()
    projection = pbwn.attach(model, optimizer)
    assert torch.equal(model[0].weight, untouched)
    assert "not in the given optimizers" in str(projection)


def test_attaching_twice_to_one_weight_is_an_error_until_the_first_is_detached():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    other = torch.optim.Adam(model.parameters())
    for one in (optimizer, other):
        with pytest.raises(ValueError, match=r"weight '0\.weight' already has a projection attached.*detach\(\)"):
            pbwn.attach(model, one)
    projection.detach()
    assert not projection.check().hooks_in_place
    pbwn.attach(model, other)


def test_a_new_optimizer_can_be_attached_once_the_old_one_is_gone():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    del optimizer
    gc.collect()
    assert not projection.check().hooks_in_place
    pbwn.attach(model, torch.optim.Adam(model.parameters()))


def test_a_detached_projection_no_longer_projects():
    model, optimizer = make()
    pbwn.attach(model, optimizer).detach()
    step(model, optimizer)
    assert not on_sphere(model)


def test_selecting_nothing_is_an_error_that_shows_why():
    model = nn.Sequential(nn.BatchNorm1d(4))
    with pytest.raises(ValueError, match=r"(?s)nothing to constrain.*normalisation layer"):
        pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_an_optimizer_of_another_model_is_told_as_the_reason_that_nothing_is_constrained():
    model, _ = make()
    _, other = make()
    with pytest.raises(ValueError, match=r"^nothing to constrain: the optimizer holds none of this model's parameters"):
        pbwn.attach(model, other)


class Wrapper:
    """An optimizer wrapper without hooks of its own, such as accelerate's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups


def test_a_wrapper_without_hooks_is_unwrapped():
    model, optimizer = make()
    pbwn.attach(model, Wrapper(optimizer))
    step(model, optimizer)
    assert on_sphere(model)


class Lookahead(torch.optim.Optimizer):
    """Moves on from where the optimizer inside has gone; its own hooks are there and never called, as in libraries."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()

    def step(self, closure=None):
        self.optimizer.step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(0.5)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


def test_an_optimizer_that_never_calls_its_hooks_is_refused_and_the_advice_works():
    model, optimizer = make()
    lookahead = Lookahead(optimizer)
    with pytest.raises(TypeError, match=r"Lookahead never calls step hooks.*every=None.*project\(\).*second set"):
        pbwn.attach(model, lookahead, initial=False)
    with pytest.raises(TypeError, match="Lookahead never calls step hooks"):
        pbwn.attach(model, Wrapper(lookahead))
    projection = pbwn.attach(model, lookahead.optimizer, every=None)
    step(model, lookahead)
    projection.project()
    assert on_sphere(model)
    assert projection.check().ok


def test_an_optimizer_of_flat_partitions_is_refused_by_name():
    class DeepSpeedZeroOptimizer:
        def __init__(self, optimizer):
            self.optimizer = optimizer
            self.param_groups = []
            self.single_partition_of_fp32_groups = []

    model, optimizer = make()
    for wrapped in (DeepSpeedZeroOptimizer(optimizer), Wrapper(DeepSpeedZeroOptimizer(optimizer))):
        with pytest.raises(TypeError, match=r"DeepSpeedZeroOptimizer moves flat partitions.*fully_shard"):
            pbwn.attach(model, wrapped)


class PlainLookahead(Lookahead):
    """The same without hooks of its own."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups


def test_an_optimizer_that_moves_weights_after_the_one_inside_is_refused():
    model, optimizer = make()
    with pytest.raises(TypeError, match=r"PlainLookahead never calls step hooks.*every=None"):
        pbwn.attach(model, PlainLookahead(optimizer))


class Descent(torch.optim.Optimizer):
    """Gradient descent, written from nothing."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)


class Around(Descent):
    def step(self, closure=None):
        return super().step(closure)


def put_over_the_class(optimizer, monkeypatch):
    optimizer.__class__ = Around


def put_over_the_step(optimizer, monkeypatch):
    inner = Descent.step
    monkeypatch.setattr(Descent, "step", lambda self, closure=None: inner(self, closure))


@pytest.mark.parametrize("change", [put_over_the_class, put_over_the_step])
def test_a_step_that_somebody_put_over_the_one_with_hooks_is_followed(change, monkeypatch):
    model, _ = make()
    optimizer = Descent(model.parameters())
    change(optimizer, monkeypatch)
    projection = pbwn.attach(model, optimizer)
    step(model, optimizer)
    assert projection.state_dict()["steps"] == [1]
    assert on_sphere(model)


class Sharing(Lookahead):
    """A wrapper that has taken over the hooks of the optimizer inside, which calls them, as Fabric's did."""

    def __init__(self, optimizer):
        self.__dict__ = {**optimizer.__dict__, "optimizer": optimizer}

    def step(self, closure=None):
        return self.optimizer.step(closure)


def test_a_wrapper_that_shares_the_hooks_of_the_optimizer_inside_is_unwrapped():
    model, optimizer = make()
    pbwn.attach(model, Sharing(optimizer))
    step(model, Sharing(optimizer))
    assert on_sphere(model)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation in two steps, as it is usually written."""

    def __init__(self, params, **options):
        super().__init__(params, options)
        self.base_optimizer = torch.optim.SGD(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        self.kept = [parameter.clone() for parameter in self.param_groups[0]["params"]]
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad)

    @torch.no_grad()
    def second_step(self):
        for parameter, kept in zip(self.param_groups[0]["params"], self.kept, strict=True):
            parameter.copy_(kept)
        self.base_optimizer.step()


def test_sam_is_followed_through_its_base_optimizer():
    model, optimizer = make(SAM)
    projection = pbwn.attach(model, optimizer.base_optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        optimizer.first_step()
        optimizer.zero_grad()
        backward(model)
        optimizer.second_step()
        assert on_sphere(model)
    assert projection.state_dict()["steps"] == [2]


STATE = {  # without its version
    "constraint": {"kind": "unit-norm", "radius": 1.0},
    "weights": {name: {"neurons": [0], "groups": 1} for name in ("0.weight", "2.weight")},
    "every": 1,
    "gradient": "ordinary",
    "steps": [0],
    "projected": [True],
    "radii": {},
}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"every": 0}, ValueError, "every must be a positive integer, or None"),
        ({"every": 2.5}, ValueError, "got 2.5"),
        ({"every": True}, ValueError, "got True"),
        ({"gradient": "natural"}, ValueError, '"ordinary" or "riemannian"; got \'natural\''),
        ({"gradient": "riemannian", "constraint": pbwn.MaxNorm(1.0)}, ValueError, "MaxNorm is a ball"),
        ({"constraint": 1.0}, TypeError, r"pbwn\.UnitNorm"),
        ({"axes": (0,)}, TypeError, "axes must be given by the weight's name"),
        ({"state": 3}, TypeError, r"what projection\.state_dict\(\) returned; got int"),
        ({"backend": "fortran"}, ValueError, "got 'fortran'"),
        ({"state": {"steps": [1]}}, ValueError, "not the state of a projection"),
        ({"state": STATE}, ValueError, "not the state of a projection: version missing"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_and_leave_no_hooks(options, error, words):
    model, optimizer = make()
    with pytest.raises(error, match=words):
        pbwn.attach(model, optimizer, **options)
    assert not optimizer._optimizer_step_post_hooks


def test_something_that_is_no_optimizer_is_refused():
    model, optimizer = make()
    with pytest.raises(ValueError, match="empty list"):
        pbwn.attach(model, [])
    with pytest.raises(TypeError, match="the model comes first, then the optimizer; got Sequential"):
        pbwn.attach(optimizer, model)
    for wrong in (3, None):
        with pytest.raises(TypeError, match=rf"must be a torch\.optim\.Optimizer, or a list of them; got {wrong}"):
            pbwn.attach(model, [wrong])
    with pytest.raises(TypeError, match="got 'adam'"):
        pbwn.attach(model, "adam")
    with pytest.raises(TypeError, match=r"got a parameter$"):
        pbwn.attach(model, model.parameters())
    pbwn.attach(model, optimizer, state={"version": 2, **STATE})


# Constraints


def test_initial_radii_keep_each_neurons_own_norm():
    model, optimizer = make()
    norms = model[0].weight.detach().norm(dim=1)
    before = model[0].weight.detach().clone()
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(radius="initial"))
    assert torch.equal(model[0].weight, before)
    for _ in range(5):
        step(model, optimizer)
    torch.testing.assert_close(model[0].weight.norm(dim=1), norms)
    assert not torch.allclose(model[0].weight, before)
    assert projection.check().ok


def test_a_neuron_that_starts_at_zero_stays_free_with_initial_radii():
    model, optimizer = make()
    with torch.no_grad():
        model[0].weight[2] = 0
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(radius="initial"))
    assert projection.check().ok
    assert projection.check().dead == {"0.weight": (2,)}
    with torch.no_grad():
        model[0].bias.fill_(1.0)
    for _ in range(3):
        step(model, optimizer)
    assert float(model[0].weight[2].detach().norm()) > 0
    assert projection.check().ok


def test_max_norm_bounds_every_neuron():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, constraint=pbwn.MaxNorm(0.4))
    for _ in range(3):
        step(model, optimizer)
    assert all(float(layer.weight.detach().norm(dim=1).max()) <= 0.4 + 1e-6 for layer in (model[0], model[2]))
    assert projection.check().ok


# What happens to weights


def test_a_tied_weight_is_projected_once():
    model = make_model()
    model[2].weight = nn.Parameter(torch.randn(8, 8))
    model.insert(3, nn.Linear(8, 8))
    model[3].weight = model[2].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer)
    assert [weight.name for weight in projection.selection.constrained] == ["0.weight", "2.weight"]
    step(model, optimizer)
    torch.testing.assert_close(model[3].weight.norm(dim=1), torch.ones(8))


def test_names_storage_strides_and_dtype_stay():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model[0].weight
    pointer = weight.data_ptr()
    pbwn.attach(model, optimizer)
    model(torch.randn(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    assert model[0].weight is weight
    assert weight.data_ptr() == pointer
    assert weight.stride() == plain[0].weight.stride()
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(weight.flatten(1).norm(dim=1), torch.ones(4))


def replace_by_assignment(model):
    model.load_state_dict({name: 2 * tensor for name, tensor in model.state_dict().items()}, assign=True)


def replace_dtype(model):
    model.double()


def replace_layout(model):
    for layer in (model[0], model[2]):
        layer.weight.data = layer.weight.data.t().contiguous().t() * 3


def replace_parameter(model):
    model[0].weight = nn.Parameter(torch.randn(8, 6))


@pytest.mark.parametrize("replace", [replace_by_assignment, replace_dtype, replace_layout, replace_parameter])
def test_weights_that_are_replaced_after_attach_are_found_again(replace):
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    step(model, optimizer)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    replace(model)
    projection.project()
    assert deviation(model) < 2e-6
    orphaned = id(model[0].weight) not in held
    assert projection.check().ok is not orphaned
    assert ("0.weight: replaced after attach" in str(projection.check())) is orphaned


def test_a_weight_that_is_parametrized_after_attach_is_named_in_an_error():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(RuntimeError, match=r"weight '0\.weight' is gone"):
        projection.project()


def test_projecting_inside_a_forward_pass_is_still_noticed_by_autograd():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    loss = model(torch.randn(4, 6)).square().mean()
    projection.project()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions_train_on_the_sphere(dtype):
    model, _ = make()
    model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 6, dtype=dtype)).square().mean().backward()
        optimizer.step()
    assert model[0].weight.dtype == dtype
    assert projection.check().ok


# torch refuses capturable=True on the CPU, and a tensor as the rate of a foreach step without it.
@pytest.mark.parametrize(
    ("rate", "implementation"),
    [
        (0.01, {"foreach": True}),
        (0.01, {"fused": True}),
        (0.01, {"foreach": False}),
        (torch.tensor(0.01), {"fused": True}),
        (torch.tensor(0.01), {"foreach": False}),
    ],
)
def test_every_implementation_of_an_optimizer_is_followed(rate, implementation):
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, **implementation)
    pbwn.attach(model, optimizer)
    for _ in range(3):
        step(model, optimizer)
    assert on_sphere(model)


# Copies


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda parts: pickle.loads(pickle.dumps(parts))])
def test_hooks_lost_on_a_copy_are_reported_and_put_back(duplicate):
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, every=2)
    step(model, optimizer)
    model2, optimizer2, projection2 = duplicate((model, optimizer, projection))
    certificate = projection2.check()
    assert not certificate.ok
    assert "rebind(optimizer)" in str(certificate)
    projection2.rebind(optimizer2)
    assert projection2.check().ok
    for one, its in ((model, optimizer), (model2, optimizer2)):
        torch.manual_seed(5)
        step(one, its)
        assert on_sphere(one)
    torch.testing.assert_close(model.state_dict(), model2.state_dict(), rtol=0, atol=0)
    assert projection.check().ok


def test_a_copied_optimizer_is_rebound_to_the_same_model():
    model, optimizer = make(momentum=0.9)
    projection = pbwn.attach(model, optimizer)
    fresh = torch.optim.SGD(model.parameters(), lr=0.01)
    projection.rebind(fresh)
    step(model, fresh)
    assert on_sphere(model)
    step(model, optimizer)
    assert not on_sphere(model)


def test_rebinding_refuses_an_optimizer_of_other_weights():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    with pytest.raises(ValueError, match=r"hold the model's weight '0\.weight', which is constrained: give it"):
        projection.rebind(copy.deepcopy(optimizer))
    with pytest.raises(ValueError, match="attached to 1 optimizer; got 2"):
        projection.rebind([optimizer, torch.optim.SGD(model.parameters(), lr=0.1)])
    assert projection.check().hooks_in_place


def test_an_average_of_the_weights_is_projected_like_the_model():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(2.0))
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(3):
        step(model, optimizer)
        average.update_parameters(model)
    average.requires_grad_(False)
    head = average.module[4].weight.clone()
    projection.project(average)
    torch.testing.assert_close(average.module[0].weight.norm(dim=1), torch.full((8,), 2.0))
    assert torch.equal(average.module[4].weight, head)
    with pytest.raises(ValueError, match=r"not a copy of the model: it has no weight '0\.weight'"):
        projection.project(nn.Linear(3, 3))


def test_projecting_a_model_once_takes_frozen_weights_too():
    model = make_model().requires_grad_(False)
    selection = pbwn.project_(model)
    assert [weight.name for weight in selection.constrained] == ["0.weight", "2.weight"]
    assert on_sphere(model)
    with pytest.raises(ValueError, match="would change nothing"):
        pbwn.project_(model, constraint=pbwn.UnitNorm(radius="initial"))


def test_what_is_printed_says_what_happens():
    model, optimizer = make()
    printed = str(pbwn.attach(model, optimizer, every=20, gradient="riemannian", backend="torch"))
    assert printed.startswith(
        "UnitNorm(radius=1.0), projected after every 20 steps, riemannian gradient, backend torch"
    )
    assert "0.weight" in printed
    assert "output layer: '4'" in printed


# What hostile use has found


def test_double_attachment_is_refused_however_it_is_tried():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    projection.detach()
    pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(2.0))
    with pytest.raises(ValueError, match="already has a projection attached"):
        projection.rebind(optimizer)
    other = make_model()
    other[0].weight = model[0].weight
    with pytest.raises(ValueError, match="already has a projection attached"):
        pbwn.attach(other, torch.optim.SGD(other.parameters(), lr=0.1))
    fresh, its = make()
    with pytest.raises(ValueError, match="passed twice"):
        pbwn.attach(fresh, [its, its])


class WithScale(torch.optim.SGD):
    def step(self, scale=1.0, closure=None):
        assert scale == 0.5
        return super().step(closure)


def test_an_argument_of_step_that_is_no_closure_is_handed_on():
    model, optimizer = make(WithScale)
    pbwn.attach(model, optimizer, gradient="riemannian")
    backward(model)
    before = model[0].weight.detach().clone()
    optimizer.step(0.5)
    assert float((model[0].weight.grad * before).sum(1).abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("dtype", "constraint", "words"),
    [
        (torch.float16, pbwn.UnitNorm(70000.0), "a norm of 70000.0 is beyond what float16 can hold"),
        (torch.float32, pbwn.UnitNorm(1e-50), "a norm of 1e-50 over 6 weights is below what float32"),
        (torch.float16, pbwn.UnitNorm(1e-4), "a norm of 0.0001 over 6 weights is below what float16"),
        (torch.float16, pbwn.MaxNorm(1e-8), "a norm of 1e-08 over 6 weights is below what float16"),
    ],
)
def test_a_norm_that_the_dtype_cannot_hold_is_refused(dtype, constraint, words):
    model = make_model().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=rf"weight '0\.weight': {words}"):
        pbwn.attach(model, optimizer, constraint=constraint)


def test_a_limit_beyond_the_dtype_limits_nothing():
    model = make_model().to(torch.float16)
    before = copy.deepcopy(model.state_dict())
    pbwn.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), constraint=pbwn.MaxNorm(1e9))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_two_projections_of_one_optimizer_both_complete_the_gradient_inside_a_closure():
    model, optimizer = make()
    pbwn.attach(model, optimizer, gradient="riemannian", skip=["2"])
    pbwn.attach(model, optimizer, gradient="riemannian", skip=["0"])
    before = [layer.weight.detach().clone() for layer in (model[0], model[2])]

    def closure():
        optimizer.zero_grad()
        backward(model)
        return torch.zeros(())

    optimizer.step(closure)
    for layer, weight in zip((model[0], model[2]), before, strict=True):
        assert float((layer.weight.grad * weight).sum(1).abs().max()) < 1e-6


def test_the_users_own_hooks_come_before_and_after_in_the_order_of_their_registration():
    model, optimizer = make()
    seen = []
    optimizer.register_step_post_hook(lambda *_: model[0].weight.data.mul_(2))
    pbwn.attach(model, optimizer)
    optimizer.register_step_post_hook(lambda *_: seen.append(deviation(model)))
    for _ in range(2):
        step(model, optimizer)
    assert max(seen) < 2e-6


def test_weights_that_are_trained_after_all_are_named():
    model, _ = make()
    model[2].requires_grad_(False)
    head_frozen = model[4].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1)
    projection = pbwn.attach(model, optimizer, output_layer="4")
    assert projection.check().ok
    model[2].requires_grad_(True)
    head_frozen.requires_grad_(True)
    optimizer.add_param_group({"params": model[4].parameters()})
    certificate = projection.check()
    assert certificate.unconstrained == ("2.weight",)
    assert (
        "2.weight: trained but not constrained, because it was not trained at attach: call projection.detach()"
        in str(certificate)
    )


def test_weights_that_another_projection_keeps_are_not_named():
    model, _ = make()
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = pbwn.attach(model, optimizer)
    model[2].requires_grad_(True)
    assert first.check().unconstrained == ("2.weight",)
    second = pbwn.attach(model, optimizer, skip=["0"])
    assert first.check().ok
    assert second.check().ok


def test_a_layer_that_is_put_in_later_is_named():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    model.insert(1, nn.Linear(8, 8))
    model.append(nn.Embedding(4, 4))
    assert projection.check().ok  # no optimizer trains them
    optimizer.add_param_group({"params": [*model[1].parameters(), *model[-1].parameters()]})
    assert projection.check().unconstrained == ("1.weight",)


def test_a_weight_that_is_untied_later_is_named():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer)
    model[1].weight = nn.Parameter(model[0].weight.detach() * 3)
    optimizer.add_param_group({"params": [model[1].weight]})
    assert projection.check().unconstrained == ("1.weight",)


def test_an_expanded_weight_is_left_alone():
    model, _ = make()
    model[2].weight = nn.Parameter(torch.randn(1, 8).expand(8, 8))
    selection = pbwn.select(model)
    [left] = [left for left in selection.left_alone if left.name == "2.weight"]
    assert str(left.reason) == "expanded: several of its elements share memory"
    with pytest.raises(ValueError, match="expanded: several of its elements"):
        pbwn.select(model, axes={"2.weight": (0,)})


@pytest.mark.parametrize(
    ("dtype", "size", "backend"),
    [(torch.float32, 1e-41, "torch"), (torch.float32, 1e-41, "numba"), (torch.float16, 1e-7, "torch")],
)
def test_a_neuron_too_small_for_its_dtype_has_no_radius_to_keep(dtype, size, backend):
    model = make_model().to(dtype)
    with torch.no_grad():
        model[0].weight[1] = size
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm("initial"), backend=backend)
    assert projection.state_dict()["radii"]["0.weight"][1] == 0
    optimizer.step()  # before it, weights that have changed would be refused
    with torch.no_grad():
        model[0].weight *= 3
    projection.project()
    assert projection.check().ok
    assert (model[0].weight[1] > size).all()


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_a_gradient_of_another_shape_is_torch_s_error_and_nothing_is_written(backend):
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, gradient="riemannian", backend=backend)
    whole = torch.ones(32, 6)
    model[0].weight.grad = whole[:8]
    model[0].weight.data = torch.randn(16, 6)
    with pytest.raises(RuntimeError, match="size of tensor"):
        optimizer.step()
    assert (whole == 1).all()
    projection.detach()


def test_a_weight_that_is_given_to_the_optimizer_later_is_named():
    model = make_model()
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[4].parameters()], lr=0.1)
    projection = pbwn.attach(model, optimizer)
    assert projection.check().ok
    optimizer.add_param_group({"params": model[2].parameters()})
    assert projection.check().unconstrained == ("2.weight",)


@pytest.mark.parametrize(("options", "named"), [({}, ()), ({"output_layer": None}, ("aux_classifier.weight",))])
def test_a_head_that_is_put_in_later_is_named_only_where_heads_are_constrained(options, named):
    model = nn.Sequential(OrderedDict(body=nn.Linear(6, 8), classifier=nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(nn.ModuleDict({"body": model}), optimizer, **options)
    projection.model.aux_classifier = nn.Linear(8, 3)
    optimizer.add_param_group({"params": projection.model.aux_classifier.parameters()})
    assert projection.check().unconstrained == named
    projection.model.extra = nn.Linear(8, 3)
    optimizer.add_param_group({"params": projection.model.extra.parameters()})
    assert projection.check().unconstrained == (*named, "extra.weight")


def test_a_weight_that_is_gone_is_named_by_the_certificate_and_can_be_printed():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    nn.utils.parametrizations.weight_norm(model[0])
    assert projection.check().gone == ("0.weight",)
    assert "0.weight: removed or parametrized after attach" in str(projection.check())
    assert "0.weight" in str(projection)


def test_the_model_itself_is_no_copy():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, every=5)
    step(model, optimizer)
    assert projection.check().between_projections
    projection.project(model)
    assert not projection.check().between_projections


def test_a_saved_state_is_a_copy():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(radius="initial"))
    projection.state_dict()["radii"]["0.weight"].zero_()
    step(model, optimizer)
    assert projection.check().ok


def test_a_constraint_of_the_wrong_kind_is_refused_when_projecting_once():
    with pytest.raises(TypeError, match=r"pbwn\.UnitNorm"):
        pbwn.project_(make_model(), constraint=2.0)


def test_a_free_neuron_keeps_its_whole_gradient():
    model, optimizer = make()
    with torch.no_grad():
        model[0].weight[2] = 0
        model[0].bias.fill_(1.0)
    pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(radius="initial"), gradient="riemannian")
    with torch.no_grad():
        model[0].weight[2] = torch.randn(6)
    backward(model)
    before = model[0].weight.grad.clone()
    optimizer.step()
    assert torch.equal(model[0].weight.grad[2], before[2])
    assert not torch.equal(model[0].weight.grad[3], before[3])


def test_projecting_in_inference_mode_does_not_spoil_later_steps():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    with torch.inference_mode():
        projection.project()
    step(model, optimizer)
    assert on_sphere(model)


def test_a_default_device_does_not_matter():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    with torch.device("meta"):
        projection.project()
    assert on_sphere(model)


def test_a_weight_that_was_cut_in_place_is_measured_anew():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    projection.project()
    model[0].weight.data = model[0].weight.data[:, :3]
    projection.project()
    assert projection.check().largest_deviation < 2e-6


def test_weights_of_an_earlier_dtype_are_let_go():
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    step(model, optimizer)
    storage = weakref.ref(model[0].weight.untyped_storage())
    model.double()
    projection.project()
    gc.collect()
    assert storage() is None


def test_a_broken_model_is_no_trouble_for_another():
    model, optimizer = make()
    pbwn.attach(model, optimizer)
    nn.utils.parametrizations.spectral_norm(model[0])
    other, its = make()
    assert pbwn.attach(other, its).check().ok


def test_models_can_be_attached_in_several_threads():
    kept, errors = [], []

    def attach_many():
        try:
            for _ in range(40):
                model, optimizer = make()
                kept.append((optimizer, pbwn.attach(model, optimizer, backend="torch")))
        except Exception as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=attach_many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    assert len(kept) == 160


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("out of memory")


def test_a_step_that_raised_keeps_nothing_of_its_callers():
    model, optimizer = make(Failing)
    projection = pbwn.attach(model, optimizer)
    kept = []

    def train():
        batch = torch.randn(4, 6)
        kept.append(weakref.ref(batch))
        optimizer.step()

    with pytest.raises(RuntimeError, match="out of memory"):
        train()
    gc.collect()
    assert kept[0]() is None
    assert projection.check().hooks_in_place


@pytest.fixture
def _no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_garbage_collection")
@pytest.mark.parametrize("gradient", ["ordinary", "riemannian"])
@pytest.mark.parametrize("detached", [False, True])
def test_all_is_freed_with_the_last_reference_without_a_garbage_collection(detached, gradient):
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, gradient=gradient)
    step(model, optimizer)
    if detached:
        projection.detach()
    kept = [weakref.ref(one) for one in (model, optimizer, projection, model[0].weight)]
    del model, optimizer, projection
    assert [one() for one in kept] == [None] * 4


@pytest.mark.usefixtures("_no_garbage_collection")
def test_a_projection_that_nobody_keeps_lives_with_the_optimizer():
    model, optimizer = make()
    projection = weakref.ref(pbwn.attach(model, optimizer, every=2))
    for expected in (False, True):
        step(model, optimizer)
        assert on_sphere(model) is expected
    assert projection().check().ok
    projection().detach()
    assert projection() is None


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("gradient", ["ordinary", "riemannian"])
def test_rows_that_are_zero_at_attach_stay_free_and_are_listed(backend, gradient):
    """As in residual branches that start at zero: a step of 1e-8 would be scaled up to the sphere."""
    model, optimizer = make(lr=1e-8)
    with torch.no_grad():
        model[2].weight[1:3] = 0
    batch = torch.randn(5, 6)
    projection = pbwn.attach(model, optimizer, backend=backend, gradient=gradient)
    before = model(batch).detach()
    for _ in range(3):
        backward(model)
        optimizer.step()
    torch.testing.assert_close(model(batch), before, rtol=0, atol=1e-5)
    certificate = projection.check()
    assert certificate.ok
    assert certificate.free == {"2.weight": (1, 2)}
    assert "note: 2.weight: 2 rows (1, 2) are unconstrained: no norm to keep at attach" in str(certificate)


def test_free_rows_stay_free_in_a_resumed_run():
    model, optimizer = make()
    with torch.no_grad():
        model[2].weight[1] = 0
    projection = pbwn.attach(model, optimizer)
    backward(model)
    optimizer.step()
    state = projection.state_dict()
    projection.detach()
    again = pbwn.attach(model, optimizer, state=state)
    assert again.check().free == {"2.weight": (1,)}
    assert torch.equal(again.state_dict()["radii"]["2.weight"], state["radii"]["2.weight"])


@pytest.mark.parametrize("every", [1, None])
def test_lbfgs_trains_under_the_constraint(every):
    """Its curvature history belongs to unprojected points: kept over projections, the loss went up, or to NaN."""
    torch.manual_seed(0)
    inputs = torch.randn(40, 6)
    targets = torch.sin(inputs.sum(1, keepdim=True))
    for seed in range(4):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, line_search_fn="strong_wolfe")
        projection = pbwn.attach(model, optimizer, every=every)
        losses = []

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            return loss

        for _ in range(15):
            losses.append(optimizer.step(closure).item())
            if every is None:
                projection.project()
        assert projection.check().ok
        assert losses[-1] < 1e-3 * losses[0], losses


class FusedBackward(torch.optim.SGD):
    def fused_backward(self, loss, lr):
        """As LOMO."""


class TwoSteps(torch.optim.SGD):
    """As SAM."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=0.1)

    def second_step(self):
        self.base_optimizer.step()


class TwoStepsAlone(torch.optim.SGD):
    """The same without an optimizer inside."""

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=0.1)


class ScheduleFreeWrapper:
    def __init__(self, base):
        self.base = base
        self.param_groups = base.param_groups


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (lambda base: FusedBackward(base.param_groups, lr=0.1), "FusedBackward moves the weights inside the backward"),
        (
            lambda base: TwoSteps(base.param_groups),
            r"attach to that one, pbwn\.attach\(model, optimizer\.base",
        ),
        (lambda base: TwoStepsAlone(base.param_groups), r"TwoStepsAlone takes its real step in second_step\(\)"),
        (ScheduleFreeWrapper, "trains an average of two iterates"),
        (lambda base: {"a": base}, r"as a list: write list\(optimizers\.values\(\)\)"),
    ],
)
def test_optimizers_whose_steps_cannot_be_followed_are_refused_with_what_to_do(wrap, words):
    model, optimizer = make()
    with pytest.raises(TypeError, match=words):
        pbwn.attach(model, wrap(optimizer))


def test_a_stand_in_projects_after_what_calls_no_hooks():
    model = make_model()
    nn.init.zeros_(model[2].weight)
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    model.append(nn.Linear(3, 3))
    lomo, stand_in = TwoStepsAlone(model[2:].parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0)
    projection = pbwn.attach(model, stand_in)
    for _ in range(3):
        lomo.zero_grad()
        backward(model)
        lomo.second_step()
        stand_in.step()
    assert [weight.name for weight in projection.selection.constrained] == ["4.weight"]
    assert projection.check().ok
    assert projection.state_dict()["steps"] == [3]
    assert torch.equal(model[0].weight, frozen)
    assert model[2].weight.norm() < 0.5


def test_the_optimizer_inside_one_of_two_steps_is_followed():
    model, optimizer = make()
    outer = TwoSteps(optimizer.param_groups)
    projection = pbwn.attach(model, outer.base_optimizer)
    backward(model)
    outer.second_step()
    assert projection.state_dict()["steps"] == [1]
    assert projection.check().ok


class AdamScheduleFree(torch.optim.SGD):
    """Stands for one that keeps a second iterate."""


def test_an_optimizer_with_a_second_iterate_is_named_by_the_certificate():
    model, _ = make()
    optimizer = AdamScheduleFree(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer)
    assert projection.check().ok
    assert "note: AdamScheduleFree keeps a second set of weights, which is not checked" in str(projection.check())


@pytest.mark.parametrize("by_hand", [False, True])
def test_weights_that_are_loaded_after_their_initial_norms_were_measured_are_noticed_before_they_are_scaled_back(
    by_hand,
):
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm("initial"))
    pretrained = {name: 3 * value for name, value in model.state_dict().items()}
    model.load_state_dict(pretrained)
    backward(model)
    with pytest.raises(RuntimeError, match=r"weight '0\.weight' was changed after attach.*Load weights first"):
        projection.project() if by_hand else optimizer.step()
    assert all(torch.equal(value, pretrained[name]) for name, value in model.state_dict().items())
    projection.detach()
    again = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm("initial"))
    optimizer.step()
    assert again.check().ok
    torch.testing.assert_close(model[0].weight.norm(dim=1), pretrained["0.weight"].norm(dim=1))


@pytest.mark.parametrize("name", ["every", "gradient", "backend", "constraint", "selection", "model"])
def test_attributes_that_say_how_it_works_cannot_be_set(name):
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer)
    with pytest.raises(AttributeError):
        setattr(projection, name, None)


@pytest.mark.parametrize(
    ("radius", "expected"),
    [
        ("sqrt-fan-in", {"0.weight": 6**0.5, "2.weight": 8**0.5}),
        ({"0": 2.0}, {"0.weight": 2.0, "2.weight": 1.0}),
        ({"0": 2.0, "2.weight": "sqrt-fan-in"}, {"0.weight": 2.0, "2.weight": 8**0.5}),
        ({"*": 3}, {"0.weight": 3.0, "2.weight": 3.0}),
    ],
    ids=str,
)
def test_radii_are_chosen_by_weight(radius, expected):
    model, optimizer = make()
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(radius))
    backward(model)
    optimizer.step()
    assert projection.check().ok
    for name, norm in expected.items():
        weight = model.get_parameter(name)
        torch.testing.assert_close(weight.norm(dim=1), torch.full((len(weight),), float(norm)))


def test_radii_by_pattern_mix_with_initial_ones():
    model, optimizer = make()
    before = model[2].weight.norm(dim=1)
    projection = pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm({"2": "initial"}))
    backward(model)
    optimizer.step()
    assert projection.check().ok
    torch.testing.assert_close(model[2].weight.norm(dim=1), before)
    assert list(projection.state_dict()["radii"]) == ["2.weight"]


@pytest.mark.parametrize(
    ("radius", "words"),
    [
        ({"nowhere": 2.0}, r"radius=\{'nowhere': \.\.\.\} matches no constrained weight: .*'0\.weight'"),
        ({"0": 2.0, "*.weight": 3.0}, r"weight '0\.weight' is given several radii \('0': 2\.0, '\*\.weight': 3\.0\)"),
        ({}, "radius maps patterns of weight names to radii"),
        ({"0": "large"}, "radius must be a positive number"),
        (
            "large",
            'radius must be a positive number, such as 1.0, "initial", "sqrt-fan-in" or a function of the step; '
            "got 'large'",
        ),
    ],
    ids=str,
)
def test_radii_that_cannot_be_given_are_refused(radius, words):
    model, optimizer = make()
    with pytest.raises(ValueError, match=words):
        pbwn.attach(model, optimizer, constraint=pbwn.UnitNorm(radius))


@pytest.mark.parametrize("options", [{}, {"step": "tangent"}, {"gradient": "riemannian"}], ids=str)
@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_a_detached_projection_keeps_no_memory_of_the_weights(backend, options):
    def tensors_of_this_shape():
        gc.collect()
        return [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and each.shape == (37, 41)]

    model = nn.Sequential(nn.Linear(41, 37), nn.ReLU(), nn.Linear(37, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, backend=backend, **options)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 41)).square().sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    projection.detach()
    model.double()
    assert [each.dtype for each in tensors_of_this_shape()] == [torch.float64]


def test_a_torch_that_keeps_the_history_of_lbfgs_elsewhere_is_noticed():
    class Later(torch.optim.LBFGS):
        def step(self, closure):
            loss = super().step(closure)
            del self.state[self._params[0]]["n_iter"]
            return loss

    model = make_model()
    optimizer = Later(model.parameters(), max_iter=2)
    pbwn.attach(model, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 6)).square().mean()
        loss.backward()
        return loss

    with pytest.warns(UserWarning, match="keeps LBFGS's iteration count elsewhere"):
        optimizer.step(closure)
