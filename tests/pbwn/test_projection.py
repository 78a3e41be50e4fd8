"""The reference and the fast path against plain loops in float64, over layers, strides, dtypes and extreme values."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import pbwn
from drawing import DTYPES, constrained, weights
from pbwn import Axes
from pbwn.certificate import certify
from pbwn.functional import project_, row_norms, tangent_
from pbwn.paths.batch import Batch, paths
from twins import projected, tangent, units_in_last_place


@given(weights())
def test_every_path_gives_the_rounded_result_of_the_plain_loop(drawn):
    weight, axes, neurons = drawn
    expected = projected(weight, neurons)
    for path in ("reference", "fast"):
        copy = torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype).copy_(weight)
        layout = copy.stride()
        entry = constrained(copy, axes)
        pointer = entry.tensor.data_ptr()
        if path == "reference":
            project_(entry.tensor, axes)
        else:
            Batch([entry], pbwn.UnitNorm()).project_()
        assert entry.tensor.stride() == layout
        assert entry.tensor.data_ptr() == pointer
        rounded_once = path == "reference" and weight.dtype != torch.float64
        assert units_in_last_place(entry.tensor, expected) <= (1 if rounded_once else 4), path
        [report] = certify([entry], pbwn.UnitNorm(), {})
        assert report.deviation <= report.tolerance


@given(weights(), st.integers(0, 2**31))
def test_the_tangent_gradient_is_that_of_the_plain_loop(drawn, seed):
    weight, axes, neurons = drawn
    gradient = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).to(weight.dtype)
    expected = tangent(gradient, weight, neurons)
    found = tangent_(gradient.clone(), weight, axes)
    tolerance = 2 * torch.finfo(weight.dtype).eps * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


@given(st.lists(weights(), min_size=1, max_size=4))
def test_projecting_many_weights_together_equals_projecting_each(drawn):
    together = [constrained(weight.clone(), axes, f"weight{i}") for i, (weight, axes, _) in enumerate(drawn)]
    apart = [constrained(weight.clone(), axes) for weight, axes, _ in drawn]
    Batch(together, pbwn.UnitNorm()).project_()
    for one in apart:
        Batch([one], pbwn.UnitNorm()).project_()
    for left, right in zip(together, apart, strict=True):
        assert torch.equal(left.tensor, right.tensor)


@pytest.mark.parametrize("path", ["reference", "fast"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_zero_rows_and_broken_rows_stay_and_the_rest_is_projected(dtype, bad, path):
    weight = torch.randn(5, 4).to(dtype)
    weight[1] = 0
    weight[3, 2] = bad
    before = weight.clone()
    if path == "reference":
        project_(weight, Axes((0,)))
    else:
        Batch([constrained(weight, Axes((0,)))], pbwn.UnitNorm()).project_()
    for row in (1, 3):
        assert torch.equal(weight[row].nan_to_num(7, 8, 9), before[row].nan_to_num(7, 8, 9))
    assert weight[[0, 2, 4]].isfinite().all()
    torch.testing.assert_close(row_norms(weight, Axes((0,)))[[0, 2, 4]], torch.ones(3).double(), rtol=0, atol=8e-3)


def test_a_broken_gradient_or_weight_leaves_its_row_of_the_gradient_alone():
    weight, gradient = torch.randn(4, 3), torch.randn(4, 3)
    weight[0, 0], weight[1] = float("nan"), 0
    gradient[2, 1] = float("inf")
    found = tangent_(gradient.clone(), weight, Axes((0,)))
    assert torch.equal(found[:3], gradient[:3])
    assert not torch.equal(found[3], gradient[3])


@pytest.mark.parametrize("path", ["reference", "fast"])
def test_max_norm_shortens_long_rows_and_leaves_the_others_bit_for_bit(path):
    weight = torch.randn(6, 5) * torch.tensor([0.1, 0.5, 1.0, 3.0, 1e30, 0.0])[:, None]
    before = weight.clone()
    constraint = pbwn.MaxNorm(2.0)
    if path == "reference":
        project_(weight, Axes((0,)), constraint)
    else:
        Batch([constrained(weight, Axes((0,)))], constraint).project_()
    inside = before.double().norm(dim=1) <= 2.0
    assert inside.any()
    assert not inside.all()
    assert torch.equal(weight[inside], before[inside])
    torch.testing.assert_close(weight[~inside].norm(dim=1), torch.full((int((~inside).sum()),), 2.0))


@pytest.mark.parametrize("axes", [Axes((0,)), Axes((1,))])
@pytest.mark.parametrize("length", [4_096, 300_000])
def test_norms_of_long_rows_are_right_to_the_last_digits(axes, length):
    """Rounding errors of equal elements beside a larger one all have one sign."""
    row = [0.31] + [0.1] * (length - 1)
    weight = torch.tensor([row, row], dtype=torch.float64)
    found = row_norms(weight if axes == Axes((0,)) else weight.t().contiguous(), axes)
    expected = math.sqrt(math.fsum(number * number for number in row))
    assert found.tolist() == pytest.approx([expected] * 2, rel=1e-15)


@pytest.mark.parametrize("limit", [2.0, 49.0, 0.7, 1e-3])
def test_a_row_within_the_limit_stays_bit_for_bit_in_float64_too(limit):
    """49 * (1 / 49) is not 1: a factor of one must not come from a reciprocal."""
    weight = torch.rand(6, 5, dtype=torch.float64)
    weight *= limit / weight.norm(dim=1, keepdim=True) * torch.tensor([0.1, 0.5, 0.9, 0.99, 0.0, 2.0])[:, None]
    before = weight.clone()
    project_(weight, Axes((0,)), pbwn.MaxNorm(limit))
    assert torch.equal(weight[:5], before[:5])
    assert not torch.equal(weight[5], before[5])


@given(st.sampled_from(DTYPES), st.floats(0.01, 100))
@example(torch.float32, 1.0)
def test_rows_on_the_sphere_to_rounding_are_left_bit_for_bit_when_settling(dtype, radius):
    weight = torch.randn(8, 40).to(dtype)
    constraint = pbwn.UnitNorm(radius)
    entry = constrained(weight, Axes((0,)))
    Batch([entry], constraint).project_()
    with torch.no_grad():
        entry.tensor[3] *= 1.5
    once = entry.tensor.detach().clone()
    Batch([entry], constraint).project_deviating_()
    settled = [row for row in range(8) if row != 3]
    assert torch.equal(entry.tensor[settled], once[settled])
    assert not torch.equal(entry.tensor[3], once[3])


@pytest.mark.parametrize("length", [0, -1.0, float("nan"), float("inf"), True, "big", torch.ones(3).numpy(), int])
def test_a_length_that_is_none_is_refused(length):
    with pytest.raises(ValueError, match="radius must be a positive number"):
        pbwn.UnitNorm(length)
    with pytest.raises(ValueError, match="limit must be a positive number"):
        pbwn.MaxNorm(length)


def test_empty_weights_are_no_trouble():
    entries = [constrained(torch.zeros(0, 3), Axes((0,)), "a"), constrained(torch.zeros(3, 0), Axes((0,)), "b")]
    Batch(entries, pbwn.UnitNorm()).project_()
    assert [report.deviation for report in certify(entries, pbwn.UnitNorm(), {})] == [0.0, 0.0]


@pytest.mark.parametrize("path", ["reference", "fast"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((4, 300_000), Axes((0,))),
        ((300_000, 4), Axes((1,))),
        ((7, 100_003), Axes((0,))),
        ((512, 16, 4, 4), Axes((1,))),
        ((2, 7168, 16), Axes((0, 2))),
        ((4, 256, 512), Axes((0,))),
    ],
)
def test_long_rows_are_as_exact_as_short_ones(shape, axes, path):
    for memory_format in (torch.contiguous_format, torch.channels_last)[: 2 if len(shape) == 4 else 1]:
        weight = torch.randn(shape).to(memory_format=memory_format)
        entry = constrained(weight, axes)
        expected = project_(weight.double(), axes)
        if path == "reference":
            project_(entry.tensor, axes)
        else:
            Batch([entry], pbwn.UnitNorm()).project_()
        is_exact = path == "reference" or paths([entry], "auto") == ["numba"]
        assert units_in_last_place(entry.tensor, expected) <= (
            4 if is_exact else 84
        )  # 84 units are the 1e-5 of check()
