"""The kernels of the GPU path, a program per neuron. Importing this imports triton.

They have not been run on a GPU yet, let alone timed: what is known of them, they have shown in Triton's interpreter.

Sums are formed in float64, so that float32 and half precision can neither overflow nor lose digits; float64 itself has
a way of its own for such rows. bfloat16 is read and written through its bits and rounded here, to the nearest, ties to
even, because the interpreter would cut the digits off. Arguments have no types: Triton would take them for variables.
"""

from __future__ import annotations

import triton
import triton.language as tl

# The places of a weight in the table; neurons and weights have two levels each, as in `layout`.
FIRST_NEURON, POINTER, COUNT, OUTER_STRIDE, STRIDE = map(tl.constexpr, range(5))
BLOCKS, BLOCK_STRIDE, INNER, INNER_STRIDE, ROW_SIZE = map(tl.constexpr, range(5, 10))


@triton.jit
def _find(table, num_weights, neuron):
    """The row of the weight that a neuron belongs to: the last one whose first neuron is not beyond it."""
    low = 0
    high = num_weights - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(table + middle * ROW_SIZE + FIRST_NEURON) <= neuron:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _offsets(row, index):
    """Where the numbers of a neuron lie, counted from its first one."""
    inner = tl.load(row + INNER)
    return (index // inner) * tl.load(row + BLOCK_STRIDE) + (index % inner) * tl.load(row + INNER_STRIDE)


@triton.jit
def _start(row, neuron):
    """Where the first number of a neuron lies, counted from the weight's first one."""
    position, count = neuron - tl.load(row + FIRST_NEURON), tl.load(row + COUNT)
    return (position // count) * tl.load(row + OUTER_STRIDE) + (position % count) * tl.load(row + STRIDE)


@triton.jit
def _read(pointer, mask, is_bfloat16: tl.constexpr):
    """Numbers in float64; those of a bfloat16 are the upper half of a float32's bits."""
    stored = tl.load(pointer, mask=mask, other=0)
    if is_bfloat16:
        return (stored.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float64)
    return stored.to(tl.float64)


@triton.jit
def _write(pointer, values, mask, is_bfloat16: tl.constexpr):
    """Round float64 numbers to the type that is stored, to the nearest, ties to even."""
    if is_bfloat16:
        bits = values.to(tl.float32).to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        tl.store(pointer, nearest.to(tl.int16), mask=mask)
    else:
        tl.store(pointer, values.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _careful_norm(pointer, row, size, is_bfloat16: tl.constexpr, block: tl.constexpr):
    """The norm by way of the largest entry, for squares that overflow or lose digits in float64."""
    largest = tl.zeros((block,), tl.float64)
    for first in range(0, size, block):
        index = first + tl.arange(0, block).to(tl.int64)
        largest = tl.maximum(largest, tl.abs(_read(pointer + _offsets(row, index), index < size, is_bfloat16)))
    top = tl.max(largest)
    unit = tl.where((top > 0.0) & (top < float("inf")), top, 1.0)
    total = tl.zeros((block,), tl.float64)
    for first in range(0, size, block):
        index = first + tl.arange(0, block).to(tl.int64)
        values = _read(pointer + _offsets(row, index), index < size, is_bfloat16) / unit
        total += values * values
    return tl.sqrt(tl.sum(total)) * unit


@triton.jit
def project_kernel(
    table,
    num_weights,
    radii,
    radius,
    own_radii: tl.constexpr,
    is_ball: tl.constexpr,
    stored_type: tl.constexpr,
    is_bfloat16: tl.constexpr,
    block: tl.constexpr,
):
    """Project one neuron: equation (10)."""
    neuron = tl.program_id(0).to(tl.int64)
    row = table + _find(table, num_weights, neuron) * ROW_SIZE
    pointer = tl.load(row + POINTER).to(tl.pointer_type(stored_type)) + _start(row, neuron)
    size = tl.load(row + BLOCKS) * tl.load(row + INNER)
    total = tl.zeros((block,), tl.float64)
    for first in range(0, size, block):
        index = first + tl.arange(0, block).to(tl.int64)
        values = _read(pointer + _offsets(row, index), index < size, is_bfloat16)
        total += values * values
    square = tl.sum(total)
    norm = tl.sqrt(square)
    if not ((square > 1e-280) & (square < 1e280)):
        norm = _careful_norm(pointer, row, size, is_bfloat16, block)
    length = tl.load(radii + neuron) if own_radii else tl.load(radius)
    factor = length / norm
    moves = (factor > 0.0) & (factor < float("inf")) & (factor != 1.0)
    if is_ball:
        moves = moves & (norm > length)
    if moves:
        for first in range(0, size, block):
            index = first + tl.arange(0, block).to(tl.int64)
            place = pointer + _offsets(row, index)
            _write(place, _read(place, index < size, is_bfloat16) * factor, index < size, is_bfloat16)


@triton.jit
def tangent_kernel(
    table,
    num_weights,
    gradients,
    radii,
    own_radii: tl.constexpr,
    stored_type: tl.constexpr,
    is_bfloat16: tl.constexpr,
    block: tl.constexpr,
):
    """Make the gradient of one neuron tangent: equation (7). A weight without a gradient has the address 0."""
    neuron = tl.program_id(0).to(tl.int64)
    weight = _find(table, num_weights, neuron)
    row = table + weight * ROW_SIZE
    start = _start(row, neuron)
    pointer = tl.load(row + POINTER).to(tl.pointer_type(stored_type)) + start
    address = tl.load(gradients + weight)
    slope = address.to(tl.pointer_type(stored_type)) + start
    bound = address != 0
    if own_radii:
        bound = bound & (tl.load(radii + neuron) > 0.0)
    if bound:
        size = tl.load(row + BLOCKS) * tl.load(row + INNER)
        total = tl.zeros((block,), tl.float64)
        dot = tl.zeros((block,), tl.float64)
        for first in range(0, size, block):
            index = first + tl.arange(0, block).to(tl.int64)
            offsets = _offsets(row, index)
            values = _read(pointer + offsets, index < size, is_bfloat16)
            total += values * values
            dot += values * _read(slope + offsets, index < size, is_bfloat16)
        square = tl.sum(total)
        coefficient = tl.sum(dot) / square
        if not ((square > 1e-280) & (square < 1e280)):
            norm = _careful_norm(pointer, row, size, is_bfloat16, block)
            coefficient = tl.sum(dot) / norm / norm
        if (tl.abs(coefficient) < float("inf")) & (coefficient != 0.0):
            for first in range(0, size, block):
                index = first + tl.arange(0, block).to(tl.int64)
                offsets = _offsets(row, index)
                values = coefficient * _read(pointer + offsets, index < size, is_bfloat16)
                slopes = _read(slope + offsets, index < size, is_bfloat16)
                _write(slope + offsets, slopes - values, index < size, is_bfloat16)
