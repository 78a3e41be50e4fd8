"""The compiled loops of the projection, one pass over each row: its norm, then its product while it is in the cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import carray

from pbwn.backends.numba_kernels import (
    AHEAD,
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
    LANES,
    MOST_COLUMNS,
    NEXT,
    NUM_TASKS,
    OUTER,
    OUTER_STRIDE,
    PORTION,
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
    prefetch,
    radii_of,
    rounded,
    size_of,
    stack,
    start_of,
    take_next,
)

# So few squares are added up in float32 that the largest of them does not swallow the others: with 32 sums side by
# side, four in each. Blocks of 512 are 3 to 8 percent faster, and up to eight units in the last place off.
_BLOCK, _BLOCK_OF_DOUBLES = 128, 1024
_FEW_BYTES = 16 * 1024  # rows that are worked on together should stay in the first cache
# Sums of squares within these bounds are right in float32 and in float64; beyond, they may have lost digits.
_SAFE_SQUARES = 1e-24, 1e36
_SAFE_FACTORS = 1e-30, 1e30  # a float32 holds these with all its digits


@inlined
def _sum_of_squares(start: int, count: int, stride: Any, ahead: int, zero: Any, dtype: Any) -> float:
    """The sum of squares, each block of it in the type of `zero`, the blocks and what is left over in float64.

    Memory is asked for so many bytes ahead, unless that is 0.
    """
    row = numbers(start, count, stride, dtype)
    total = 0.0
    even = count // LANES * LANES
    block = _BLOCK if row.itemsize < 8 else _BLOCK_OF_DOUBLES
    for first in range(0, even, block):
        last = min(first + block, even)
        if stride is None and ahead:
            prefetch(start + first * row.itemsize + ahead, (last - first) * row.itemsize)
        part = zero
        for index in range(first, last):
            value = converted(row[index], zero)
            part += value * value
        total += part
    for index in range(even, count):
        left_over = converted(row[index], 0.0)
        total += left_over * left_over
    return total


@inlined
def _scale(row: Any, factor: Any) -> None:
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
    start: int,
    blocks: int,
    step: int,
    count: int,
    stride: Any,
    ahead: int,
    radius: float,
    is_ball: bool,
    zero: Any,
    dtype: Any,
) -> None:
    """Project the weights of one neuron: blocks of `count` numbers, `step` bytes apart."""
    total = 0.0
    for block in range(blocks):
        total += _sum_of_squares(start + block * step, count, stride, ahead, zero, dtype)
    if _SAFE_SQUARES[0] < total < _SAFE_SQUARES[1]:
        norm = math.sqrt(total)
    else:
        norm = careful_norm(start, blocks, step, count, stride, dtype)
    factor = _factor(norm, radius, is_ball)
    if factor == 1.0:
        return
    for block in range(blocks):
        row = numbers(start + block * step, count, stride, dtype)
        if _SAFE_FACTORS[0] < factor < _SAFE_FACTORS[1]:
            _scale(row, rounded(factor, zero))
        else:
            _scale(row, factor)


@inlined
def _project_rows(
    start: int, rows: int, apart: int, count: int, ahead: int, radii: Any, is_ball: bool, zero: Any, dtype: Any
) -> None:
    """Project neurons whose weights lie side by side, a few at a time: their square roots need not wait in turn."""
    factors = carray(stack(), (MOST_COLUMNS,), np.float64)
    few = max(1, min(MOST_COLUMNS, _FEW_BYTES // (count * size_of(dtype))))
    for first in range(0, rows, few):
        last = min(first + few, rows)
        for row in range(first, last):
            factors[row - first] = _sum_of_squares(start + row * apart, count, None, ahead, zero, dtype)
        for row in range(first, last):
            total = factors[row - first]
            if _SAFE_SQUARES[0] < total < _SAFE_SQUARES[1]:
                norm = math.sqrt(total)
            else:
                norm = careful_norm(start + row * apart, 1, 0, count, None, dtype)
            factors[row - first] = _factor(norm, radii[min(row, radii.size - 1)], is_ball)
        for row in range(first, last):
            factor = factors[row - first]
            if _SAFE_FACTORS[0] < factor < _SAFE_FACTORS[1]:
                if factor != 1.0:
                    _scale(numbers(start + row * apart, count, None, dtype), rounded(factor, zero))
            else:
                _scale(numbers(start + row * apart, count, None, dtype), factor)


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
        are_usual = are_usual and factor != 1.0 and _SAFE_FACTORS[0] < factor < _SAFE_FACTORS[1]
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
    radii, ahead = radii_of(task, job), job[AHEAD]
    if kind == ROWS:
        _project_rows(start, count, apart, inner, ahead, radii, is_ball, zero, dtype)
    elif kind == COLUMNS:
        _project_columns(start, count, blocks, step, inner, stride * size, radii, is_ball, zero, dtype)
    elif kind == BLOCKS:
        for neuron in range(count):
            row, radius = start + neuron * apart, radii[min(neuron, radii.size - 1)]
            _project_neuron(row, blocks, step, inner, None, ahead, radius, is_ball, zero, dtype)
    else:
        for neuron in range(count):
            row, radius = start + neuron * apart, radii[min(neuron, radii.size - 1)]
            _project_neuron(row, blocks, step, inner, stride, ahead, radius, is_ball, zero, dtype)


@inlined
def _project(address: int, zero: Any, dtype: Any) -> None:
    job = carray(pointer(address), (JOB_SIZE,), np.int64)
    tasks = carray(pointer(job[TASKS]), (job[NUM_TASKS], TASK_SIZE), np.int64)
    first = take_next(address + NEXT * 8) * job[PORTION]
    while first < job[NUM_TASKS]:
        for number in range(first, min(first + job[PORTION], job[NUM_TASKS])):
            _project_task(tasks[number], job, zero, dtype)
        first = take_next(address + NEXT * 8) * job[PORTION]


def _project_float32(job: int) -> None:
    _project(job, np.float32(0.0), FLOAT32)


def _project_float64(job: int) -> None:
    _project(job, 0.0, FLOAT64)


def _project_bfloat16(job: int) -> None:
    _project(job, np.float32(0.0), BFLOAT16)


KERNELS = {torch.float32: _project_float32, torch.float64: _project_float64, torch.bfloat16: _project_bfloat16}
