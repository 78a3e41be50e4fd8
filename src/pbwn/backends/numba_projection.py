"""The compiled loops of the projection: each row is measured, then scaled from the cache while others are measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import carray

from pbwn.backends.numba_kernels import (
    BFLOAT16,
    BLOCKS,
    COLUMNS,
    COUNT,
    FLOAT32,
    FLOAT64,
    INNER,
    INNER_STRIDE,
    IS_BALL,
    JOB_SIZE,
    KIND,
    MOST_COLUMNS,
    NEXT,
    NUM_TASKS,
    OUTER,
    OUTER_STRIDE,
    ROWS,
    STRIDE,
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
from pbwn.backends.numba_vectors import scale_and_sum, sum_of_squares

_BLOCK = 512  # sums of scattered numbers are formed in blocks, so that rounding grows less with the length of a row
_FEW_BYTES = 12 * 1024  # rows that are scaled together, and those that are measured meanwhile, fit into the first cache
# Sums of squares within these bounds are right in float32 and in float64; beyond, they may have lost digits.
_SAFE_SQUARES = 1e-24, 1e36
_SAFE_FACTORS = 1e-30, 1e30  # a float32 holds these with all its digits


@inlined
def _sum_of_squares(start: int, count: int, stride: Any, dtype: Any) -> float:
    """The sum of squares of numbers that need not lie side by side."""
    if stride is None:
        return sum_of_squares(start, count, dtype)
    total, row = 0.0, numbers(start, count, stride, dtype)
    for first in range(0, count, _BLOCK):
        part = 0.0
        for index in range(first, min(first + _BLOCK, count)):
            value = converted(row[index], 0.0)
            part += value * value
        total += part
    return total


@inlined
def _is_usual(factor: float) -> bool:
    """Whether a row changes, and in its own precision; one that does not is not written, whatever is in it."""
    return factor != 1.0 and _SAFE_FACTORS[0] < factor < _SAFE_FACTORS[1]


@inlined
def _scale(row: Any, factor: float, zero: Any) -> None:
    if _is_usual(factor):
        _multiply(row, rounded(factor, zero))
    elif factor != 1.0:
        _multiply(row, factor)


@inlined
def _multiply(row: Any, factor: Any) -> None:
    for index in range(row.size):
        row[index] = rounded(converted(row[index], factor) * factor, row[index])


@inlined
def _factor(norm: float, radius: float, is_ball: bool) -> float:
    """What a neuron is multiplied by: 1 where it is to be left as it is."""
    if is_ball and norm <= radius:
        return 1.0
    factor = radius / norm
    return factor if 0.0 < factor < math.inf else 1.0


@inlined
def _project_neuron(
    start: int, blocks: int, step: int, count: int, stride: Any, radius: float, is_ball: bool, zero: Any, dtype: Any
) -> None:
    """Project the weights of one neuron: blocks of `count` numbers, `step` bytes apart."""
    total = 0.0
    for block in range(blocks):
        total += _sum_of_squares(start + block * step, count, stride, dtype)
    if _SAFE_SQUARES[0] < total < _SAFE_SQUARES[1]:
        norm = math.sqrt(total)
    else:
        norm = careful_norm(start, blocks, step, count, stride, dtype)
    factor = _factor(norm, radius, is_ball)
    for block in range(blocks):
        _scale(numbers(start + block * step, count, stride, dtype), factor, zero)


@inlined
def _project_rows(
    start: int, rows: int, apart: int, count: int, radii: Any, is_ball: bool, zero: Any, dtype: Any
) -> None:
    """Project neurons whose weights lie side by side, a few at a time, and measure the next few meanwhile."""
    few = max(1, min(MOST_COLUMNS, _FEW_BYTES // (count * size_of(dtype)), rows // 4))  # the first have nothing beside
    sums = carray(stack(), (few,), np.float64)  # each becomes the factor of its row, then the sum of the one beside it
    for row in range(few):
        sums[row] = sum_of_squares(start + row * apart, count, dtype)
    for first in range(0, rows, few):
        last = min(first + few, rows)
        for row in range(first, last):  # for all before any is scaled: square roots need not wait in turn
            total = sums[row - first]
            if _SAFE_SQUARES[0] < total < _SAFE_SQUARES[1]:
                norm = math.sqrt(total)
            else:
                norm = careful_norm(start + row * apart, 1, 0, count, None, dtype)
            sums[row - first] = _factor(norm, radii[min(row, radii.size - 1)], is_ball)
        for row in range(first, last):
            factor, here, beside = sums[row - first], start + row * apart, start + (row + few) * apart
            has_other = row + few < rows
            if has_other and _is_usual(factor):
                sums[row - first] = scale_and_sum(here, rounded(factor, zero), beside, count, dtype)
                continue
            _scale(numbers(here, count, None, dtype), factor, zero)
            if has_other:
                sums[row - first] = sum_of_squares(beside, count, dtype)


@inlined
def _add_squares(totals: Any, line: Any) -> None:
    for column in range(line.size):
        value = converted(line[column], 0.0)
        totals[column] += value * value


@inlined
def _add_squares_of_four(totals: Any, start: int, stride: int, zero: Any, dtype: Any) -> None:
    """Add the squares of four lines, which are few enough to be summed in the type of `zero` first."""
    one, two = numbers(start, totals.size, None, dtype), numbers(start + stride, totals.size, None, dtype)
    three = numbers(start + 2 * stride, totals.size, None, dtype)
    four = numbers(start + 3 * stride, totals.size, None, dtype)
    for column in range(totals.size):
        first, second = converted(one[column], zero), converted(two[column], zero)
        third, fourth = converted(three[column], zero), converted(four[column], zero)
        totals[column] += first * first + second * second + (third * third + fourth * fourth)


@inlined
def _scale_each(line: Any, factors: Any, zero: Any) -> None:
    for column in range(line.size):
        line[column] = rounded(converted(line[column], zero) * rounded(factors[column], zero), line[column])


@inlined
def _scale_some(line: Any, factors: Any) -> None:
    """The same where some columns are to keep every bit. It is slower: their numbers must not be written."""
    for column in range(line.size):
        if factors[column] != 1.0:
            line[column] = rounded(converted(line[column], 0.0) * factors[column], line[column])


@inlined
def _project_columns(
    start: int,
    columns: int,
    blocks: int,
    step: int,
    count: int,
    stride: int,
    radii: Any,
    is_ball: bool,
    zero: Any,
    dtype: Any,
) -> None:
    """Project neurons that lie side by side: they run down their columns together."""
    factors = carray(stack(), (columns,), np.float64)
    factors[:] = 0.0
    fours = count // 4 * 4
    for block in range(blocks):
        for index in range(0, fours, 4):
            _add_squares_of_four(factors, start + block * step + index * stride, stride, zero, dtype)
        for index in range(fours, count):
            _add_squares(factors, numbers(start + block * step + index * stride, columns, None, dtype))
    are_usual = True
    for column in range(columns):
        total = factors[column]
        if _SAFE_SQUARES[0] < total < _SAFE_SQUARES[1]:
            norm = math.sqrt(total)
        else:
            apart = stride // size_of(dtype)
            norm = careful_norm(start + column * size_of(dtype), blocks, step, count, apart, dtype)
        factor = _factor(norm, radii[min(column, radii.size - 1)], is_ball)
        are_usual = are_usual and _is_usual(factor)
        factors[column] = factor
    for block in range(blocks):
        for index in range(count):
            line = numbers(start + block * step + index * stride, columns, None, dtype)
            if are_usual:
                _scale_each(line, factors, zero)
            else:
                _scale_some(line, factors)


@inlined
def _project_task(task: Any, job: Any, zero: Any, dtype: Any) -> None:
    kind, count, size, is_ball = task[KIND], task[COUNT], size_of(dtype), job[IS_BALL] != 0
    start, apart = start_of(task, job[WEIGHTS], dtype), task[STRIDE] * size
    blocks, step, inner, stride = task[OUTER], task[OUTER_STRIDE] * size, task[INNER], task[INNER_STRIDE]
    radii = radii_of(task, job)
    if kind == ROWS:
        _project_rows(start, count, apart, inner, radii, is_ball, zero, dtype)
    elif kind == COLUMNS:
        _project_columns(start, count, blocks, step, inner, stride * size, radii, is_ball, zero, dtype)
    elif kind == BLOCKS:
        for neuron in range(count):
            row, radius = start + neuron * apart, radii[min(neuron, radii.size - 1)]
            _project_neuron(row, blocks, step, inner, None, radius, is_ball, zero, dtype)
    else:
        for neuron in range(count):
            row, radius = start + neuron * apart, radii[min(neuron, radii.size - 1)]
            _project_neuron(row, blocks, step, inner, stride, radius, is_ball, zero, dtype)


@inlined
def _project(address: int, zero: Any, dtype: Any) -> None:
    job = carray(pointer(address), (JOB_SIZE,), np.int64)
    tasks = carray(pointer(job[TASKS]), (job[NUM_TASKS], TASK_SIZE), np.int64)
    number = take_next(address + NEXT * 8)
    while number < job[NUM_TASKS]:
        _project_task(tasks[number], job, zero, dtype)
        number = take_next(address + NEXT * 8)


def _project_float32(job: int) -> None:
    _project(job, np.float32(0.0), FLOAT32)


def _project_float64(job: int) -> None:
    _project(job, 0.0, FLOAT64)


def _project_bfloat16(job: int) -> None:
    _project(job, np.float32(0.0), BFLOAT16)


KERNELS = {torch.float32: _project_float32, torch.float64: _project_float64, torch.bfloat16: _project_bfloat16}
