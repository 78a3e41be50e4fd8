"""What the compiled loops share: jobs, tasks, and how numbers are read from memory and written to it.

A kernel is a C function of one address, that of a job: a table of tasks, each some neurons of one weight. Any number of
threads may run it on the same job; each takes the next task until there is none left.

Importing this imports numba; nothing is compiled before a kernel is asked for.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

if config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set, and interpreted these loops would take forever")

# The fields of a job. SELF is its own address, RADIUS a float64; NEXT counts the tasks that are taken.
SELF, NUM_TASKS, TASKS, WEIGHTS, GRADIENTS, RADII, IS_BALL, RADIUS = range(8)
NEXT, JOB_SIZE = 20, 32  # far from the others, which would leave the caches of all threads with each change
# The fields of a task: COUNT neurons that lie STRIDE apart, the weights of each as OUTER blocks of INNER numbers.
KIND, WEIGHT, OFFSET, COUNT, STRIDE, OUTER, OUTER_STRIDE, INNER, INNER_STRIDE, NEURON, TASK_SIZE = range(11)
# The kinds of task: the weights of a neuron lie side by side; they do in blocks; the neurons do; none of these.
ROWS, BLOCKS, COLUMNS, STRIDED = range(4)
MOST_COLUMNS = 1024  # neurons that are worked on together, with their sums on the stack
FLOAT32, FLOAT64, BFLOAT16 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint16)
WORD, FLOAT, DOUBLE = ir.IntType(64), ir.FloatType(), ir.DoubleType()

_FREE_ORDER = {"reassoc", "contract", "nsz"}  # lets sums use vector registers; NaN and infinity keep their meaning
inlined = njit(error_model="numpy", fastmath=_FREE_ORDER)
ordered = njit(error_model="numpy", fastmath=False)  # computes as it is written, also where an inlined one calls it
_SOURCES = zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("numba_*.py"))))


def compiled(kernel: Callable[[int], Any], result: Any = types.void) -> Any:
    """The kernel as numba's object, whose `address` is the C function.

    It is kept on disk beside its file or in the user's cache folder. Where neither can be written, it is compiled anew
    in each process. numba's cache watches the file of the kernel alone: the name under which it is kept stands for all
    of them. It serves functions of modules, no closures.
    """
    kernel.__qualname__ = f"{kernel.__name__}_{_SOURCES}"
    signature = result(types.int64)
    try:
        return cfunc(signature, cache=True)(kernel)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return cfunc(signature)(kernel)


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def size_of(typing_context: Any, dtype: Any) -> Any:
    """The bytes of a number of this type."""
    size = dtype.dtype.bitwidth // 8
    return types.int64(dtype), lambda context, builder, signature, arguments: WORD(size)


@intrinsic
def stack(typing_context: Any) -> Any:
    """Room for two float64 for each neuron that is worked on together, on the stack of the calling function."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        room = cgutils.alloca_once(builder, DOUBLE, size=2 * MOST_COLUMNS)
        return builder.bitcast(room, context.get_value_type(types.voidptr))

    return types.voidptr(), generate


@intrinsic
def take_next(typing_context: Any, address: Any) -> Any:
    """The number at an address, which is increased by one in the same instant."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], WORD.as_pointer())
        return builder.atomic_rmw("add", place, WORD(1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def converted(typing_context: Any, stored: Any, like: Any) -> Any:
    """A stored number in a float type no narrower; 16 bits are a bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = from_bfloat16(builder, arguments[0]) if stored == types.uint16 else arguments[0]
        return builder.fpext(value, DOUBLE) if like == types.float64 != stored else value

    return like(stored, like), generate


@intrinsic
def rounded(typing_context: Any, value: Any, stored: Any) -> Any:
    """A float that is no NaN in the stored type, to the nearest, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = builder.fptrunc(arguments[0], FLOAT) if value == types.float64 != stored else arguments[0]
        return to_bfloat16(builder, number) if stored == types.uint16 else number

    return stored(value, stored), generate


def from_bfloat16(builder: Any, bits: Any) -> Any:
    """The float32 of which these bits, or each of a vector of them, are the upper half."""
    whole = _shaped(bits, ir.IntType(32))
    upper = builder.shl(builder.zext(bits, whole), all_of(whole, 16))
    return builder.bitcast(upper, _shaped(bits, FLOAT))


def to_bfloat16(builder: Any, number: Any) -> Any:
    """The bits of the bfloat16 that is nearest to a float32, or to each of a vector of them, ties to even."""
    whole = _shaped(number, ir.IntType(32))
    bits = builder.bitcast(number, whole)
    odd = builder.and_(builder.lshr(bits, all_of(whole, 16)), all_of(whole, 1))
    nearest = builder.lshr(builder.add(bits, builder.add(odd, all_of(whole, 0x7FFF))), all_of(whole, 16))
    return builder.trunc(nearest, _shaped(number, ir.IntType(16)))


def all_of(kind: Any, value: float) -> Any:
    """A constant, in every lane of a vector if the type is one."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _shaped(like: Any, kind: Any) -> Any:
    """The type, or vectors of it where the value is a vector."""
    return ir.VectorType(kind, like.type.count) if isinstance(like.type, ir.VectorType) else kind


@inlined
def numbers(address: int, count: int, stride: Any, dtype: Any) -> Any:
    """Numbers in memory, a stride apart or, where it is None, side by side."""
    if stride is None:
        return carray(pointer(address), (count,), dtype)
    return carray(pointer(address), ((count - 1) * stride + 1,), dtype)[::stride]


@ordered
def add(total: float, lost: float, part: float) -> tuple[float, float]:
    """Add a part to a sum: the new sum, and what all roundings have taken from it so far."""
    new = total + part
    added = new - total
    return new, lost + ((total - (new - added)) + (part - added))


@inlined
def careful_norm(start: int, blocks: int, step: int, count: int, stride: Any, dtype: Any) -> float:
    """The norm where squares in the usual precision overflow or lose digits: by way of the largest entry."""
    largest = 0.0
    for block in range(blocks):
        for stored in numbers(start + block * step, count, stride, dtype):
            value = abs(converted(stored, 0.0))
            largest = value if value > largest or value != value else largest  # a NaN stays
    if not 0.0 < largest < math.inf:
        return largest
    total, lost = 0.0, 0.0
    for block in range(blocks):
        for stored in numbers(start + block * step, count, stride, dtype):
            total, lost = add(total, lost, (converted(stored, 0.0) / largest) ** 2)
    return math.sqrt(total + lost) * largest


@inlined
def start_of(task: Any, pointers: int, dtype: Any) -> int:
    """The address of the first number of a task; 0 where the table of pointers has none."""
    start = carray(pointer(pointers), (task[WEIGHT] + 1,), np.int64)[task[WEIGHT]]
    return start + task[OFFSET] * size_of(dtype) if start != 0 else 0


@inlined
def radii_of(task: Any, job: Any) -> Any:
    """The radii of the neurons of a task, or the one that all of them have."""
    if job[RADII] != 0:
        return carray(pointer(job[RADII] + task[NEURON] * 8), (task[COUNT],), np.float64)
    return carray(pointer(job[SELF] + RADIUS * 8), (1,), np.float64)
