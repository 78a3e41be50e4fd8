"""One norm for each whole matrix: which matrices a weight holds, on every path, sharded and resumed."""

import copy
from collections import OrderedDict
from itertools import product

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.pytorch_utils import Conv1D

import pbwn
from counting import Counting
from drawing import constrained
from pbwn import Axes, functional
from pbwn.paths.batch import Batch, paths
from processes import run_on_processes


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 5))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 18)


class GroupedQueries(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 16)  # 8 rows of queries, 4 of keys, 4 of values


class GPT2Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_attn = Conv1D(3 * width, width)  # stored (in, out)


class LinearAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)


def packed(weight, count):
    return weight.detach().view(count, -1).norm(dim=1)


@pytest.mark.parametrize(
    ("module", "name", "norms"),
    [
        (lambda: nn.Linear(4, 6), "weight", 1),
        (lambda: nn.Conv2d(4, 6, 3, groups=2), "weight", 1),
        (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), "weight", 1),
        (lambda: nn.MultiheadAttention(6, 2), "in_proj_weight", 3),
        (lambda: nn.MultiheadAttention(6, 2, kdim=3, vdim=4), "k_proj_weight", 1),
        (lambda: nn.LSTM(5, 6), "weight_hh_l0", 4),
        (lambda: nn.LSTM(5, 6, proj_size=3), "weight_hr_l0", 1),
        (lambda: nn.GRU(5, 6, bidirectional=True), "weight_ih_l0_reverse", 3),
        (lambda: nn.RNN(5, 6), "weight_ih_l0", 1),
        (lambda: nn.GRUCell(5, 6), "weight_ih", 3),
        (Block, "qkv.weight", 3),
        (GroupedQueries, "qkv.weight", 1),
        (Experts, "weight", 3),
    ],
)
def test_a_weight_is_as_many_matrices_as_are_packed_or_stacked_in_it(module, name, norms):
    model = nn.ModuleDict({"layer": module()})
    axes = {"layer.weight": (0, 1)} if isinstance(model["layer"], Experts) else None
    selection = pbwn.project_(model, per="matrix", output_layer=None, axes=axes)
    [weight] = [each for each in selection.constrained if each.name == f"layer.{name}"]
    assert weight.neurons == norms
    torch.testing.assert_close(packed(weight.tensor, norms), torch.ones(norms))


@pytest.mark.parametrize("direction", ["incoming", "outgoing"])
@pytest.mark.parametrize("width", [8, 9])
@pytest.mark.parametrize(("attention", "outputs"), [(GPT2Attention, 1), (LinearAttention, 0)])
def test_queries_keys_and_values_are_told_apart_along_the_outputs(attention, outputs, width, direction):
    model = attention(width)
    selection = pbwn.project_(model, per="matrix", direction=direction, output_layer=None)
    assert str(selection.constrained[0].axes) == "3 packed matrices"
    norms = torch.stack([each.norm() for each in model.c_attn.weight.detach().chunk(3, outputs)])
    torch.testing.assert_close(norms, torch.ones(3))


def test_matrices_packed_along_the_second_dimension_train_and_resume():
    model = GPT2Attention(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, per="matrix", output_layer=None, constraint=pbwn.UnitNorm("initial"))
    before = projection.state_dict()
    model.c_attn(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()
    assert projection.check().ok
    projection.load_state_dict(before)
    other = {**before, "weights": {"c_attn.weight": {"neurons": [], "groups": 3}}}
    with pytest.raises(ValueError, match="axes"):
        projection.load_state_dict(other)


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 5), (300, 400), (3, 2, 5, 5)])
def test_every_path_projects_whole_matrices(shape, dtype, backend):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = weight.double() / weight.double().norm()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 8e-3}[dtype]
    entry = constrained(weight.clone(), Axes(()))
    entry.tensor.grad = torch.randn(shape).to(dtype)
    tangent = functional.tangent_(entry.tensor.grad.double(), weight, Axes(()))
    assert paths([entry], backend) == [backend]
    batch = Batch([entry], pbwn.UnitNorm(), backend=backend)
    batch.tangent_()
    torch.testing.assert_close(entry.tensor.grad.double(), tangent, rtol=0, atol=4 * tolerance)
    batch.project_()
    torch.testing.assert_close(entry.tensor.detach().double(), expected, rtol=0, atol=tolerance)


def test_matrix_norms_ask_no_more_of_an_accelerator_than_neuron_norms():
    with FakeTensorMode():
        weights = [constrained(torch.empty(512, 512, device="cuda"), Axes(()), str(index)) for index in range(5)]
        batch = Batch(weights, pbwn.UnitNorm())
        batch.project_()
        with Counting() as counting:
            batch.project_()
    assert len(counting.counts.operations) <= 3 * 5 + 12
    assert counting.counts.bytes_moved <= 12.5 * 5 * 512 * 512
    assert counting.counts.largest_allocation <= 64


def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def make_with_packed_columns():
    torch.manual_seed(0)
    layers = {"c_attn": Conv1D(18, 6), "activation": nn.Tanh(), "out": nn.Linear(18, 2)}
    return nn.Sequential(OrderedDict(layers))


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        batch = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(batch) - batch[:, :2]).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("step", ["plain", "tangent", "angle"])
@pytest.mark.parametrize("radius", [1.0, "initial", "sqrt-fan-in"])
def test_matrices_of_any_radius_train_with_any_step_and_resume_bit_for_bit(step, radius):
    def begin():
        model = make()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    options = {"per": "matrix", "step": step, "constraint": pbwn.UnitNorm(radius)}
    model, optimizer = begin()
    projection = pbwn.attach(model, optimizer, **options)
    train(model, optimizer, 7)
    assert projection.check().ok
    first, its_optimizer = begin()
    attached = pbwn.attach(first, its_optimizer, **options)
    train(first, its_optimizer, 4)
    saved = copy.deepcopy((first.state_dict(), its_optimizer.state_dict(), attached.state_dict()))
    again, new_optimizer = begin()
    again.load_state_dict(saved[0])
    new_optimizer.load_state_dict(saved[1])
    pbwn.attach(again, new_optimizer, state=saved[2], **options)
    train(again, new_optimizer, 3, first=4)
    for left, right in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_state_of_neurons_is_refused_for_matrices():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = pbwn.attach(model, optimizer)
    state = first.state_dict()
    first.detach()
    with pytest.raises(ValueError, match=r"axes neurons \[0\], groups 1 for 0\.weight, this projection whole matrix"):
        pbwn.attach(model, optimizer, per="matrix", state=state)


def sharded_matrices_equal_those_of_one_process():
    from torch.distributed.fsdp import fully_shard

    for step, build in product(("plain", "tangent", "angle"), (make, make_with_packed_columns)):
        alone, model = build(), build()
        fully_shard(model)
        for each in (alone, model):
            optimizer = torch.optim.Adam(each.parameters(), lr=0.01)
            projection = pbwn.attach(each, optimizer, per="matrix", step=step, gradient="riemannian")
            train(each, optimizer, 4)
            assert projection.check().ok
        for left, right in zip(alone.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(right.full_tensor(), left, rtol=0, atol=1e-5)


def test_sharded_matrices():
    run_on_processes(sharded_matrices_equal_those_of_one_process)
