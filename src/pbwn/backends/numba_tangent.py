"""The compiled loops of the Riemannian gradient, one pass over each row and its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import carray

from pbwn.backends.numba_kernels import (
    BFLOAT16,
    COLUMNS,
    COUNT,
    FLOAT32,
    FLOAT64,
    GRADIENTS,
    INNER,
    INNER_STRIDE,
    JOB_SIZE,
    KIND,
    MOST_COLUMNS,
    NEXT,
    NUM_TASKS,
    OUTER,
    OUTER_STRIDE,
    STRIDE,
    STRIDED,
    TASK_SIZE,
    TASKS,
    WEIGHTS,
    careful_norm,
    converted,
    inlined,
    numbers,
    pointer,
    radii_of,
    rounded,
    size_of,
    stack,
    start_of,
    take_next,
)

_BLOCK = 512  # sums are formed in blocks, so that rounding does not grow with the length of a row
_SAFE_DOUBLES = 1e-280, 1e280  # sums of squares within these bounds are right in float64


@inlined
def _sums_of_products(row: Any, slopes: Any) -> tuple[float, float]:
    """The square of a row, and its inner product with its gradient."""
    total, dot = 0.0, 0.0
    for first in range(0, row.size, _BLOCK):
        total_part, dot_part = 0.0, 0.0
        for index in range(first, min(first + _BLOCK, row.size)):
            value = converted(row[index], 0.0)
            total_part += value * value
            dot_part += value * converted(slopes[index], 0.0)
        total += total_part
        dot += dot_part
    return total, dot


@inlined
def _subtract(slopes: Any, row: Any, coefficient: float) -> None:
    for index in range(row.size):
        tangent = converted(slopes[index], 0.0) - coefficient * converted(row[index], 0.0)
        slopes[index] = rounded(tangent, slopes[index])


@inlined
def _make_neuron_tangent(start: int, slope: int, blocks: int, step: int, count: int, stride: Any, dtype: Any) -> None:
    """Make the gradient at `slope` tangent to the sphere of the neuron at `start`."""
    total, dot = 0.0, 0.0
    for block in range(blocks):
        row = numbers(start + block * step, count, stride, dtype)
        total_part, dot_part = _sums_of_products(row, numbers(slope + block * step, count, stride, dtype))
        total += total_part
        dot += dot_part
    coefficient = dot / total
    if not _SAFE_DOUBLES[0] < total < _SAFE_DOUBLES[1]:
        norm = careful_norm(start, blocks, step, count, stride, dtype)
        coefficient = dot / norm / norm
    if coefficient != 0.0 and math.isfinite(coefficient):
        for block in range(blocks):
            row = numbers(start + block * step, count, stride, dtype)
            _subtract(numbers(slope + block * step, count, stride, dtype), row, coefficient)


@inlined
def _add_products(totals: Any, dots: Any, line: Any, slopes: Any) -> None:
    for column in range(line.size):
        value = converted(line[column], 0.0)
        totals[column] += value * value
        dots[column] += value * converted(slopes[column], 0.0)


@inlined
def _subtract_each(slopes: Any, line: Any, coefficients: Any) -> None:
    for column in range(line.size):
        tangent = converted(slopes[column], 0.0) - coefficients[column] * converted(line[column], 0.0)
        slopes[column] = rounded(tangent, slopes[column])


@inlined
def _subtract_some(slopes: Any, line: Any, coefficients: Any) -> None:
    """The same where some columns are to keep every bit. It is slower: their numbers must not be written."""
    for column in range(line.size):
        if coefficients[column] != 0.0:
            tangent = converted(slopes[column], 0.0) - coefficients[column] * converted(line[column], 0.0)
            slopes[column] = rounded(tangent, slopes[column])


@inlined
def _make_columns_tangent(
    start: int, slope: int, columns: int, blocks: int, step: int, count: int, stride: int, radii: Any, dtype: Any
) -> None:
    """Make the gradients of neurons that lie side by side tangent."""
    sums = carray(stack(), (2, MOST_COLUMNS), np.float64)
    sums[:] = 0.0
    totals, dots = sums[0], sums[1]
    for block in range(blocks):
        for index in range(count):
            shift = block * step + index * stride
            line, slopes = numbers(start + shift, columns, None, dtype), numbers(slope + shift, columns, None, dtype)
            _add_products(totals, dots, line, slopes)
    all_change = True
    for column in range(columns):
        coefficient = dots[column] / totals[column]
        bound = radii[min(column, radii.size - 1)] > 0.0
        dots[column] = coefficient if bound and math.isfinite(coefficient) else 0.0
        all_change = all_change and dots[column] != 0.0
    for block in range(blocks):
        for index in range(count):
            shift = block * step + index * stride
            line, slopes = numbers(start + shift, columns, None, dtype), numbers(slope + shift, columns, None, dtype)
            if all_change:
                _subtract_each(slopes, line, dots)
            else:
                _subtract_some(slopes, line, dots)


@inlined
def _make_task_tangent(task: Any, job: Any, dtype: Any) -> None:
    kind, count, size = task[KIND], task[COUNT], size_of(dtype)
    start, slope = start_of(task, job[WEIGHTS], dtype), start_of(task, job[GRADIENTS], dtype)
    apart = task[STRIDE] * size
    blocks, step, inner, stride = task[OUTER], task[OUTER_STRIDE] * size, task[INNER], task[INNER_STRIDE]
    radii = radii_of(task, job)
    if slope == 0:  # this weight has no gradient in this step
        return
    if kind == COLUMNS:
        _make_columns_tangent(start, slope, count, blocks, step, inner, stride * size, radii, dtype)
        return
    for neuron in range(count):
        row, slopes = start + neuron * apart, slope + neuron * apart
        if radii[min(neuron, radii.size - 1)] > 0.0:  # others are free
            if kind == STRIDED:
                _make_neuron_tangent(row, slopes, blocks, step, inner, stride, dtype)
            else:
                _make_neuron_tangent(row, slopes, blocks, step, inner, None, dtype)


@inlined
def _make_tangent(address: int, dtype: Any) -> None:
    job = carray(pointer(address), (JOB_SIZE,), np.int64)
    tasks = carray(pointer(job[TASKS]), (job[NUM_TASKS], TASK_SIZE), np.int64)
    number = take_next(address + NEXT * 8)
    while number < job[NUM_TASKS]:
        _make_task_tangent(tasks[number], job, dtype)
        number = take_next(address + NEXT * 8)


def _make_tangent_float32(job: int) -> None:
    _make_tangent(job, FLOAT32)


def _make_tangent_float64(job: int) -> None:
    _make_tangent(job, FLOAT64)


def _make_tangent_bfloat16(job: int) -> None:
    _make_tangent(job, BFLOAT16)


KERNELS = {
    torch.float32: _make_tangent_float32,
    torch.float64: _make_tangent_float64,
    torch.bfloat16: _make_tangent_bfloat16,
}
