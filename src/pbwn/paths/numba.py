"""The compiled CPU path: one loop over a table of rows, for weights whose rows are contiguous in memory.

Sums are in float64 and may be reassociated, so that LLVM vectorises them. Large models are divided among as many
threads as torch uses. Threads belong to the process that created them: a forked process creates its own.

Importing this imports numba. The loops are compiled when they are first needed, within seconds, and cached on disk.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import carray, config, njit, types
from numba.extending import intrinsic, overload
from torch import Tensor

from pbwn.axes import Axes
from pbwn.constraint import Constraint, MaxNorm
from pbwn.functional import ROUNDING
from pbwn.paths.torch import Entry, FunctionalPath, Rates, is_laid_out_like, tangent_gradient_

if config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set: interpreted, these loops would take forever")

_log = logging.getLogger("pbwn")
_ELEMENTS = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.uint16}
_SHARED_BYTES = 4 * 1024 * 1024  # less is done before a second thread would have started
# A line of the table: COUNT rows of LENGTH elements, STRIDE apart. OFFSET is the offset of the first row in its weight,
# NEURON its index among all neurons.
_WEIGHT, _OFFSET, _COUNT, _STRIDE, _LENGTH, _NEURON = range(6)


class NumbaPath(FunctionalPath):
    """Weights of one dtype in the CPU's memory."""

    def __init__(self, entries: Sequence[Entry], constraint: Constraint) -> None:
        super().__init__(entries, constraint)
        self._elements = np.empty(0, _ELEMENTS[entries[0].weight.dtype])  # tells the loops the dtype
        self._addresses = np.array([entry.weight.data_ptr() for entry in entries], np.int64)
        self._first_radii = self._radii = np.concatenate([entry.row_radii.flatten().numpy() for entry in entries])
        self._is_ball = isinstance(constraint, MaxNorm)
        self._bytes = sum(entry.weight.nbytes for entry in entries)
        self._tables: dict[int, list[np.ndarray]] = {}

    @staticmethod
    def obstacle(tensor: Tensor, axes: Axes) -> str | None:
        """Return why a weight cannot take this path, or None if it can."""
        if tensor.device.type != "cpu":
            return f"it is on {tensor.device}, and numba serves the CPU"
        if tensor.dtype not in _ELEMENTS:
            return f"its dtype is {tensor.dtype}, and numba serves {', '.join(map(str, _ELEMENTS))}"
        if not _has_contiguous_rows(tensor, axes):
            return f"with strides {tensor.stride()} its rows are not contiguous in memory"
        return None

    def scale_radii_(self, factors: Sequence[float]) -> None:
        """Multiply the original radii of each weight by a factor."""
        super().scale_radii_(factors)
        neurons = [prod(entry.axes.neuron_shape(tuple(entry.weight.shape))) for entry in self._entries]
        self._radii = self._first_radii * np.repeat(factors, neurons)

    def project_(self, *, synchronize: bool = False) -> None:
        """Project all weights in place: equation (10)."""
        self._run(_project, self._addresses, self._radii, self._is_ball)

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent in place: equation (7)."""
        gradients, written = np.zeros_like(self._addresses), []
        for index, entry in enumerate(self._entries):
            gradient = entry.get_gradient()
            if gradient is not None and is_laid_out_like(gradient, entry.weight):
                gradients[index] = gradient.data_ptr()
                written.append(gradient)
            else:
                tangent_gradient_(entry)
        self._run(_tangent, self._addresses, gradients, self._radii)
        torch.autograd.graph.increment_version(written)

    def step_(self, before: Sequence[Tensor], rates: Rates) -> None:
        """Apply a step rule to the updates of all weights, and project them."""
        starts = np.array([old.data_ptr() for old in before], np.int64)
        turns = np.array([] if rates is None else [float(rate) for rate in rates], np.float64)
        self._run(_step, self._addresses, starts, self._radii, turns, ROUNDING[self._entries[0].weight.dtype])

    def _run(self, loop: Callable[..., None], *arguments: Any) -> None:
        _announce_compiling(loop)
        threads = torch.get_num_threads() if self._bytes >= _SHARED_BYTES else 1
        if threads not in self._tables:
            self._tables[threads] = _tables(self._entries, threads)
        own, *others = self._tables[threads]
        futures = [_threads(os.getpid()).submit(loop, self._elements, table, *arguments) for table in others]
        loop(self._elements, own, *arguments)
        for future in futures:
            future.result()


@functools.cache
def _announce_compiling(loop: Callable[..., None]) -> None:
    """Log that a loop is about to be compiled for the first time on this machine, since that takes seconds."""
    if not any(_CACHE.glob(f"*{loop.__name__}*.nbi")):
        _log.warning("compiling the projection for this CPU, which takes some seconds; the result is cached on disk")


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "pbwn")


def _has_contiguous_rows(weight: Tensor, axes: Axes) -> bool:
    """Whether the elements of each row fill a contiguous range of memory, in whatever order."""
    rows = axes.rows(weight.detach())
    expected = 1
    for dim in sorted(range(axes.neuron_dims, rows.ndim), key=rows.stride):
        if rows.shape[dim] > 1:
            if rows.stride(dim) != expected:
                return False
            expected *= rows.shape[dim]
    return True


def _tables(entries: Sequence[Entry], shares: int) -> list[np.ndarray]:
    """Divide the rows of all weights into tables, one per thread, with about equal numbers of elements."""
    share = -(-sum(entry.weight.numel() for entry in entries) // shares)
    tables: list[list[tuple[int, ...]]] = [[]]
    remaining = share
    for weight, offset, count, stride, length, neuron in _lines(entries):
        while count:
            if remaining <= 0:
                tables.append([])
                remaining = share
            rows = min(count, -(-remaining // length))
            tables[-1].append((weight, offset, rows, stride, length, neuron))
            offset, count, neuron, remaining = (
                offset + rows * stride,
                count - rows,
                neuron + rows,
                remaining - rows * length,
            )
    return [np.array(lines, np.int64).reshape(-1, 6) for lines in tables]


def _lines(entries: Sequence[Entry]) -> Iterator[tuple[int, ...]]:
    """Yield the rows of all weights, evenly spaced rows of a weight as one line."""
    neuron = 0
    for weight, entry in enumerate(entries):
        rows, neuron_dims = entry.axes.rows(entry.weight.detach()), entry.axes.neuron_dims
        if neuron_dims == 0:  # a whole matrix is one row
            rows, neuron_dims = rows.unsqueeze(0), 1
        *outer, count = rows.shape[:neuron_dims]
        length = prod(rows.shape[neuron_dims:])
        for position in product(*map(range, outer)):
            offset = sum(index * stride for index, stride in zip(position, rows.stride(), strict=False))
            yield weight, offset, count, rows.stride(len(outer)), length, neuron
            neuron += count


# The loops. NaN and infinity keep their meaning: of fast arithmetic, only the order of sums is given up.
_FAST = {"reassoc", "contract", "nsz"}


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """Convert an address to the pointer that `carray` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


def _wide(element):
    """Convert an element to a float; a bfloat16 is the upper half of a float32."""


@overload(_wide, inline="always")
def _(element):
    if element == types.uint16:
        return lambda element: np.uint32(np.uint32(element) << np.uint32(16)).view(np.float32)
    return lambda element: element


def _narrow(value, element):
    """Convert a float to the dtype of an element, rounded to nearest, ties to even."""


@overload(_narrow, inline="always")
def _(value, element):
    if element == types.uint16:

        def rounded(value, element):
            bits = np.float32(value).view(np.uint32)
            return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))

        return rounded
    kind = np.float32 if element == types.float32 else np.float64
    return lambda value, element: kind(value)


def _scalar(value, element):
    """Convert a float64 to the precision that elements of a dtype are multiplied in."""


@overload(_scalar, inline="always")
def _(value, element):
    kind = np.float64 if element == types.float64 else np.float32
    return lambda value, element: kind(value)


@njit(error_model="numpy", fastmath=_FAST)
def _row(elements, table, line, index, addresses):
    """Return a row of a line, in the tensors at these addresses."""
    offset = table[line, _OFFSET] + index * table[line, _STRIDE]
    address = addresses[table[line, _WEIGHT]] + offset * elements.itemsize
    return carray(_pointer(address), (table[line, _LENGTH],), elements.dtype)


@njit(error_model="numpy", fastmath=_FAST)
def _sums(row, other, scale):
    """Return the sums of a row's squares and of its products with another row, its elements multiplied by `scale`."""
    squares = products = 0.0
    for i in range(row.size):
        element = np.float64(_wide(row[i])) * scale
        squares += element * element
        products += element * np.float64(_wide(other[i]))
    return squares, products


@njit(error_model="numpy", fastmath=_FAST)
def _inverse_of_largest(row):
    largest = 0.0
    for i in range(row.size):
        largest = max(largest, abs(np.float64(_wide(row[i]))))
    return 1 / largest


@njit(error_model="numpy", fastmath=_FAST)
def _norm(row):
    """Return the norm of a row; squares that overflow or underflow in float64 are scaled."""
    squares = 0.0
    for i in range(row.size):
        element = np.float64(_wide(row[i]))
        squares += element * element
    if 1e-280 < squares < 1e300:
        return np.sqrt(squares)
    scale = _inverse_of_largest(row)
    squares, _ = _sums(row, row, scale)
    return np.sqrt(squares) / scale


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _project(elements, table, addresses, radii, is_ball):
    for line in range(table.shape[0]):
        for index in range(table[line, _COUNT]):
            row = _row(elements, table, line, index, addresses)
            factor = radii[table[line, _NEURON] + index] / _norm(row)
            if not 0.0 < factor < np.inf or (is_ball and factor >= 1.0):
                continue  # zero, not finite, free, or inside the ball
            if 1e-30 < factor < 1e30:
                scalar = _scalar(factor, row[0])
                for i in range(row.size):
                    row[i] = _narrow(_wide(row[i]) * scalar, row[i])
            else:  # beyond float32
                for i in range(row.size):
                    row[i] = _narrow(_wide(row[i]) * factor, row[i])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _tangent(elements, table, addresses, gradients, radii):
    for line in range(table.shape[0]):
        if gradients[table[line, _WEIGHT]] == 0:
            continue
        for index in range(table[line, _COUNT]):
            row = _row(elements, table, line, index, addresses)
            gradient = _row(elements, table, line, index, gradients)
            squares, products = _sums(row, gradient, 1.0)
            multiple = products / squares
            if not (1e-280 < squares < 1e300 and abs(products) < np.inf):
                scale = _inverse_of_largest(row)
                squares, products = _sums(row, gradient, scale)
                multiple = products / squares * scale
            if multiple == 0.0 or not abs(multiple) < np.inf or radii[table[line, _NEURON] + index] == 0.0:
                continue  # tangent already, zero, not finite, or free
            for i in range(row.size):
                gradient[i] = _narrow(_wide(gradient[i]) - multiple * _wide(row[i]), gradient[i])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _step(elements, table, addresses, starts, radii, rates, rounding):
    """Take the tangent part of each update, or its direction times a rate, and project; norms follow from sums."""
    for line in range(table.shape[0]):
        for index in range(table[line, _COUNT]):
            row = _row(elements, table, line, index, addresses)
            start = _row(elements, table, line, index, starts)
            radius = radii[table[line, _NEURON] + index]
            if radius == 0.0:
                continue  # free
            squares = along = size = 0.0
            for i in range(row.size):
                old = np.float64(_wide(start[i]))
                update = np.float64(_wide(row[i])) - old
                squares += old * old
                along += old * update
                size += update * update
            if rates.size:
                multiple = rates[table[line, _WEIGHT]] * radius / np.sqrt(size)
                kept = 1.0
                length = squares + 2.0 * multiple * along + multiple * multiple * size
            else:
                multiple = 1.0
                kept = 1.0 - along / squares if squares != 0.0 else 1.0  # no part is along a row of zeros
                length = squares * kept * kept + 2.0 * kept * along + size
            factor = radius / np.sqrt(length)
            if not (0.0 < size < np.inf and 0.0 < multiple < np.inf and 0.0 < factor < np.inf):
                factor = radius / _norm(start)  # the row before the step, projected if it was off the sphere
                if not (rounding < abs(factor - 1.0) and 0.0 < factor < np.inf):
                    factor = 1.0
                for i in range(row.size):
                    row[i] = _narrow(factor * _wide(start[i]), row[i])
                continue
            kept, multiple = factor * kept, factor * multiple
            if multiple < 1e30 and 1e-30 < factor < 1e30:
                scalar, other = _scalar(kept, row[0]), _scalar(multiple, row[0])
                for i in range(row.size):
                    old = _wide(start[i])
                    row[i] = _narrow(scalar * old + other * (_wide(row[i]) - old), row[i])
            else:  # beyond float32
                for i in range(row.size):
                    old = np.float64(_wide(start[i]))
                    row[i] = _narrow(kept * old + multiple * (_wide(row[i]) - old), row[i])


_CACHE = Path(_project.stats.cache_path)  # the folder that compiled loops are cached in
