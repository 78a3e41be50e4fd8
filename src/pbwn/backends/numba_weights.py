"""The compiled CPU path: all weights of a dtype in one call, one parallel region, one pass over each row.

The region runs on the OpenMP threads of torch itself, as many as `torch.get_num_threads()` says: a pool of numba's own
would compete with them for the cores. What is safe for torch's own operations is safe here: calls from several Python
threads on different projections, processes that are spawned or come from a fork server. A process that was forked in
another way keeps to one thread, since an OpenMP pool does not survive a fork. So does a platform whose torch does not
use an OpenMP library with GNU's entry.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pbwn.axes import Axes
from pbwn.backends import numba_kernels as kernels
from pbwn.backends import numba_projection, numba_tangent
from pbwn.backends.forking import is_forked
from pbwn.backends.numba_whereabouts import torch_library, whereabouts
from pbwn.backends.reference_weights import is_laid_out, tangent_gradient_
from pbwn.constraint import Constraint, MaxNorm
from pbwn.layout import RowLayout, row_layout

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
_TASKS_PER_THREAD = 4  # or more: a thread that is held up leaves its last ones to the others
_TASK_BYTES = 32 * 1024, 512 * 1024  # no less, since a task takes time to begin; no more, unless a row alone has more
_COLUMN_BYTES = 2 * 1024 * 1024  # columns are passed over in long lines, which memory likes better than short ones
_SERIAL_BYTES = 64 * 1024  # less than this is done before a second thread would have started


class NumbaWeights:
    """Weights of one dtype in the CPU's memory, and the job that describes them to the kernels.

    It holds addresses: whoever keeps it must make sure that the weights are still where they were.
    """

    def __init__(
        self, tensors: Sequence[Tensor], axes: Sequence[Axes], radii: Sequence[Tensor | None], constraint: Constraint
    ) -> None:
        self._tensors = list(tensors)
        self.fits = whereabouts(tensors)
        self._axes_and_radii = list(zip(axes, radii, strict=True))
        self._dtype, self._device = tensors[0].dtype, tensors[0].device
        self._strides = [tensor.stride() for tensor in tensors]
        self._bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._pointers = array("q", [tensor.data_ptr() for tensor in tensors])
        least, most = _TASK_BYTES
        size = min(most, max(least, self._bytes // (torch.get_num_threads() * _TASKS_PER_THREAD)))
        self._tasks = array("q", _tasks(tensors, axes, size))
        given = [radius.flatten() for radius in radii if radius is not None]
        self._radii = torch.cat(given).to(torch.float64) if given else None
        self._job = (ctypes.c_int64 * kernels.JOB_SIZE)()
        self._job[kernels.SELF] = ctypes.addressof(self._job)
        self._job[kernels.NUM_TASKS] = len(self._tasks) // kernels.TASK_SIZE
        self._job[kernels.TASKS] = self._tasks.buffer_info()[0]
        self._job[kernels.WEIGHTS] = self._pointers.buffer_info()[0]
        self._job[kernels.RADII] = 0 if self._radii is None else self._radii.data_ptr()
        self._job[kernels.IS_BALL] = isinstance(constraint, MaxNorm)
        length = constraint.length
        if length != "initial":
            ctypes.c_double.from_buffer(self._job, kernels.RADIUS * 8).value = length

    @staticmethod
    def obstacle(tensor: Tensor, axes: Axes) -> str | None:
        """Say why a weight cannot take this path, or None where it can."""
        if tensor.device.type != "cpu":
            return f"it is on {tensor.device}, and numba serves the CPU"
        if tensor.dtype not in DTYPES:
            return f"its dtype is {tensor.dtype}, and numba serves {', '.join(map(str, DTYPES))}"
        if row_layout(tensor, axes) is None:
            return f"its strides {tensor.stride()} scatter the rows over memory"
        return None

    def project_(self) -> None:
        """Project all weights in place: equation (10)."""
        self._run("project")
        torch.autograd.graph.increment_version(self._tensors)

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent in place: equation (7)."""
        pointers, written = array("q"), []
        for tensor, stride, (axes, radii) in zip(self._tensors, self._strides, self._axes_and_radii, strict=True):
            gradient = tensor.grad
            if gradient is None:
                pointers.append(0)
            elif is_laid_out(gradient, tensor.shape, stride, self._dtype, self._device):
                pointers.append(gradient.data_ptr())
                written.append(gradient)
            else:
                pointers.append(0)
                tangent_gradient_(tensor, axes, radii)
        self._job[kernels.GRADIENTS] = pointers.buffer_info()[0]
        self._run("tangent")
        torch.autograd.graph.increment_version(written)

    def _run(self, operation: str) -> None:
        kernel = _kernel(operation, self._dtype)
        threads, region = torch.get_num_threads(), _parallel_region()
        self._job[kernels.NEXT] = 0
        if threads == 1 or self._bytes < _SERIAL_BYTES or region is None or is_forked():
            kernel(self._job[kernels.SELF])
        else:
            region(kernel, self._job[kernels.SELF], threads, 0)


def _tasks(tensors: Sequence[Tensor], axes: Sequence[Axes], size: int) -> Iterator[int]:
    """The tasks of a job, one after the other, each of about so many bytes and a neuron at least."""
    first_neuron = 0
    for index, (tensor, one) in enumerate(zip(tensors, axes, strict=True)):
        layout = row_layout(tensor, one)
        assert layout is not None, NumbaWeights.obstacle(tensor, one)
        (outer_count, outer_stride), (count, stride) = layout.neurons
        kind, most = _kind_and_size(layout, tensor, size)
        for outer in range(outer_count):
            for first in range(0, count, most):
                offset = outer * outer_stride + first * stride
                fan_in = (*layout.fan_in[0], *layout.fan_in[1])
                yield from (kind, index, offset, min(most, count - first), stride, *fan_in, first_neuron + first)
            first_neuron += count


def _kind_and_size(layout: RowLayout, tensor: Tensor, size: int) -> tuple[int, int]:
    """The kind of a weight's tasks, and the largest number of neurons in one."""
    (_, (count, neuron_stride)), ((blocks, _), (inner, inner_stride)) = layout.neurons, layout.fan_in
    row_bytes = blocks * inner * tensor.element_size()
    tasks = -(-count * row_bytes // size)
    rows = -(-count // tasks)  # the same number in each, but for the last
    if inner_stride == 1:
        return (kernels.ROWS if blocks == 1 else kernels.BLOCKS), rows
    # Columns add up one by one: in float64 that would cost digits which the blocks of single rows keep.
    if neuron_stride == 1 and tensor.dtype != torch.float64:
        return kernels.COLUMNS, min(kernels.MOST_COLUMNS, max(16, _COLUMN_BYTES // row_bytes))
    return kernels.STRIDED, rows


@functools.cache
def _kernel(operation: str, dtype: torch.dtype) -> Any:
    known = {"project": numba_projection.KERNELS, "tangent": numba_tangent.KERNELS}[operation]
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(kernels.compiled(known[dtype]).address)


@functools.cache
def _parallel_region() -> Callable[[Any, int, int, int], None] | None:
    """The entry of torch's OpenMP library: runs a C function of one address on so many threads."""
    region = getattr(torch_library(), "GOMP_parallel", None)
    if region is not None:
        region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        region.restype = None
    return region
