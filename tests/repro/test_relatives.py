"""The relatives of PBWN: each against its equations in float64, in the limits where it is something known."""

import copy
import importlib.util
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

import pbwn
from pbwn.functional import tangent_
from pbwn_repro import models
from pbwn_repro.config import SGD, Adam
from pbwn_repro.engine.state import load_optimizer, pack
from pbwn_repro.errors import UsageError
from pbwn_repro.methods import METHODS, method
from pbwn_repro.methods.path_sgd import PathSGD, chain, path_norms
from pbwn_repro.methods.reparametrizations import OrthonormalRows, num_groups, orthonormal
from pbwn_repro.methods.spheres import SGDG, AdamG, clipped, exponential, tangent, transported

ROWS = (1,)


def unit(*shape, seed=0):
    rows = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return rows / rows.norm(dim=1, keepdim=True)


def two_layers(seed=0, bias=True):
    torch.manual_seed(seed)
    layers = nn.Linear(6, 8, bias=bias), nn.ReLU(), nn.Linear(8, 7, bias=bias), nn.ReLU(), nn.Linear(7, 3, bias=bias)
    return nn.Sequential(*layers).double()


def batches(count):
    numbers = torch.Generator().manual_seed(1)
    for _ in range(count):
        inputs = torch.randn(16, 6, dtype=torch.float64, generator=numbers)
        yield inputs, inputs[:, :3].argmax(1)


def train(model, optimizer, count):
    losses = []
    for inputs, labels in batches(count):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def made(name, model, layers=None, **sgd):
    chosen, layers = method(name), {"output_layer": None} if layers is None else layers
    chosen.prepare(model, layers)
    optimizer = chosen.optimizer(model, SGD(**{"lr": 0.1, "momentum": 0.0, **sgd}), layers)
    assert chosen.attach(model, optimizer, layers) is None
    return optimizer


# --- great circles


@given(
    rows=st.integers(1, 5),
    fan_in=st.integers(2, 9),
    length=st.floats(0, 3, allow_subnormal=False),
    seed=st.integers(0, 99),
)
def test_the_exponential_map_walks_a_great_circle_of_the_given_length(rows, fan_in, length, seed):
    y = unit(rows, fan_in, seed=seed)
    d = tangent(y, unit(rows, fan_in, seed=seed + 1), ROWS)
    norms = d.norm(dim=1, keepdim=True)
    d = torch.where(norms > 1e-3, d / norms, torch.zeros_like(d)) * length
    moved = exponential(y, d, ROWS)
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(rows, dtype=torch.float64))
    angles = torch.atan2((moved - (y * moved).sum(1, keepdim=True) * y).norm(dim=1), (y * moved).sum(1))
    torch.testing.assert_close(angles, d.norm(dim=1), atol=1e-7, rtol=1e-7)
    carried = transported(y, d, ROWS)
    torch.testing.assert_close(carried.norm(dim=1), d.norm(dim=1))
    torch.testing.assert_close((carried * moved).sum(1), torch.zeros(rows, dtype=torch.float64), atol=1e-12, rtol=0)


def test_transport_is_the_derivative_of_the_exponential_map_along_its_own_circle():
    y = unit(3, 5)
    d = 0.7 * tangent(y, unit(3, 5, seed=1), ROWS)
    small = 1e-6
    forward, backward = (exponential(y, d * (1 + sign * small), ROWS) for sign in (1, -1))
    torch.testing.assert_close((forward - backward) / (2 * small), transported(y, d, ROWS), atol=1e-8, rtol=1e-8)


def test_a_gradient_is_clipped_neuron_by_neuron():
    rows = torch.tensor([[3.0, 4.0], [0.03, 0.04], [0.0, 0.0]])
    expected = torch.tensor([[0.06, 0.08], [0.03, 0.04], [0.0, 0.0]])
    torch.testing.assert_close(clipped(rows, 0.1, ROWS), expected)
    assert clipped(rows, None, ROWS) is rows


def test_sgd_g_without_momentum_is_riemannian_sgd_with_the_exponential_map():
    model = two_layers()
    optimizer = made("sgd-g-unclipped", model, lr=0.3)
    for inputs, labels in batches(5):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        expected = []
        for layer in model[::2]:
            w = layer.weight.detach()
            step = -0.3 * tangent_(layer.weight.grad.clone(), w, pbwn.Axes((0,)))
            angle = step.norm(dim=1, keepdim=True)
            expected.append(w * angle.cos() + step / angle.clamp_min(1e-300) * angle.sin())
        optimizer.step()
        for layer, wanted in zip(model[::2], expected, strict=True):
            torch.testing.assert_close(layer.weight.detach(), wanted, atol=1e-12, rtol=1e-12)


def test_sgd_g_with_small_steps_is_pbwn_with_the_riemannian_gradient():
    runs = []
    for name in ("sgd-g-unclipped", "pbwn-riem"):
        model = two_layers(bias=False)
        chosen, layers = method(name), {"output_layer": None}
        chosen.prepare(model, layers)
        optimizer = chosen.optimizer(model, SGD(lr=1e-4, momentum=0.0), layers)
        chosen.attach(model, optimizer, layers)
        before = model[0].weight.detach().clone()
        train(model, optimizer, 4)
        runs.append((before, model[0].weight.detach() - before))
    torch.testing.assert_close(*(before for before, _ in runs), atol=1e-12, rtol=0)
    torch.testing.assert_close(*(moved for _, moved in runs), atol=1e-12, rtol=1e-6)


def test_three_steps_of_sgd_g_are_those_of_a_plain_loop_over_neurons():
    y = nn.Parameter(unit(3, 5))
    points, momenta = list(y.detach().clone()), [torch.zeros(5).double()] * 3
    optimizer = SGDG([{"params": [y], "dims": ROWS}], lr=0.5, momentum=0.8, clip=0.3)
    for count in range(1, 4):
        y.grad = unit(3, 5, seed=count)
        for row in range(3):
            point, gradient = points[row], y.grad[row]
            h = gradient - point.dot(gradient) * point
            d = 0.8 * momenta[row] - 0.5 * h * min(1.0, 0.3 / h.norm().item())
            angle, direction = d.norm(), d / d.norm()
            points[row] = point * angle.cos() + direction * angle.sin()
            momenta[row] = angle * (direction * angle.cos() - point * angle.sin())
        optimizer.step()
        torch.testing.assert_close(y.detach(), torch.stack(points), atol=1e-12, rtol=0)
        torch.testing.assert_close(optimizer.state[y]["momentum_buffer"], torch.stack(momenta), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("name", "clip"), [("sgd-g", 0.1), ("sgd-g-unclipped", None), ("adam-g", 0.1)])
def test_gradients_are_clipped_as_published(name, clip):
    spheres, _ = made(name, two_layers()).param_groups
    assert spheres["clip"] == clip
    assert (spheres.get("beta2", 0.99), spheres.get("epsilon", 1e-8)) == (0.99, 1e-8)


def test_the_momentum_of_sgd_g_turns_with_the_point_and_stays_tangent():
    model = two_layers()
    optimizer = made("sgd-g", model, momentum=0.9, lr=1.0)
    train(model, optimizer, 30)
    for layer in model[::2]:
        buffer = optimizer.state[layer.weight]["momentum_buffer"]
        assert buffer.norm() > 0.1
        torch.testing.assert_close(
            (buffer * layer.weight).sum(1), torch.zeros(len(buffer)).double(), atol=1e-12, rtol=0
        )
        torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(len(buffer)).double())


def test_one_step_of_adam_g_is_as_written():
    """The first step: m = (1 - b1) h, v = (1 - b2) h.h, so that d = -lr h / |h| up to epsilon."""
    y = nn.Parameter(unit(4, 6))
    start, y.grad = y.detach().clone(), unit(4, 6, seed=3)
    optimizer = AdamG([{"params": [y], "dims": ROWS}], lr=0.2, clip=None)
    optimizer.step()
    h = tangent(start, y.grad, ROWS)
    torch.testing.assert_close(
        y.detach(), exponential(start, -0.2 * h / h.norm(dim=1, keepdim=True), ROWS), atol=1e-6, rtol=0
    )


def test_three_steps_of_adam_g_are_those_of_a_plain_loop_over_neurons():
    y = nn.Parameter(unit(3, 5))
    points, first, second = list(y.detach().clone()), [torch.zeros(5).double()] * 3, [0.0] * 3
    optimizer = AdamG([{"params": [y], "dims": ROWS}], lr=0.05, momentum=0.8, beta2=0.97, clip=0.3)
    for count in range(1, 4):
        y.grad = unit(3, 5, seed=count)
        for row in range(3):
            point, gradient = points[row], y.grad[row]
            h = gradient - point.dot(gradient) * point
            h = h * min(1.0, 0.3 / h.norm().item())
            first[row] = 0.8 * first[row] + 0.2 * h
            second[row] = 0.97 * second[row] + 0.03 * h.dot(h).item()
            scale = math.sqrt(1 - 0.97**count) / (1 - 0.8**count) / math.sqrt(second[row] + 1e-8)
            d = -0.05 * scale * first[row]
            angle, direction = d.norm(), d / d.norm()
            points[row] = point * angle.cos() + direction * angle.sin()
            along = first[row].dot(direction)
            first[row] = first[row] + along * (direction * (angle.cos() - 1) - point * angle.sin())
        optimizer.step()
        torch.testing.assert_close(y.detach(), torch.stack(points), atol=1e-12, rtol=0)
        torch.testing.assert_close(optimizer.state[y]["first"], torch.stack(first), atol=1e-12, rtol=0)


def test_a_rate_of_zero_leaves_everything_where_it_is_and_finite():
    y = nn.Parameter(unit(3, 5))
    start = y.detach().clone()
    optimizer = AdamG([{"params": [y], "dims": ROWS}], lr=0.0)
    for seed in (1, 2):
        y.grad = unit(3, 5, seed=seed)
        optimizer.step()
    torch.testing.assert_close(y.detach(), start)
    assert optimizer.state[y]["first"].isfinite().all()


@pytest.mark.parametrize("name", ["sgd-g", "adam-g"])
def test_weights_that_are_not_constrained_have_the_smaller_rate_and_the_decay(name):
    model = two_layers()
    optimizer = made(name, model, lr=0.2, weight_decay=0.5)
    spheres, others = optimizer.param_groups
    assert len(spheres["params"]) == len(others["params"]) == 3
    bias = model[0].bias.detach().clone()
    for inputs, labels in batches(1):
        functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    factor = {"sgd-g": 0.05, "adam-g": 0.2}[name]
    torch.testing.assert_close(model[0].bias, bias - 0.2 * factor * (model[0].bias.grad + 0.5 * bias))


def test_the_parameters_beside_the_spheres_move_as_torch_s_sgd_moves_them():
    values = [torch.randn(4), torch.randn(4)]
    ours, theirs = ([nn.Parameter(value.clone()) for value in values] for _ in range(2))
    usual = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
    optimizers = SGDG([{"params": ours}], **usual), torch.optim.SGD(theirs, **usual)
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(4)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["sgd-g", "sgd-g-unclipped", "adam-g", "path-sgd"])
def test_an_optimizer_that_is_saved_and_loaded_goes_on_bit_for_bit(name):
    sgd = {"lr": 1e-3} if name == "path-sgd" else {"momentum": 0.9}
    model = two_layers()
    optimizer = made(name, model, **sgd)
    train(model, optimizer, 3)
    again = copy.deepcopy(model)
    resumed = method(name).optimizer(again, SGD(**{"lr": 0.1, "momentum": 0.0, **sgd}), {"output_layer": None})
    load_optimizer(again, resumed, pack(model, optimizer, {}, {})["optimizer.pt"])
    assert train(model, optimizer, 3) == train(again, resumed, 3)


def test_convolutions_stay_on_their_spheres_whatever_their_layout():
    model = models.build("resnet-8").to(memory_format=torch.channels_last)
    layers = models.find("resnet-8").layers()
    optimizer = made("sgd-g", model, layers, momentum=0.9)
    for _ in range(2):
        model(torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)).square().mean().backward()
        optimizer.step()
    for weight in pbwn.select(model, **layers).constrained:
        torch.testing.assert_close(weight.tensor.flatten(1).norm(dim=1), torch.ones(len(weight.tensor)))
        assert weight.tensor.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["sgd-g", "adam-g", "path-sgd"])
def test_a_method_that_is_an_optimizer_refuses_the_settings_of_adam(name):
    model = two_layers()
    with pytest.raises(UsageError, match=r"pass --set optimizer\.kind=sgd"):
        method(name).optimizer(model, Adam(), {"output_layer": None})


def test_geoopt_is_asked_for_by_name_where_it_is_missing():
    if importlib.util.find_spec("geoopt"):
        pytest.skip("geoopt is installed")
    with pytest.raises(UsageError, match="geoopt-rsgd needs geoopt, which is not installed: pip install geoopt"):
        method("geoopt-rsgd").prepare(two_layers(), {"output_layer": None})


def test_geoopt_s_optimizer_without_momentum_is_pbwn_riem():
    pytest.importorskip("geoopt")
    runs = []
    for name in ("geoopt-rsgd", "pbwn-riem"):
        model, chosen, layers = two_layers(), method(name), {"output_layer": None}
        chosen.prepare(model, layers)
        optimizer = chosen.optimizer(model, SGD(lr=0.1, momentum=0.0), layers)
        chosen.attach(model, optimizer, layers)
        runs.append(train(model, optimizer, 4))
    assert runs[0] == pytest.approx(runs[1], rel=1e-6)


# --- orthogonal weight normalisation


@settings(deadline=None)
@given(groups=st.integers(1, 3), rows=st.integers(1, 4), more=st.integers(1, 5), seed=st.integers(0, 99))
def test_the_rows_of_each_group_are_orthonormal_and_centred(groups, rows, more, seed):
    torch.manual_seed(seed)
    made = OrthonormalRows(groups)(torch.randn(groups * rows, rows + more, dtype=torch.float64))
    for part in made.chunk(groups):
        torch.testing.assert_close(part @ part.T, torch.eye(rows).double(), atol=1e-8, rtol=0)
    torch.testing.assert_close(made.sum(1), torch.zeros(groups * rows).double(), atol=1e-10, rtol=0)


def test_what_is_orthonormal_already_is_left_as_it_is():
    orthogonal = torch.linalg.qr(torch.randn(1, 6, 3, dtype=torch.float64)).Q.mT
    torch.testing.assert_close(orthonormal(orthogonal), orthogonal)


def test_it_is_the_matrix_with_orthonormal_rows_that_is_nearest():
    """The polar factor, which the singular value decomposition gives too."""
    rows = torch.randn(2, 4, 7, dtype=torch.float64)
    left, _, right = torch.linalg.svd(rows, full_matrices=False)
    torch.testing.assert_close(orthonormal(rows), left @ right)


@pytest.mark.parametrize("degenerate", [False, True])
def test_the_gradient_of_the_whitening_is_right_also_where_eigenvalues_agree(degenerate):
    torch.manual_seed(0)
    rows = torch.eye(5, dtype=torch.float64)[None, :3] * 2 if degenerate else torch.randn(2, 3, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(orthonormal, rows.requires_grad_())


def test_groups_are_few_and_no_larger_than_asked_for():
    for rows in (10, 16, 64, 250, 750, 97, 67, 127, 1):
        count = num_groups(rows, 64)
        assert -(-rows // count) <= 64
        assert count < 2 * -(-rows // 64)
    with pytest.raises(UsageError, match="rows of one element"):
        num_groups(4, 0)


def test_the_last_group_may_be_smaller():
    made = OrthonormalRows(num_groups(97, 64))(torch.randn(97, 80))
    for group in (made[:49], made[49:]):
        torch.testing.assert_close(group @ group.T, torch.eye(len(group)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", [torch.ones(1, 2, 5), torch.zeros(1, 2, 5)])
def test_rows_that_depend_on_each_other_give_finite_weights_and_gradients(rows):
    rows = (rows * torch.arange(5.0)).requires_grad_()
    made = orthonormal(rows)
    made.sum().backward()
    assert made.isfinite().all()
    assert rows.grad.isfinite().all()


@pytest.mark.parametrize("name", ["wn", "own", "decay", "sgd-g", "unit-start"])
def test_a_method_that_finds_no_weights_says_so_instead_of_training_plainly(name):
    model, chosen = nn.Sequential(nn.Linear(3, 2)), method(name)

    def begin():
        chosen.prepare(model, {})
        chosen.optimizer(model, SGD(lr=0.1), {})

    with pytest.raises(ValueError, match="nothing to"):
        begin()


@pytest.mark.parametrize(("network", "count"), [("mlp", 4), ("resnet-8", 7)])
def test_own_constrains_the_layers_that_pbwn_does(network, count):
    model, layers = models.build(network), models.find(network).layers()
    method("own").prepare(model, layers)
    wrapped = [module for module in model.modules() if parametrize.is_parametrized(module)]
    assert len(wrapped) == count
    for module in wrapped:
        rows = module.weight.detach().flatten(1)
        groups = module.parametrizations.weight[0].groups
        assert groups == num_groups(len(rows), min(64, rows.shape[1] - 1))  # 64, as the authors have it
        group = len(rows) // groups
        torch.testing.assert_close(rows[:group] @ rows[:group].T, torch.eye(group), atol=1e-4, rtol=0)


# --- path-SGD


def test_path_norms_are_those_of_all_paths_one_by_one():
    model = two_layers()
    weights, biases = [layer.weight.detach() for layer in model[::2]], [layer.bias.detach() for layer in model[::2]]
    below, above = path_norms(weights, biases)
    squares = [weight.square() for weight in weights]
    for i, j, k in [(0, 0, 0), (5, 7, 6), (2, 3, 1)]:
        through = squares[0][j, i] * squares[1][k, j] * squares[2][:, k].sum()
        assert below[0][i] * squares[0][j, i] * (squares[1][k, j] * above[1][k]) == pytest.approx(through.item())
    into = squares[0].sum(1) + biases[0].square()
    torch.testing.assert_close(below[1], into)
    torch.testing.assert_close(below[2], squares[1] @ into + biases[1].square())
    torch.testing.assert_close(above[0], squares[1].T @ squares[2].sum(0))


def test_path_norms_are_the_gradient_of_the_sum_over_all_paths():
    """k of a weight is the derivative of the path regulariser by its square: autograd finds it in one pass each way."""
    model = two_layers()
    parameters = [parameter.detach().square().requires_grad_() for parameter in chain(model)]
    names = [name for name, _ in model.named_parameters()]
    total = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), torch.ones(6).double()).sum()
    gradients = torch.autograd.grad(total, parameters)
    below, above = path_norms([each.detach() for each in model.parameters()][::2], list(model.parameters())[1::2])
    for s, t, of_weight, of_bias in zip(below, above, gradients[::2], gradients[1::2], strict=True):
        torch.testing.assert_close(of_weight, torch.outer(t, s).detach())
        torch.testing.assert_close(of_bias, t.detach())


def rescaled(model):
    """The same function: what goes into each hidden unit times c, what leaves it divided by c."""
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        for below, above in ((scaled[0], scaled[2]), (scaled[2], scaled[4])):
            factors = torch.logspace(-2, 2, below.out_features, dtype=torch.float64)
            below.weight.mul_(factors[:, None])
            below.bias.mul_(factors)
            above.weight.div_(factors)
    return scaled


def test_path_sgd_has_the_same_losses_from_two_scaled_starts_and_sgd_has_not():
    model = two_layers()
    other = rescaled(model)
    curves = []
    for each in (model, other):
        trained = copy.deepcopy(each)
        curves.append(train(trained, PathSGD(chain(trained), lr=0.05), 40))
    assert curves[0] == pytest.approx(curves[1], rel=1e-9)
    assert curves[0][-1] < curves[0][0]
    plain = []
    for each in (model, other):
        trained = copy.deepcopy(each)
        plain.append(train(trained, torch.optim.SGD(trained.parameters(), lr=1e-4), 20))
    assert plain[0] != pytest.approx(plain[1], rel=1e-3)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: models.build("resnet-8"), "ResNet has a Conv2d"),
        (lambda: models.build("mlp", normalisation="batch"), "MLP has a BatchNorm1d"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2)), "Sequential has another structure"),
        (lambda: nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3)), "Sequential has another structure"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3)), "Sequential has a Tanh"),
    ],
)
def test_path_sgd_refuses_what_is_no_chain_of_linear_layers(model, words):
    with pytest.raises(UsageError, match=words):
        chain(model())


def test_path_sgd_refuses_momentum():
    with pytest.raises(UsageError, match="path-sgd is plain SGD"):
        method("path-sgd").optimizer(two_layers(), SGD(lr=0.1, momentum=0.9), {"output_layer": None})


# --- the others


def test_decay_is_that_of_the_matrices_alone_and_without_any_it_is_normal():
    losses = {}
    for name, decay in (("normal", 0.0), ("decay", 0.0), ("decay", 0.1)):
        model = two_layers()
        optimizer = made(name, model, weight_decay=decay, momentum=0.9)
        losses[name, decay] = train(model, optimizer, 4)
    assert losses["normal", 0.0] == losses["decay", 0.0] != losses["decay", 0.1]
    decays = {
        parameter.ndim: group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]
    }
    assert decays == {2: 0.1, 1: 0.0}


def test_outgoing_weights_have_unit_norm():
    model, layers = two_layers(), {"output_layer": None}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method("pbwn-outgoing").attach(model, optimizer, layers)
    train(model, optimizer, 2)
    for layer in model[::2]:
        torch.testing.assert_close(layer.weight.norm(dim=0), torch.ones(layer.in_features).double())


def test_initial_radii_are_kept():
    model, layers = two_layers(), {"output_layer": None}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.detach().clone()
    method("pbwn-initial").attach(model, optimizer, layers)
    assert torch.equal(model[0].weight, before)
    train(model, optimizer, 2)
    torch.testing.assert_close(model[0].weight.norm(dim=1), before.norm(dim=1))
    assert not torch.allclose(model[0].weight, before)


def test_each_method_says_what_it_does():
    said = [each.about for each in METHODS.values()]
    assert all(said)
    assert len(set(said)) == len(said) - 1  # SGD-G and Adam-G move alike
