"""Every path against plain loops in float64: layers, strides, dtypes, extreme values, constraints and gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pbwn
from drawing import constrained, laid_out, weights
from pbwn import Axes, functional
from pbwn.functional import project_, row_norms, tangent_
from pbwn.paths.batch import Batch, paths
from twins import neurons_of, projected, tangent, units_in_last_place

BACKENDS = ["torch", "numba"]
UNIT = pbwn.UnitNorm()


def served(entries, backend):
    """A backend for these weights: the one under test, or whichever takes its place where it cannot serve."""
    try:
        paths(entries if isinstance(entries, list) else [entries], backend)
    except ValueError:
        return "auto"
    return backend


def units(entry, backend):
    """How many units in the last place a path may be off; 84 units of float32 are the 1e-5 that check() allows."""
    return 4 if paths([entry], served(entry, backend)) == ["numba"] else 84


def same_layout(weight):
    return torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype).copy_(weight)


@pytest.mark.parametrize(("weight_size", "gradient_size"), [(1.0, 1e37), (1e10, 1e30), (1e13, 1e26)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_products_beyond_float32_are_made_tangent_too(backend, weight_size, gradient_size):
    weight, gradient = weight_size * torch.randn(4, 64), gradient_size * torch.randn(4, 64)
    entry = constrained(weight, Axes((0,)))
    entry.tensor.grad = gradient.clone()
    expected = tangent_(gradient.clone(), weight, Axes((0,)))
    Batch([entry], UNIT, backend=served(entry, backend)).tangent_()
    torch.testing.assert_close(entry.tensor.grad, expected, rtol=1e-5, atol=1e-6 * gradient_size)


@pytest.mark.parametrize(
    ("backend", "radius", "units"), [("torch", 1.0, 84), ("torch", 2.7, 84), ("numba", 1.0, 4), ("numba", 2.7, 4)]
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_rows_of_equal_elements_whose_rounding_errs_one_way_stay_near(backend, radius, units, memory_format):
    values = torch.rand(64, generator=torch.Generator().manual_seed(0)) + 0.5
    for channels in (1, 7, 28, 30, 32, 53, 64, 120, 127, 128, 141, 512, 640, 2048):
        weight = values.view(-1, 1, 1, 1).repeat(1, channels, 3, 3).contiguous(memory_format=memory_format)
        expected = radius * weight.double() / weight.double().flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        entry = constrained(weight, Axes((0,)))
        Batch([entry], pbwn.UnitNorm(radius), backend=served(entry, backend)).project_()
        assert units_in_last_place(entry.tensor, expected) <= units, channels


@pytest.mark.parametrize(
    ("backend", "radius", "units"), [("torch", 1.0, 84), ("torch", 1.9, 84), ("numba", 1.0, 4), ("numba", 1.9, 4)]
)
@pytest.mark.parametrize("length", [94, 127, 190, 235, 238, 261, 270, 707, 1027, 1048, 1280, 4352])
def test_rows_of_equal_elements_of_awkward_lengths_stay_nearly_as_near(backend, radius, units, length):
    weight = (1 + torch.arange(1500) / 1500).view(-1, 1).repeat(1, length)
    entry = constrained(weight, Axes((0,)))
    Batch([entry], pbwn.UnitNorm(radius), backend=served(entry, backend)).project_()
    expected = torch.full((1500, 1), radius / length**0.5, dtype=torch.float64)
    assert units_in_last_place(entry.tensor[:, :1], expected) <= units


@pytest.mark.parametrize(("backend", "units"), [("torch", 8), ("numba", 4)])
@pytest.mark.parametrize("length", [27, 61, 79, 157, 239, 253, 256, 270, 364, 707, 709, 768, 888])
def test_of_ten_thousand_random_rows_none_is_more_than_a_few_units_off(backend, units, length):
    weight = torch.randn(10_000, length, generator=torch.Generator().manual_seed(length))
    entry = constrained(weight.clone(), Axes((0,)))
    Batch([entry], UNIT, backend=served(entry, backend)).project_()
    expected = weight.double() / weight.double().square().sum(1, keepdim=True).sqrt()
    assert units_in_last_place(entry.tensor, expected) <= units


@pytest.mark.parametrize("shape", [(20, 30, 7, 7), (2, 30, 16, 18), (3, 4, 17, 17), (5, 1, 27, 12)])
@pytest.mark.parametrize("axes", [Axes((0,)), Axes((1,)), Axes((0, 1))])
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "transposed", "sliced"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_in_several_stretches_of_memory_are_measured_whole(backend, layout, axes, shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    entry = constrained(laid_out(weight.clone(), layout), axes)
    Batch([entry], UNIT, backend=served(entry, backend)).project_()
    assert units_in_last_place(entry.tensor, project_(weight.double(), axes)) <= units(entry, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("axes", [Axes((0,)), Axes((1,))])
def test_rows_with_an_entry_that_swallows_the_others_stay_near(backend, axes):
    generator = torch.Generator().manual_seed(0)
    for length in (64, 144, 288, 576, 768, 2048, 4608):
        rows = (0.5 + torch.rand(400, 1, generator=generator) / 2).repeat(1, length)
        rows[:, 0] *= torch.exp2(11 * torch.rand(400, generator=generator))
        entry = constrained(rows.clone() if axes == Axes((0,)) else rows.t().contiguous(), axes)
        Batch([entry], UNIT, backend=served(entry, backend)).project_()
        expected = rows.double() / rows.double().square().sum(1, keepdim=True).sqrt()
        assert units_in_last_place(axes.rows(entry.tensor), expected) <= units(entry, backend), length


@pytest.mark.parametrize("backend", BACKENDS)
def test_initial_radii_beyond_float32_s_reach_of_a_small_row_write_no_infinity(backend):
    weight = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    entry = constrained(weight * 1e-10, Axes((0,)))
    radii = {entry.name: torch.full((4,), 1e30, dtype=torch.float64)}
    Batch([entry], pbwn.UnitNorm("initial"), radii, backend=served(entry, backend)).project_()
    torch.testing.assert_close(entry.tensor.double().norm(dim=1), torch.full((4,), 1e30, dtype=torch.float64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("radius", [1e-37, 1e-20, 1e20, 1e37])
@pytest.mark.parametrize("scale", [1e-10, 1.0, 1e10])
def test_an_extreme_radius_is_reached_from_anywhere(backend, radius, scale):
    weight = torch.randn(5, 30, generator=torch.Generator().manual_seed(0)) * scale
    entry = constrained(weight.clone(), Axes((0,)))
    Batch([entry], pbwn.UnitNorm(radius), backend=served(entry, backend)).project_()
    torch.testing.assert_close(
        entry.tensor.double().norm(dim=1) / radius, torch.ones(5, dtype=torch.float64), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("backend", BACKENDS)
@given(drawn=weights())
def test_a_projection_is_within_four_units_of_the_plain_loop_in_float64(backend, drawn):
    weight, axes, neurons = drawn
    entry = constrained(same_layout(weight), axes)
    pointer = entry.tensor.data_ptr()
    Batch([entry], UNIT, backend=served(entry, backend)).project_()
    assert entry.tensor.stride() == weight.stride()
    assert entry.tensor.data_ptr() == pointer
    assert units_in_last_place(entry.tensor, projected(weight, neurons)) <= 4


LARGE = [
    (Axes((0,)), (3, 20_000), "contiguous"),
    (Axes((0,)), (40, 16, 3, 3), "contiguous"),
    (Axes((0,)), (40, 16, 3, 3), "channels last"),
    (Axes((0,)), (70, 300), "sliced"),
    (Axes((1,)), (3000, 300), "contiguous"),
    (Axes((1,)), (3000, 7), "contiguous"),
    (Axes((1,)), (24, 10, 5, 5), "contiguous"),
    (Axes((1,)), (512, 8, 5, 5), "contiguous"),
    (Axes((1,)), (512, 8, 5, 5), "channels last"),
    (Axes((1,)), (24, 10, 5, 5), "channels last"),
    (Axes((1,), groups=4), (24, 10, 5, 5), "contiguous"),
    (Axes((0, 1)), (4, 30, 50), "contiguous"),
    (Axes((0, 2)), (4, 30, 50), "contiguous"),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("axes", "shape", "layout"), LARGE)
def test_long_rows_and_many_neurons_are_as_exact_as_small_ones(axes, shape, layout, dtype, backend):
    weight = laid_out((torch.randn(shape, dtype=torch.float64) * 3).to(dtype), layout)
    rows = axes.rows(weight).flatten(axes.neuron_dims).flatten(0, -2).double()
    norms = [math.sqrt(math.fsum(number * number for number in row)) for row in rows.tolist()]
    entry = constrained(same_layout(weight), axes)
    Batch([entry], UNIT, backend=served(entry, backend)).project_()
    found = axes.rows(entry.tensor).flatten(axes.neuron_dims).flatten(0, -2)
    assert units_in_last_place(found, rows / torch.tensor(norms, dtype=torch.float64)[:, None]) <= units(entry, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@given(drawn=weights(), seed=st.integers(0, 2**31), restrided=st.booleans())
def test_a_tangent_gradient_is_that_of_the_plain_loop_whatever_its_strides(backend, drawn, seed, restrided):
    weight, axes, neurons = drawn
    values = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).to(weight.dtype)
    gradient = values.clone() if restrided else same_layout(weight).copy_(values)
    entry = constrained(same_layout(weight), axes)
    entry.tensor.grad = gradient
    Batch([entry], UNIT, backend=served(entry, backend)).tangent_()
    assert entry.tensor.grad is gradient
    expected = tangent(values, weight, neurons)
    tolerance = 4 * torch.finfo(weight.dtype).eps * max(1.0, float(values.abs().max()))
    torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("axes", "shape", "layout"), LARGE)
def test_tangent_gradients_of_large_weights_equal_the_reference(axes, shape, layout, dtype, backend):
    weight = laid_out(torch.randn(shape).to(dtype), layout)
    gradient = same_layout(weight).copy_(torch.randn(shape))
    expected = tangent_(gradient.clone().double(), weight.double(), axes)
    entry = constrained(weight, axes)
    entry.tensor.grad = gradient
    Batch([entry], UNIT, backend=served(entry, backend)).tangent_()
    tolerance = 2 * torch.finfo(dtype).eps * float(expected.abs().max())
    torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=tolerance)


def bits_of(tensor):
    """The bits, with one for every NaN: torch's conversions do not keep apart the many that there are."""
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()]
    return tensor.view(whole).where(~tensor.isnan(), 7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("axes", [Axes((0,)), Axes((1,))])
@pytest.mark.parametrize("bits", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_zero_rows_and_rows_that_are_not_finite_stay_as_they_are(bad, bits, axes, backend):
    weight = torch.randn(6, 6).to(bits)
    rows = axes.rows(weight)
    rows[1], rows[2] = 0, -0.0
    rows[4, 3] = bad
    before = weight.clone()
    gradient = torch.randn(6, 6).to(bits)
    gradient_before = gradient.clone()
    entry = constrained(weight, axes)
    entry.tensor.grad = gradient
    batch = Batch([entry], UNIT, backend=served(entry, backend))
    batch.tangent_()
    batch.project_()
    for row in (1, 2, 4):
        for found, old in ((weight, before), (gradient, gradient_before)):
            assert torch.equal(axes.rows(bits_of(found))[row], axes.rows(bits_of(old))[row])
    for row in (0, 3, 5):
        assert not torch.equal(axes.rows(gradient)[row], axes.rows(gradient_before)[row])
    torch.testing.assert_close(row_norms(weight, axes)[[0, 3, 5]], torch.ones(3).double(), rtol=0, atol=8e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("axes", [Axes((0,)), Axes((1,))])
def test_max_norm_shortens_long_rows_and_leaves_the_others_bit_for_bit(axes, backend):
    weight = torch.randn(6, 6)
    axes.rows(weight).mul_(torch.tensor([0.1, 0.5, 1.0, 3.0, 1e30, 0.0])[:, None])
    before = weight.clone()
    entry = constrained(weight, axes)
    Batch([entry], pbwn.MaxNorm(2.0), backend=served(entry, backend)).project_()
    inside = row_norms(before, axes) <= 2.0
    assert inside.any()
    assert not inside.all()
    assert torch.equal(axes.rows(weight)[inside], axes.rows(before)[inside])
    expected = project_(before.clone(), axes, pbwn.MaxNorm(2.0)).double()
    assert units_in_last_place(weight, expected) <= 4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("axes", [Axes((0,)), Axes((1,)), Axes((1,), groups=2)])
def test_each_neuron_keeps_its_own_radius_and_one_without_is_free(axes, backend):
    tensors = [torch.randn(6, 4, 3, 3), torch.randn(6, 4, 3, 3)]
    entries = [constrained(tensor, axes, f"weight{index}") for index, tensor in enumerate(tensors)]
    radii = {entry.name: torch.rand(axes.neuron_shape((6, 4, 3, 3))).double() + 0.1 for entry in entries}
    radii["weight1"].view(-1)[1] = 0
    before = [tensor.clone() for tensor in tensors]
    gradients = [torch.randn(6, 4, 3, 3) for _ in tensors]
    for entry, gradient in zip(entries, gradients, strict=True):
        entry.tensor.grad = gradient.clone()
    batch = Batch(entries, pbwn.UnitNorm("initial"), radii, backend=served(entries, backend))
    batch.tangent_()
    batch.project_()
    for entry, start, gradient in zip(entries, before, gradients, strict=True):
        own = radii[entry.name]
        expected = project_(start.double(), axes, pbwn.UnitNorm("initial"), radii=own)
        assert units_in_last_place(entry.tensor, expected) <= 4
        tangent_gradient = tangent_(gradient.clone(), start, axes, radii=own)
        torch.testing.assert_close(entry.tensor.grad, tangent_gradient, rtol=0, atol=1e-6)
    free = axes.rows(tensors[1]).flatten(axes.neuron_dims).flatten(0, -2)[1]
    assert torch.equal(free, axes.rows(before[1]).flatten(axes.neuron_dims).flatten(0, -2)[1])


@pytest.mark.parametrize("axes", [Axes((0,)), Axes((1,)), Axes((1,), groups=2), Axes((0, 1))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_that_is_worked_through_in_blocks_is_projected_as_one_that_is_not(axes, dtype, monkeypatch):
    monkeypatch.setattr(functional, "_BLOCK", 64)
    shape = (6, 4, 3, 3)
    before, gradient = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    sizes = torch.ones(axes.neuron_shape(shape))
    sizes.view(-1)[1], sizes.view(-1)[3] = 0, 1e25
    axes.rows(before).mul_(sizes.view(*sizes.shape, *(1,) * (axes.rows(before).ndim - sizes.ndim)))
    radii = torch.rand(axes.neuron_shape(shape)).double() + 0.1
    radii.view(-1)[2] = 0
    entry = constrained(before.clone(), axes)
    entry.tensor.grad = gradient.clone()
    batch = Batch([entry], pbwn.UnitNorm("initial"), {entry.name: radii}, backend="torch")
    batch.tangent_()
    batch.project_()
    expected = tangent_(gradient.double(), before, axes, radii=radii)
    torch.testing.assert_close(entry.tensor.grad.double(), expected, rtol=0, atol=8 * torch.finfo(dtype).eps)
    expected = project_(before.double(), axes, pbwn.UnitNorm("initial"), radii=radii)
    assert units_in_last_place(entry.tensor, expected) <= 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_of_several_kinds_are_projected_together_as_each_alone(backend):
    def fresh():
        torch.manual_seed(1)
        kinds = [
            (Axes((0,)), torch.randn(20, 30)),
            (Axes((1,)), torch.randn(20, 30)),
            (Axes((0,)), torch.randn(8, 4, 3, 3, dtype=torch.float64)),
            (Axes((0,)), torch.randn(8, 40).bfloat16()),
            (Axes((1,), groups=2), torch.randn(8, 4, 3, 3)),
            (Axes((0,)), torch.randn(7, 157)),
            (Axes((0,)), torch.randn(9, 288)),
            (Axes((0,)), torch.randn(3, 157)),
            (Axes((0,)), torch.randn(5, 4608)),
            (Axes((0,)), torch.randn(6, 576)),
            (Axes((0,)), torch.randn(4, 288)),
            (Axes((0, 1)), torch.randn(3, 5, 4)),
        ]
        return [constrained(tensor, axes, str(index)) for index, (axes, tensor) in enumerate(kinds)]

    together, apart = fresh(), fresh()
    Batch(together, UNIT, backend="auto" if backend == "numba" else backend).project_()
    for entry in apart:
        Batch([entry], UNIT, backend=served(entry, backend)).project_()
    for left, right in zip(together, apart, strict=True):
        assert torch.equal(left.tensor, right.tensor)


def transposed_in_place(parameter):
    parameter.data = parameter.data.t()


def replaced(parameter):
    parameter.data = torch.randn(5, 5) * 3


def widened(parameter):
    parameter.data = parameter.data.double() * 2


def shortened(parameter):
    parameter.data = parameter.data[:3]


def swapped(parameter):
    torch.utils.swap_tensors(parameter, nn.Parameter(torch.randn(5, 5) * 3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("change", [transposed_in_place, replaced, widened, shortened, swapped])
def test_a_weight_that_was_moved_or_reshaped_between_calls_is_found_again(change, backend):
    entry = constrained(torch.randn(5, 5), Axes((0,)))
    batch = Batch([entry], UNIT, backend="auto" if backend == "numba" else backend)
    batch.project_()
    with torch.no_grad():
        entry.tensor.mul_(3)
    change(entry.tensor)
    outside = entry.tensor.detach().clone()
    batch.project_()
    expected = projected(outside, neurons_of(tuple(outside.shape), (0,)))
    assert units_in_last_place(entry.tensor, expected) <= 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_that_a_shortened_weight_no_longer_covers_is_not_written(backend):
    memory = torch.randn(5, 5)
    entry = constrained(memory, Axes((0,)))
    batch = Batch([entry], UNIT, backend=served(entry, backend))
    batch.project_()
    memory *= 3
    before = memory.clone()
    shortened(entry.tensor)
    batch.project_()
    assert not torch.equal(memory[:3], before[:3])
    assert torch.equal(memory[3:], before[3:])


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_weight_whose_bits_mean_another_dtype_now_is_read_as_that(backend):
    entry = constrained(torch.randn(5, 5).bfloat16(), Axes((0,)))
    batch = Batch([entry], UNIT, backend=served(entry, backend))
    batch.project_()
    entry.tensor.data = entry.tensor.data.view(torch.float16)
    batch.project_()
    torch.testing.assert_close(entry.tensor.float().norm(dim=1), torch.ones(5), rtol=0, atol=2e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("axes", [Axes((0,)), Axes((1,))])
def test_rows_of_every_size_that_the_dtype_holds_are_exact(axes, dtype, backend):
    scales = torch.tensor([10.0**power for power in range(-36, 37)], dtype=torch.float64)
    rows = (torch.randn(73, 40, dtype=torch.float64) * scales[:, None]).to(dtype)
    weight = rows.clone() if axes == Axes((0,)) else rows.T.contiguous()
    entry = constrained(weight, axes)
    Batch([entry], UNIT, backend=served(entry, backend)).project_()
    norms = rows.double().norm(dim=1, keepdim=True)
    assert units_in_last_place(axes.rows(weight), rows.double() / norms) <= 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_that_took_the_place_of_another_is_the_one_projected(backend):
    entry = constrained(torch.randn(5, 5), Axes((0,)))
    batch = Batch([entry], UNIT, backend=served(entry, backend))
    batch.project_()
    old = entry.tensor.detach().clone()
    previous = entry.tensor
    entry.module.weight = nn.Parameter(torch.randn(5, 5))
    batch.project_()
    assert torch.equal(previous, old)
    assert units_in_last_place(entry.tensor.norm(dim=1), torch.ones(5).double()) <= 4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operation", ["project_", "tangent_"])
def test_autograd_notices_that_a_tensor_it_keeps_was_written_to(operation, backend):
    entry = constrained(torch.randn(5, 5), Axes((0,)))
    entry.tensor.grad = torch.randn(5, 5, requires_grad=True)
    kept = entry.tensor if operation == "project_" else entry.tensor.grad
    result = (kept * kept).sum()
    with torch.no_grad():
        getattr(Batch([entry], UNIT, backend=served(entry, backend)), operation)()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_weights_that_share_memory_are_projected_one_after_the_other():
    memory = torch.randn(6, 8) * 5
    entries = [
        constrained(memory, Axes((0,)), "whole"),
        constrained(memory[:3], Axes((0,)), "half"),
        constrained(torch.randn(6, 8), Axes((0,)), "other"),
    ]
    Batch(entries, UNIT).project_()
    for entry in entries:
        torch.testing.assert_close(entry.tensor.norm(dim=1), torch.ones(entry.shape[0]))
    assert paths(entries, "auto") == ["torch", "torch", "numba"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_without_a_gradient_is_passed_over(backend):
    entries = [constrained(torch.randn(4, 4), Axes((0,)), name) for name in "abc"]
    entries[1].tensor.grad = torch.ones(4, 4)
    Batch(entries, UNIT, backend=backend).tangent_()
    assert entries[0].tensor.grad is None
    along = (entries[1].tensor * entries[1].tensor.grad).sum(1)
    torch.testing.assert_close(along, torch.zeros(4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_projection_attached_by_name_of_its_backend_trains_on_the_sphere(backend):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projection = pbwn.attach(model, optimizer, gradient="riemannian", backend=backend)
    for _ in range(3):
        model(torch.randn(5, 6)).square().sum().backward()
        optimizer.step()
    assert projection.check().ok
    assert f"backend {backend}\n" in str(projection)


def two_with_radii():
    entries = [constrained(torch.randn(4, 5), Axes((0,)), name) for name in ("first", "second")]
    return entries, {entry.name: row_norms(entry.tensor, entry.axes) for entry in entries}


@pytest.mark.parametrize("operation", ["project_", "tangent_"])
@pytest.mark.parametrize("backend", [*BACKENDS, "compile"])
@pytest.mark.parametrize("rows", [3, 4000])
def test_a_weight_whose_neurons_are_not_those_of_its_radii_is_refused_by_name(rows, backend, operation):
    entries, radii = two_with_radii()
    batch = Batch(entries, pbwn.UnitNorm("initial"), radii, backend=backend)
    entries[0].tensor.data = torch.randn(rows, 5)
    for entry in entries:
        entry.tensor.grad = torch.ones_like(entry.tensor)
    before = entries[1].tensor.detach().clone()
    with pytest.raises(RuntimeError, match=rf"weight 'first' has neurons of shape \({rows},\).*\(4,\).*attach again"):
        getattr(batch, operation)()
    assert torch.equal(entries[1].tensor, before)
    assert torch.equal(entries[1].tensor.grad, torch.ones(4, 5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_radii_that_one_weight_lacks_are_not_taken_from_another(backend):
    entries, radii = two_with_radii()
    del radii["first"]
    with pytest.raises(ValueError, match=r"radius='initial'\) needs the radii of the weight's own neurons"):
        Batch(entries, pbwn.UnitNorm("initial"), radii, backend=backend).project_()
    Batch(entries, UNIT, backend=backend).project_()  # a fixed radius asks for none
    for entry in entries:
        torch.testing.assert_close(entry.tensor.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_cast_to_a_dtype_that_cannot_hold_the_radius_is_refused(backend):
    entry = constrained(torch.randn(4, 5), Axes((0,)))
    batch = Batch([entry], pbwn.UnitNorm(1e5), backend="auto" if backend == "numba" else backend)
    batch.project_()
    entry.tensor.data = torch.randn(4, 5).half()
    with pytest.raises(ValueError, match=r"weight 'weight': a norm of 100000\.0 is beyond what float16 can hold"):
        batch.project_()
    assert entry.tensor.isfinite().all()
