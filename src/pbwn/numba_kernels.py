"""The compiled loops of the CPU path, one pass over each row: its norm, then its product while it is in the cache.

Everything that is compiled stands in this one file, because numba's cache on disk watches the file of the outermost
function alone. Importing it imports numba; nothing is compiled before a kernel is asked for.

A kernel is a C function of one address, that of a job: a table of tasks, each some neurons of one weight. Any number of
threads may run it on the same job; each takes the next task until there is none left.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import carray, cfunc, config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

if config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set, and interpreted these loops would take forever")

# The places of a job. SELF is its own address, RADIUS a float64; NEXT counts the portions of tasks that are taken.
SELF, NUM_TASKS, PORTION, TASKS, WEIGHTS, GRADIENTS, RADII, IS_BALL, RADIUS = range(9)
NEXT, JOB_SIZE = 20, 32  # far from the others, which would leave the caches of all threads with each change
# The places of a task: COUNT neurons that lie STRIDE apart, the weights of each as OUTER blocks of INNER numbers.
KIND, WEIGHT, OFFSET, COUNT, STRIDE, OUTER, OUTER_STRIDE, INNER, INNER_STRIDE, NEURON, TASK_SIZE = range(11)
# The kinds of task: the weights of a neuron lie side by side; they do in blocks; the neurons do; none of these.
ROWS, BLOCKS, COLUMNS, STRIDED = range(4)
MOST_COLUMNS = 256  # neurons that are worked on together, with their sums on the stack

_FEW_BYTES = 16 * 1024  # rows that are worked on together should stay in the first cache
_BLOCK = 512  # sums are formed in blocks, so that rounding does not grow with the length of a row
# Sums of squares within these bounds are right in float32 and in float64; beyond, they may have lost digits.
_SAFE_SQUARES, _SAFE_DOUBLES = (1e-24, 1e36), (1e-280, 1e280)
_SAFE_FACTORS = 1e-30, 1e30  # a float32 holds these with all its digits
_FREE_ORDER = {"reassoc", "contract", "nsz"}  # lets sums use vector registers; NaN and infinity keep their meaning
_compiled = njit(error_model="numpy", fastmath=_FREE_ORDER)


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def _size_of(typing_context: Any, dtype: Any) -> Any:
    """The bytes of a number of this type."""
    size = dtype.dtype.bitwidth // 8
    return types.int64(dtype), lambda context, builder, signature, arguments: ir.IntType(64)(size)


@intrinsic
def _stack(typing_context: Any) -> Any:
    """Room for two float64 for each column of a task, on the stack of the calling function."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        room = cgutils.alloca_once(builder, ir.DoubleType(), size=2 * MOST_COLUMNS)
        return builder.bitcast(room, context.get_value_type(types.voidptr))

    return types.voidptr(), generate


@intrinsic
def _take_next(typing_context: Any, address: Any) -> Any:
    """The number at an address, which is increased by one in the same instant."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(64)
        place = builder.inttoptr(arguments[0], number.as_pointer())
        return builder.atomic_rmw("add", place, number(1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def _converted(typing_context: Any, stored: Any, like: Any) -> Any:
    """A stored number in a float type no narrower; 16 bits are a bfloat16, which is the upper half of a float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[0]
        if stored == types.uint16:
            upper = builder.shl(builder.zext(value, ir.IntType(32)), ir.IntType(32)(16))
            value = builder.bitcast(upper, ir.FloatType())
        return builder.fpext(value, ir.DoubleType()) if like == types.float64 != stored else value

    return like(stored, like), generate


@intrinsic
def _rounded(typing_context: Any, value: Any, stored: Any) -> Any:
    """A float that is no NaN in the stored type, to the nearest, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = arguments[0]
        if value == types.float64 != stored:
            number = builder.fptrunc(number, ir.FloatType())
        if stored != types.uint16:
            return number
        word = ir.IntType(32)
        bits = builder.bitcast(number, word)
        odd = builder.and_(builder.lshr(bits, word(16)), word(1))
        nearest = builder.lshr(builder.add(bits, builder.add(odd, word(0x7FFF))), word(16))
        return builder.trunc(nearest, ir.IntType(16))

    return stored(value, stored), generate


@_compiled
def _sum_of_squares(row: Any, zero: Any) -> float:
    """The sum of squares, each block of it in the type of `zero`, and the blocks in float64."""
    total = 0.0
    for first in range(0, row.size, _BLOCK):
        part = zero
        for index in range(first, min(first + _BLOCK, row.size)):
            value = _converted(row[index], zero)
            part += value * value
        total += part
    return total


@_compiled
def _sums_of_products(row: Any, slopes: Any) -> tuple[float, float]:
    """The square of a row, and its inner product with its gradient."""
    total, dot = 0.0, 0.0
    for first in range(0, row.size, _BLOCK):
        total_part, dot_part = 0.0, 0.0
        for index in range(first, min(first + _BLOCK, row.size)):
            value = _converted(row[index], 0.0)
            total_part += value * value
            dot_part += value * _converted(slopes[index], 0.0)
        total += total_part
        dot += dot_part
    return total, dot


@_compiled
def _scale(row: Any, factor: Any) -> None:
    for index in range(row.size):
        row[index] = _rounded(_converted(row[index], factor) * factor, row[index])


@_compiled
def _subtract(slopes: Any, row: Any, coefficient: float) -> None:
    for index in range(row.size):
        tangent = _converted(slopes[index], 0.0) - coefficient * _converted(row[index], 0.0)
        slopes[index] = _rounded(tangent, slopes[index])


@_compiled
def _factor(norm: float, radius: float, is_ball: bool) -> float:
    """What a neuron is multiplied by: 1 where it is to be left as it is."""
    if is_ball and norm <= radius:
        return 1.0
    factor = radius / norm
    return factor if 0.0 < factor < math.inf else 1.0


@_compiled
def _numbers(address: int, count: int, stride: Any, dtype: Any) -> Any:
    """Numbers in memory, a stride apart or, where it is None, side by side."""
    if stride is None:
        return carray(_pointer(address), (count,), dtype)
    return carray(_pointer(address), ((count - 1) * stride + 1,), dtype)[::stride]


@_compiled
def _careful_norm(start: int, blocks: int, step: int, count: int, stride: Any, dtype: Any) -> float:
    """The norm where squares in the usual precision overflow or lose digits: by way of the largest entry."""
    largest = 0.0
    for block in range(blocks):
        for stored in _numbers(start + block * step, count, stride, dtype):
            value = abs(_converted(stored, 0.0))
            largest = value if value > largest or value != value else largest  # a NaN stays
    if not 0.0 < largest < math.inf:
        return largest
    total = 0.0
    for block in range(blocks):
        for stored in _numbers(start + block * step, count, stride, dtype):
            total += (_converted(stored, 0.0) / largest) ** 2
    return math.sqrt(total) * largest


@_compiled
def _project_neuron(
    start: int, blocks: int, step: int, count: int, stride: Any, radius: float, is_ball: bool, zero: Any, dtype: Any
) -> None:
    """Project the weights of one neuron: blocks of `count` numbers, `step` bytes apart."""
    total = 0.0
    for block in range(blocks):
        total += _sum_of_squares(_numbers(start + block * step, count, stride, dtype), zero)
    if _SAFE_SQUARES[0] < total < _SAFE_SQUARES[1]:
        norm = math.sqrt(total)
    else:
        norm = _careful_norm(start, blocks, step, count, stride, dtype)
    factor = _factor(norm, radius, is_ball)
    if factor == 1.0:
        return
    for block in range(blocks):
        row = _numbers(start + block * step, count, stride, dtype)
        if _SAFE_FACTORS[0] < factor < _SAFE_FACTORS[1]:
            _scale(row, _rounded(factor, zero))
        else:
            _scale(row, factor)


@_compiled
def _project_rows(
    start: int, rows: int, apart: int, count: int, radii: Any, is_ball: bool, zero: Any, dtype: Any
) -> None:
    """Project neurons whose weights lie side by side, a few at a time: their square roots need not wait in turn."""
    factors = carray(_stack(), (MOST_COLUMNS,), np.float64)
    few = max(1, min(MOST_COLUMNS, _FEW_BYTES // (count * _size_of(dtype))))
    for first in range(0, rows, few):
        last = min(first + few, rows)
        for row in range(first, last):
            factors[row - first] = _sum_of_squares(_numbers(start + row * apart, count, None, dtype), zero)
        for row in range(first, last):
            total = factors[row - first]
            if _SAFE_SQUARES[0] < total < _SAFE_SQUARES[1]:
                norm = math.sqrt(total)
            else:
                norm = _careful_norm(start + row * apart, 1, 0, count, None, dtype)
            factors[row - first] = _factor(norm, radii[min(row, radii.size - 1)], is_ball)
        for row in range(first, last):
            factor = factors[row - first]
            if _SAFE_FACTORS[0] < factor < _SAFE_FACTORS[1]:
                if factor != 1.0:
                    _scale(_numbers(start + row * apart, count, None, dtype), _rounded(factor, zero))
            else:
                _scale(_numbers(start + row * apart, count, None, dtype), factor)


@_compiled
def _make_neuron_tangent(start: int, slope: int, blocks: int, step: int, count: int, stride: Any, dtype: Any) -> None:
    """Make the gradient at `slope` tangent to the sphere of the neuron at `start`."""
    total, dot = 0.0, 0.0
    for block in range(blocks):
        row = _numbers(start + block * step, count, stride, dtype)
        total_part, dot_part = _sums_of_products(row, _numbers(slope + block * step, count, stride, dtype))
        total += total_part
        dot += dot_part
    coefficient = dot / total
    if not _SAFE_DOUBLES[0] < total < _SAFE_DOUBLES[1]:
        norm = _careful_norm(start, blocks, step, count, stride, dtype)
        coefficient = dot / norm / norm
    if coefficient != 0.0 and math.isfinite(coefficient):
        for block in range(blocks):
            row = _numbers(start + block * step, count, stride, dtype)
            _subtract(_numbers(slope + block * step, count, stride, dtype), row, coefficient)


@_compiled
def _add_squares(totals: Any, line: Any) -> None:
    for column in range(line.size):
        value = _converted(line[column], 0.0)
        totals[column] += value * value


@_compiled
def _scale_each(line: Any, factors: Any) -> None:
    for column in range(line.size):
        scaled = _rounded(_converted(line[column], 0.0) * factors[column], line[column])
        line[column] = scaled if factors[column] != 1.0 else line[column]


@_compiled
def _project_columns(
    start: int, columns: int, blocks: int, step: int, count: int, stride: int, radii: Any, is_ball: bool, dtype: Any
) -> None:
    """Project neurons that lie side by side: they run down their columns together."""
    factors = carray(_stack(), (columns,), np.float64)
    factors[:] = 0.0
    for block in range(blocks):
        for index in range(count):
            _add_squares(factors, _numbers(start + block * step + index * stride, columns, None, dtype))
    for column in range(columns):
        factors[column] = _factor(math.sqrt(factors[column]), radii[min(column, radii.size - 1)], is_ball)
    for block in range(blocks):
        for index in range(count):
            _scale_each(_numbers(start + block * step + index * stride, columns, None, dtype), factors)


@_compiled
def _make_columns_tangent(
    start: int, slope: int, columns: int, blocks: int, step: int, count: int, stride: int, radii: Any, dtype: Any
) -> None:
    """Make the gradients of neurons that lie side by side tangent."""
    sums = carray(_stack(), (2, MOST_COLUMNS), np.float64)
    sums[:] = 0.0
    totals, dots = sums[0], sums[1]
    for block in range(blocks):
        for index in range(count):
            shift = block * step + index * stride
            line, slopes = _numbers(start + shift, columns, None, dtype), _numbers(slope + shift, columns, None, dtype)
            for column in range(columns):
                value = _converted(line[column], 0.0)
                totals[column] += value * value
                dots[column] += value * _converted(slopes[column], 0.0)
    for column in range(columns):
        coefficient = dots[column] / totals[column]
        bound = radii[min(column, radii.size - 1)] > 0.0
        dots[column] = coefficient if bound and math.isfinite(coefficient) else 0.0
    for block in range(blocks):
        for index in range(count):
            shift = block * step + index * stride
            line, slopes = _numbers(start + shift, columns, None, dtype), _numbers(slope + shift, columns, None, dtype)
            for column in range(columns):
                normal = dots[column] * _converted(line[column], 0.0)
                tangent = _rounded(_converted(slopes[column], 0.0) - normal, slopes[column])
                slopes[column] = tangent if dots[column] != 0.0 else slopes[column]


@_compiled
def _project_task(task: Any, job: Any, zero: Any, dtype: Any) -> None:
    kind, count, size, is_ball = task[KIND], task[COUNT], _size_of(dtype), job[IS_BALL] != 0
    start, apart = _start_of(task, job[WEIGHTS], dtype), task[STRIDE] * size
    blocks, step, inner, stride = task[OUTER], task[OUTER_STRIDE] * size, task[INNER], task[INNER_STRIDE]
    radii = _radii_of(task, job)
    if kind == ROWS:
        _project_rows(start, count, apart, inner, radii, is_ball, zero, dtype)
    elif kind == COLUMNS:
        _project_columns(start, count, blocks, step, inner, stride * size, radii, is_ball, dtype)
    elif kind == BLOCKS:
        for neuron in range(count):
            row, radius = start + neuron * apart, radii[min(neuron, radii.size - 1)]
            _project_neuron(row, blocks, step, inner, None, radius, is_ball, zero, dtype)
    else:
        for neuron in range(count):
            row, radius = start + neuron * apart, radii[min(neuron, radii.size - 1)]
            _project_neuron(row, blocks, step, inner, stride, radius, is_ball, zero, dtype)


@_compiled
def _make_task_tangent(task: Any, job: Any, dtype: Any) -> None:
    kind, count, size = task[KIND], task[COUNT], _size_of(dtype)
    start, slope = _start_of(task, job[WEIGHTS], dtype), _start_of(task, job[GRADIENTS], dtype)
    apart = task[STRIDE] * size
    blocks, step, inner, stride = task[OUTER], task[OUTER_STRIDE] * size, task[INNER], task[INNER_STRIDE]
    radii = _radii_of(task, job)
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


@_compiled
def _start_of(task: Any, pointers: int, dtype: Any) -> int:
    """The address of the first number of a task; 0 where the table of pointers has none."""
    pointer = carray(_pointer(pointers), (task[WEIGHT] + 1,), np.int64)[task[WEIGHT]]
    return pointer + task[OFFSET] * _size_of(dtype) if pointer != 0 else 0


@_compiled
def _radii_of(task: Any, job: Any) -> Any:
    """The radii of the neurons of a task, or the one that all of them have."""
    if job[RADII] != 0:
        return carray(_pointer(job[RADII] + task[NEURON] * 8), (task[COUNT],), np.float64)
    return carray(_pointer(job[SELF] + RADIUS * 8), (1,), np.float64)


@_compiled
def _project(address: int, zero: Any, dtype: Any) -> None:
    job = carray(_pointer(address), (JOB_SIZE,), np.int64)
    tasks = carray(_pointer(job[TASKS]), (job[NUM_TASKS], TASK_SIZE), np.int64)
    first = _take_next(address + NEXT * 8) * job[PORTION]
    while first < job[NUM_TASKS]:
        for number in range(first, min(first + job[PORTION], job[NUM_TASKS])):
            _project_task(tasks[number], job, zero, dtype)
        first = _take_next(address + NEXT * 8) * job[PORTION]


@_compiled
def _make_tangent(address: int, dtype: Any) -> None:
    job = carray(_pointer(address), (JOB_SIZE,), np.int64)
    tasks = carray(_pointer(job[TASKS]), (job[NUM_TASKS], TASK_SIZE), np.int64)
    first = _take_next(address + NEXT * 8) * job[PORTION]
    while first < job[NUM_TASKS]:
        for number in range(first, min(first + job[PORTION], job[NUM_TASKS])):
            _make_task_tangent(tasks[number], job, dtype)
        first = _take_next(address + NEXT * 8) * job[PORTION]


_FLOAT32, _FLOAT64, _BFLOAT16 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint16)


# One function for each kernel, none made by another: numba finds what it has cached only for such functions.
def _project_float32(job: int) -> None:
    _project(job, np.float32(0.0), _FLOAT32)


def _project_float64(job: int) -> None:
    _project(job, 0.0, _FLOAT64)


def _project_bfloat16(job: int) -> None:
    _project(job, np.float32(0.0), _BFLOAT16)


def _make_tangent_float32(job: int) -> None:
    _make_tangent(job, _FLOAT32)


def _make_tangent_float64(job: int) -> None:
    _make_tangent(job, _FLOAT64)


def _make_tangent_bfloat16(job: int) -> None:
    _make_tangent(job, _BFLOAT16)


_KERNELS: dict[tuple[str, torch.dtype], Callable[[int], None]] = {
    ("project", torch.float32): _project_float32,
    ("project", torch.float64): _project_float64,
    ("project", torch.bfloat16): _project_bfloat16,
    ("tangent", torch.float32): _make_tangent_float32,
    ("tangent", torch.float64): _make_tangent_float64,
    ("tangent", torch.bfloat16): _make_tangent_bfloat16,
}


@functools.cache
def compiled(operation: str, dtype: torch.dtype) -> Any:
    """The kernel for "project" or "tangent" as numba's object, whose `address` is the C function.

    It is compiled at the first call, and kept on disk beside this file or in the user's cache folder. Where neither can
    be written, it is compiled anew in each process.
    """
    kernel = _KERNELS[operation, dtype]
    signature = types.void(types.int64)
    try:
        return cfunc(signature, cache=True)(kernel)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return cfunc(signature)(kernel)
