"""Whether weights are where they were, asked of torch's C interface for all of them in one compiled call.

The functions are those that torch offers to models which were compiled ahead of time (`aoti_torch_get_...`). They take
the address of a C++ tensor, which is a pointer to its implementation and nothing else. Which implementation a Python
tensor has now is read from the object itself, at the place where a tensor was found to keep what it calls `_cdata`.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import binding, ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from pbwn.backends.numba_kernels import compiled, pointer
from pbwn.layout import Whereabouts

# The places of a tensor in the table, which holds one after the other; its strides follow. OWNER is where the object
# says which implementation it has.
OWNER, IMPLEMENTATION, POINTER, NUMEL, DTYPE, NUM_DIMS, STRIDES = range(7)
_LAST_KNOWN = (2, 13)  # the last release of torch that this was tested with; later ones are asked in Python
_QUESTIONS = tuple(f"aoti_torch_get_{name}" for name in ("data_ptr", "numel", "dtype", "dim", "strides"))


class CompiledWhereabouts:
    """Where tensors lay in memory, and how, when this was made."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)  # keeps the objects where they are
        self._table = array("q", [len(tensors)])
        for tensor in tensors:
            owner, found, strides = id(tensor) + (_place() or 0), tensor._cdata, tensor.stride()
            dtype = _dtype_number(found)
            self._table.extend((owner, found, tensor.data_ptr(), tensor.numel(), dtype, len(strides), *strides))
        self._address = self._table.buffer_info()[0]
        self._kernel = _kernel()

    def hold(self) -> bool:
        """Whether everything is as it was. `torch.utils.swap_tensors` gives a tensor another's implementation."""
        return self._kernel(self._address) == 1


def whereabouts(tensors: Sequence[Tensor]) -> Callable[[], bool]:
    """What says whether these tensors are where they are now; without the compiled call where torch is not as known."""
    if _is_as_known():
        hold = CompiledWhereabouts(tensors).hold
        if hold():
            return hold
    return Whereabouts(tensors).hold


@functools.cache
def _is_as_known() -> bool:
    """Whether this torch has the functions, and is no later one whose tensors may be made otherwise."""
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    has_functions = all(hasattr(torch_library(), question) for question in _QUESTIONS)
    return release <= _LAST_KNOWN and has_functions and _place() is not None


@functools.cache
def _place() -> int | None:
    """How many bytes into a Python tensor the address of its implementation stands, or None where it does not."""
    tensor = torch.empty(0)
    words = (ctypes.c_int64 * (object.__sizeof__(tensor) // 8)).from_address(id(tensor))
    found = [place for place, word in enumerate(words) if word == tensor._cdata]
    return found[0] * 8 if len(found) == 1 else None


@functools.cache
def torch_library() -> Any:
    """The library that holds torch's own threads and its C interface, or None where it has another name."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    return None


def _dtype_number(implementation: int) -> int:
    """Torch's number for the dtype of a tensor."""
    tensor, number = ctypes.c_void_p(implementation), ctypes.c_int32()
    torch_library().aoti_torch_get_dtype(ctypes.byref(tensor), ctypes.byref(number))
    return number.value


@intrinsic(prefer_literal=True)
def _ask(typing_context: Any, question: Any, tensor: Any) -> Any:
    """What a function of torch's C interface writes for the tensor at an address; 0 where it fails."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(64)
        answer = cgutils.alloca_once_value(builder, number(0))
        kind = ir.FunctionType(ir.IntType(32), [number, answer.type])
        function = cgutils.get_or_insert_function(builder.module, kind, question.literal_value)
        builder.call(function, [arguments[1], answer])
        return builder.load(answer)

    return types.int64(question, types.int64), generate


def _hold(table: int) -> int:
    count = carray(pointer(table), (1,), np.int64)[0]
    start = table + 8
    for _ in range(count):
        tensor = carray(pointer(start), (STRIDES,), np.int64)
        if (
            carray(pointer(tensor[OWNER]), (1,), np.int64)[0] != tensor[IMPLEMENTATION]
            or _ask("aoti_torch_get_data_ptr", tensor[OWNER]) != tensor[POINTER]
            or _ask("aoti_torch_get_numel", tensor[OWNER]) != tensor[NUMEL]
            or _ask("aoti_torch_get_dtype", tensor[OWNER]) != tensor[DTYPE]
            or _ask("aoti_torch_get_dim", tensor[OWNER]) != tensor[NUM_DIMS]
        ):
            return 0
        found = carray(pointer(_ask("aoti_torch_get_strides", tensor[OWNER])), (tensor[NUM_DIMS],), np.int64)
        strides = carray(pointer(start + STRIDES * 8), (tensor[NUM_DIMS],), np.int64)
        for dim in range(tensor[NUM_DIMS]):
            if found[dim] != strides[dim]:
                return 0
        start += (STRIDES + tensor[NUM_DIMS]) * 8
    return 1


@functools.cache
def _kernel() -> Callable[[int], int]:
    binding.load_library_permanently(torch_library()._name)
    # It keeps Python's lock, so that no other thread changes a tensor under it.
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(compiled(_hold, types.int64).address)
