"""Passes over numbers that lie side by side in memory, eight at a time, in LLVM's own language.

A compiler that may order sums as it likes puts them into a chain, where each waits for the one before; and it cannot
know that a row which is written shares no memory with one which is read. Here sums are formed as they are written down,
and one row is scaled while another is measured: memory is read and written at the same time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pbwn.backends.numba_kernels import (
    DOUBLE,
    FLOAT,
    WORD,
    add,
    all_of,
    from_bfloat16,
    ordered,
    size_of,
    to_bfloat16,
)

_LANES = 8  # numbers of a vector; a processor with smaller ones takes several
# So many vectors make a block. Their squares are added up in the type of the numbers, half precision in float32, in so
# many chains: no more than four roundings from a square to the sum of its lane, which then goes on in float64. All are
# powers of two.
_BLOCK, _CHAINS = 8, 4
_STRETCH = 1024  # float64 numbers after which the sums of the lanes are put together, before they grow too large
_AHEAD = 1024  # bytes: the processor itself asks for memory ahead, but not beyond a page
_LINE = 64  # bytes that memory hands out at once, on most processors
_FUSED = ("contract",)  # a product need not be rounded before it is added


# Instructions take on the freedom of the function that they are written into: these two are here to give them none.
@ordered
def sum_of_squares(start: int, count: int, dtype: Any) -> float:
    """The sum of squares of numbers."""
    if count <= _STRETCH or size_of(dtype) < 8:
        return _measure(start, count, dtype)
    total, lost = 0.0, 0.0
    for first in range(0, count, _STRETCH):
        part = _measure(start + first * size_of(dtype), min(_STRETCH, count - first), dtype)
        total, lost = add(total, lost, part)
    return total + lost


@ordered
def scale_and_sum(scaled: int, factor: Any, start: int, count: int, dtype: Any) -> float:
    """Multiply numbers at one address by a factor, and return the sum of squares of as many at another.

    The factor has the type of the numbers, float32 where they are bfloat16.
    """
    if count <= _STRETCH or size_of(dtype) < 8:
        return _scale_and_measure(scaled, factor, start, count, dtype)
    total, lost = 0.0, 0.0
    for first in range(0, count, _STRETCH):
        shift = first * size_of(dtype)
        part = _scale_and_measure(scaled + shift, factor, start + shift, min(_STRETCH, count - first), dtype)
        total, lost = add(total, lost, part)
    return total + lost


@intrinsic
def _measure(typing_context: Any, start: Any, count: Any, dtype: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, count, _ = arguments
        return _Pass(builder, dtype.dtype, start).over(count)

    return types.float64(start, count, dtype), generate


@intrinsic
def _scale_and_measure(typing_context: Any, scaled: Any, factor: Any, start: Any, count: Any, dtype: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scaled, factor, start, count, _ = arguments
        return _Pass(builder, dtype.dtype, start, scaled, factor).over(count)

    return types.float64(scaled, factor, start, count, dtype), generate


class _Pass:
    """Writes the instructions of a pass: numbers at `start` are measured, those at `scaled`, if given, multiplied."""

    def __init__(self, builder: Any, dtype: Any, start: Any, scaled: Any = None, factor: Any = None) -> None:
        self._builder, self._start, self._scaled, self._factor = builder, start, scaled, factor
        self._size = dtype.bitwidth // 8
        self._stored = {types.uint16: ir.IntType(16), types.float32: FLOAT, types.float64: DOUBLE}[dtype]

    def over(self, count: Any) -> Any:
        """The sum of squares: of blocks, then of a vector for each chain, of vectors, of the numbers left over."""
        builder, last = self._builder, WORD(0)
        totals = {
            lanes: cgutils.alloca_once_value(builder, all_of(ir.VectorType(DOUBLE, lanes), 0.0))
            for lanes in (_LANES, 1)
        }
        for vectors, lanes in ((_BLOCK, _LANES), (_CHAINS, _LANES), (1, _LANES), (1, 1)):
            step = WORD(vectors * lanes)
            first, last = last, builder.sub(count, builder.urem(count, step))
            with cgutils.for_range_slice(builder, first, last, step) as (index, _):
                place = builder.mul(index, WORD(self._size))
                if vectors == _BLOCK:
                    self._ask_ahead(place)
                sums = self._step(place, vectors, lanes)
                builder.store(builder.fadd(builder.load(totals[lanes]), sums), totals[lanes])
        return builder.fadd(*(self._put_together(builder.load(total), lanes) for lanes, total in totals.items()))

    def _step(self, place: Any, vectors: int, lanes: int) -> Any:
        """So many vectors: their sums of squares in each lane, in float64, as single vectors are from the start."""
        builder, sums = self._builder, []
        for number in range(vectors):
            here = builder.add(place, WORD(number * lanes * self._size))
            values = self._load(self._start, here, lanes)
            if vectors == 1:
                values = self._in_float64(values)
            squares = builder.fmul(values, values, flags=_FUSED)
            if number < _CHAINS:
                sums.append(squares)
            else:
                sums[number % _CHAINS] = builder.fadd(sums[number % _CHAINS], squares, flags=_FUSED)
            self._scale(here, lanes)
        while len(sums) > 1:
            sums = [builder.fadd(one, other) for one, other in zip(sums[::2], sums[1::2], strict=True)]
        return self._in_float64(sums[0])

    def _scale(self, place: Any, lanes: int) -> None:
        if self._scaled is None:
            return
        builder, values = self._builder, self._load(self._scaled, place, lanes)
        one = builder.insert_element(all_of(values.type, 0.0), self._factor, ir.IntType(32)(0))
        factors = builder.shuffle_vector(one, one, all_of(ir.VectorType(ir.IntType(32), lanes), 0))
        products = builder.fmul(values, factors)
        if self._stored == ir.IntType(16):
            products = to_bfloat16(builder, products)
        builder.store(products, self._pointer(self._scaled, place, lanes), align=self._size)

    def _load(self, start: Any, place: Any, lanes: int) -> Any:
        values = self._builder.load(self._pointer(start, place, lanes), align=self._size)
        return from_bfloat16(self._builder, values) if self._stored == ir.IntType(16) else values

    def _pointer(self, start: Any, place: Any, lanes: int) -> Any:
        return self._builder.inttoptr(self._builder.add(start, place), ir.VectorType(self._stored, lanes).as_pointer())

    def _in_float64(self, values: Any) -> Any:
        wide = ir.VectorType(DOUBLE, values.type.count)
        return values if values.type == wide else self._builder.fpext(values, wide)

    def _put_together(self, values: Any, lanes: int) -> Any:
        """The sum of a vector's lanes, by halves."""
        builder = self._builder
        while lanes > 1:
            lanes //= 2
            low, high = (
                ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(first, first + lanes)))
                for first in (0, lanes)
            )
            values = builder.fadd(
                builder.shuffle_vector(values, values, low), builder.shuffle_vector(values, values, high)
            )
        return builder.extract_element(values, ir.IntType(32)(0))

    def _ask_ahead(self, place: Any) -> None:
        """Ask for memory that is measured before long, or that is nobody's. What is scaled was measured before."""
        builder, word, byte = self._builder, ir.IntType(32), ir.IntType(8).as_pointer()
        ask = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        )
        to_read, keep_near, data = word(0), word(3), word(1)
        start = builder.add(self._start, builder.add(place, WORD(_AHEAD)))
        for line in range(0, _BLOCK * _LANES * self._size, _LINE):
            where = builder.inttoptr(builder.add(start, WORD(line)), byte)
            builder.call(ask, [where, to_read, keep_near, data])
