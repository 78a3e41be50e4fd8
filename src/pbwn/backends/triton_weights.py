"""The GPU path: all weights of a device and a dtype in one kernel launch.

It has not been run on a GPU yet, let alone timed: it is tested in Triton's interpreter, and taken only when asked for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pbwn.axes import Axes
from pbwn.backends import triton_kernels as kernels
from pbwn.backends.reference_weights import is_laid_out, tangent_gradient_
from pbwn.constraint import Constraint, MaxNorm
from pbwn.layout import Whereabouts, row_layout

# The type that a kernel reads; a bfloat16 is read as the 16 bits that it is.
DTYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.float16: tl.float16,
    torch.bfloat16: tl.int16,
}
_LONGEST_BLOCK = 1024  # numbers of a row that a program works on at a time


class TritonWeights:
    """Weights of one device and dtype, and the table that describes them to the kernels.

    It holds addresses: whoever keeps it must make sure that the weights are still where they were.
    """

    def __init__(
        self, tensors: Sequence[Tensor], axes: Sequence[Axes], radii: Sequence[Tensor | None], constraint: Constraint
    ) -> None:
        self._weights = list(zip(tensors, axes, radii, strict=True))
        self.fits = Whereabouts(tensors).hold
        self._device, self._dtype = tensors[0].device, tensors[0].dtype
        counts = [prod(one.neuron_shape(tuple(tensor.shape))) for tensor, one in zip(tensors, axes, strict=True)]
        firsts = accumulate(counts, initial=0)
        rows = [_row(tensor, one, first) for tensor, one, first in zip(tensors, axes, firsts, strict=False)]
        self._table = torch.tensor(rows, dtype=torch.int64, device=self._device)
        self._num_neurons = sum(counts)
        given = [radius.flatten() for radius in radii if radius is not None]
        length = constraint.length
        fixed = 1.0 if length == "initial" else length
        self._radius = torch.tensor(fixed, dtype=torch.float64, device=self._device)
        self._radii = torch.cat(given).to(torch.float64) if given else None
        self._is_ball = isinstance(constraint, MaxNorm)
        longest = max(one.fan_in(tuple(tensor.shape)) for tensor, one in zip(tensors, axes, strict=True))
        self._block = min(_LONGEST_BLOCK, triton.next_power_of_2(longest))

    @staticmethod
    def obstacle(tensor: Tensor, axes: Axes) -> str | None:
        """Say why a weight cannot take this path, or None where it can."""
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if tensor.device.type != "cuda" and not is_interpreted:
            return f"it is on {tensor.device}, and triton serves GPUs (or the CPU with TRITON_INTERPRET=1, slowly)"
        if tensor.dtype not in DTYPES:
            return f"its dtype is {tensor.dtype}, and triton serves {', '.join(map(str, DTYPES))}"
        if row_layout(tensor, axes) is None:
            return f"its strides {tensor.stride()} scatter the rows over memory"
        return None

    def project_(self) -> None:
        """Project all weights in place: equation (10)."""
        radii = self._radius if self._radii is None else self._radii
        self._launch(kernels.project_kernel, radii, self._radius, self._radii is not None, self._is_ball)
        torch.autograd.graph.increment_version([tensor for tensor, _, _ in self._weights])

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent in place: equation (7)."""
        pointers, written = [], []
        for tensor, axes, radii in self._weights:
            gradient = tensor.grad
            fits = (tensor.shape, tensor.stride(), self._dtype, self._device)
            if gradient is not None and is_laid_out(gradient, *fits):
                pointers.append(gradient.data_ptr())
                written.append(gradient)
            else:
                pointers.append(0)
                tangent_gradient_(tensor, axes, radii)
        if written:
            gradients = torch.tensor(pointers, dtype=torch.int64, device=self._device)
            radii = self._radius if self._radii is None else self._radii
            self._launch(kernels.tangent_kernel, gradients, radii, self._radii is not None)
            torch.autograd.graph.increment_version(written)

    def _launch(self, kernel: Any, *arguments: Any) -> None:
        is_gpu = self._device.type == "cuda"
        with torch.cuda.device(self._device) if is_gpu else contextlib.nullcontext():
            kernel[(self._num_neurons,)](
                self._table,
                len(self._weights),
                *arguments,
                stored_type=DTYPES[self._dtype],
                is_bfloat16=self._dtype == torch.bfloat16,
                block=self._block,
            )


def _row(tensor: Tensor, axes: Axes, first_neuron: int) -> list[int]:
    layout = row_layout(tensor, axes)
    assert layout is not None, TritonWeights.obstacle(tensor, axes)
    (_, outer_stride), (count, stride) = layout.neurons
    return [first_neuron, tensor.data_ptr(), count, outer_stride, stride, *layout.fan_in[0], *layout.fan_in[1]]
