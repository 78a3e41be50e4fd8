"""The GPU path in Triton's interpreter, which takes long for each neuron: weights are small and examples few."""

import subprocess
import sys

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import pbwn
from drawing import DTYPES, constrained, laid_out, weights
from pbwn import Axes
from pbwn.backends import paths, triton_kernels
from pbwn.backends.triton_weights import TritonWeights
from pbwn.batched import Batch
from pbwn.projection import project_, tangent_
from twins import projected, tangent, units_in_last_place

UNIT = pbwn.UnitNorm()
# The interpreter computes with numpy, which warns of a division by zero and of an overflow where a GPU gives infinity.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@settings(max_examples=8, phases=[Phase.generate])  # shrinking would take minutes
@given(drawn=weights(), seed=st.integers(0, 2**31))
def test_projection_and_tangent_gradient_are_those_of_the_plain_loop(drawn, seed):
    weight, axes, neurons = drawn
    entry = constrained(torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype).copy_(weight), axes)
    values = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).to(weight.dtype)
    gradient = torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype).copy_(values)
    entry.tensor.grad = gradient
    batch = Batch([entry], UNIT, backend="triton")
    batch.tangent_()
    batch.project_()
    tolerance = 4 * torch.finfo(weight.dtype).eps * max(1.0, float(values.abs().max()))
    torch.testing.assert_close(gradient.double(), tangent(values, weight, neurons), rtol=0, atol=tolerance)
    assert units_in_last_place(entry.tensor, projected(weight, neurons)) <= 4


KINDS = [
    (Axes((0,)), (3, 3000), "contiguous"),
    (Axes((0,)), (3, 5, 3, 3), "channels last"),
    (Axes((1,)), (50, 3), "contiguous"),
    (Axes((1,)), (5, 3, 3, 3), "contiguous"),
    (Axes((1,), groups=2), (4, 2, 3, 3), "contiguous"),
    (Axes((0,)), (3, 30), "sliced"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_equals_the_reference_in_one_launch_for_all(dtype):
    entries, befores = [], []
    for index, (axes, shape, layout) in enumerate(KINDS):
        weight = laid_out((torch.randn(shape) * 3).to(dtype), layout)
        befores.append(weight.clone())
        entries.append(constrained(weight, axes, str(index)))
    Batch(entries, UNIT, backend="triton").project_()
    for entry, before in zip(entries, befores, strict=True):
        assert units_in_last_place(entry.tensor, project_(before.double(), entry.axes)) <= 4


def extreme(dtype):
    weight = torch.randn(7, 6).to(dtype)
    weight[1], weight[2] = 0, float("nan")
    weight[3, 2], weight[4, 1] = float("inf"), float("-inf")
    weight[5] *= torch.finfo(dtype).max / 16
    weight[6] *= torch.finfo(dtype).tiny * 4
    return weight


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_rows_are_projected_and_zero_and_broken_rows_are_left(dtype):
    weight, gradient = extreme(dtype), torch.randn(7, 6).to(dtype)
    entry = constrained(weight.clone(), Axes((0,)))
    entry.tensor.grad = gradient.clone()
    batch = Batch([entry], UNIT, backend="triton")
    batch.tangent_()
    batch.project_()
    expected = project_(weight.double(), Axes((0,)))
    for row in range(7):
        if row in (1, 2, 3, 4):
            assert torch.equal(entry.tensor[row].nan_to_num(7, 8, 9), weight[row].nan_to_num(7, 8, 9))
            assert torch.equal(entry.tensor.grad[row], gradient[row])
        else:
            assert units_in_last_place(entry.tensor[row], expected[row]) <= 4
    assert entry.tensor.grad.isfinite().all()


def test_bfloat16_is_rounded_to_nearest_and_not_cut_off():
    weight = torch.randn(6, 40).bfloat16()
    entry = constrained(weight.clone(), Axes((0,)))
    Batch([entry], UNIT, backend="triton").project_()
    expected = weight.double() / weight.double().norm(dim=1, keepdim=True)
    assert torch.equal(entry.tensor, expected.float().bfloat16())
    tie = constrained(torch.eye(2).bfloat16(), Axes((0,)))
    Batch([tie], pbwn.UnitNorm(1 + 2**-8), backend="triton").project_()
    assert torch.equal(tie.tensor, torch.eye(2).bfloat16())
    assert not torch.equal(
        entry.tensor, (expected.float().view(torch.int32) >> 16 << 16).view(torch.float32).bfloat16()
    )


def test_a_ball_and_radii_of_each_neuron_and_free_neurons_are_kept():
    weight = torch.randn(4, 6) * torch.tensor([0.1, 1.0, 3.0, 30.0])[:, None]
    ball = constrained(weight.clone(), Axes((0,)))
    Batch([ball], pbwn.MaxNorm(2.0), backend="triton").project_()
    assert units_in_last_place(ball.tensor, project_(weight.double(), Axes((0,)), pbwn.MaxNorm(2.0))) <= 4
    assert torch.equal(ball.tensor[0], weight[0])
    radii = torch.tensor([0.5, 0.0, 2.0, 7.0], dtype=torch.float64)
    sphere, gradient = constrained(weight.clone(), Axes((0,))), torch.randn(4, 6)
    sphere.tensor.grad = gradient.clone()
    batch = Batch([sphere], pbwn.UnitNorm("initial"), {"weight": radii}, backend="triton")
    batch.tangent_()
    batch.project_()
    expected = project_(weight.double(), Axes((0,)), pbwn.UnitNorm("initial"), radii=radii)
    assert units_in_last_place(sphere.tensor, expected) <= 4
    torch.testing.assert_close(sphere.tensor.grad, tangent_(gradient, weight, Axes((0,)), radii=radii))
    assert torch.equal(sphere.tensor[1], weight[1])


class Counted:
    """A kernel that counts its launches."""

    def __init__(self, kernel):
        self.kernel, self.launches = kernel, 0

    def __getitem__(self, grid):
        self.launches += 1
        return self.kernel[grid]


def test_a_step_of_a_whole_network_is_one_launch_for_the_gradient_and_one_for_the_projection(monkeypatch):
    project, tangents = Counted(triton_kernels.project_kernel), Counted(triton_kernels.tangent_kernel)
    monkeypatch.setattr(triton_kernels, "project_kernel", project)
    monkeypatch.setattr(triton_kernels, "tangent_kernel", tangents)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, gradient="riemannian", backend="triton")
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    assert (project.launches, tangents.launches) == (1, 1)  # naive: two or three per layer
    assert projection.check().ok
    assert "backend triton\n" in str(projection)


def test_autograd_notices_that_a_weight_was_written_to():
    entry = constrained(torch.randn(2, 3), Axes((0,)))
    result = (entry.tensor * entry.tensor).sum()
    Batch([entry], UNIT, backend="triton").project_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_a_gradient_with_other_strides_and_one_that_is_missing_are_served_too():
    entries = [constrained(torch.randn(3, 3), Axes((0,)), name) for name in "ab"]
    gradient = torch.randn(3, 3)
    entries[0].tensor.grad = gradient.t().clone().t()
    Batch(entries, UNIT, backend="triton").tangent_()
    torch.testing.assert_close(entries[0].tensor.grad, tangent_(gradient, entries[0].tensor, Axes((0,))))
    assert entries[1].tensor.grad is None


def test_without_the_interpreter_a_weight_on_the_cpu_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="backend=\"triton\" cannot serve weight 'weight': it is on cpu"):
        paths([constrained(torch.randn(3, 3), Axes((0,)))], "triton")


def test_a_dtype_that_is_not_served_is_named():
    assert "torch.int32" in TritonWeights.obstacle(torch.zeros(3, 3, dtype=torch.int32), Axes((0,)))


COMPILE = """
import warnings, torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pbwn.backends import triton_kernels
from pbwn.backends.triton_weights import DTYPES

tables = {"table": "*i64", "num_weights": "i32"}
arguments = {
    "project_kernel": tables | {"radii": "*fp64", "radius": "*fp64"},
    "tangent_kernel": tables | {"gradients": "*i64", "radii": "*fp64"},
}
dtype = torch.bfloat16
for name, signature in arguments.items():
    chosen = {"own_radii": True, "stored_type": DTYPES[dtype], "is_bfloat16": dtype == torch.bfloat16, "block": 128}
    if name == "project_kernel":
        chosen["is_ball"] = True
    kernel = getattr(triton_kernels, name)
    source = ASTSource(fn=kernel, signature=signature | dict.fromkeys(chosen, "constexpr"), constexprs=chosen)
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32))
    print(name, "ptx" in compiled.asm)
"""


def test_the_kernels_compile_for_a_gpu_that_is_not_here(tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert done.stdout == "project_kernel True\ntangent_kernel True\n", done.stderr
