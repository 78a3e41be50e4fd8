"""Counting the kernels, bytes moved and bytes allocated by a call, without timing and without a GPU.

With fake tensors on the device cuda, reading a value raises: a call that succeeds never waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pbwn.selection import ConstrainedWeight

_HALF = (torch.bfloat16, torch.float16)
_WITHOUT_KERNEL = ("aten.empty", "aten.new_empty", "aten.detach")


@dataclass
class Counts:
    """The names of operations, the bytes that they read and write, and the size of the largest tensor allocated."""

    operations: list[str] = field(default_factory=list)
    bytes_moved: int = 0
    largest_allocation: int = 0


class Counting(TorchDispatchMode):
    """A mode that counts operations that launch a kernel, which views do not."""

    def __init__(self) -> None:
        """Start at zero."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counts()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute the operation and count it."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name, read = str(function), {key: value for key, value in kwargs.items() if key != "out"}
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        inputs = [leaf for leaf in tree_leaves((args, read)) if isinstance(leaf, Tensor)]
        inputs = inputs[1:] if name.startswith("aten.copy_") else inputs  # the target of a copy is not read
        if function.is_view or not outputs:
            return result
        if not any(argument.alias_info and argument.alias_info.is_write for argument in function._schema.arguments):
            self.counts.largest_allocation = max(self.counts.largest_allocation, *map(_size, outputs))
        if not name.startswith(_WITHOUT_KERNEL):
            self.counts.operations.append(name)
            self.counts.bytes_moved += sum(map(_size, (*inputs, *outputs)))
            if "norm" in name or "sum" in name:
                self.counts.bytes_moved += _copied(inputs[0], outputs[0])
        return result


class FakeCopies(TorchFunctionMode):
    """A mode that replaces copies, which fail for fake CUDA tensors without a GPU, by one that moves as many bytes."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute the function, or the replacement of a copy."""
        if function is Tensor.copy_:
            return torch.neg(args[1], out=args[0])
        return function(*args, **(kwargs or {}))


def count(weights: Sequence[ConstrainedWeight], prepare: Callable[[Sequence[ConstrainedWeight]], Any]) -> Counts:
    """Count what a function does on a GPU with weights of these shapes, strides, dtypes and axes.

    `prepare` receives such weights and returns the function. Its second call is counted: the first makes plans and
    views.
    """
    with FakeTensorMode(), FakeCopies():
        run = prepare([_on_gpu(weight) for weight in weights])
        run()
        with Counting() as counting:
            run()
    counts: Counts = counting.counts
    return counts


def _on_gpu(weight: ConstrainedWeight) -> ConstrainedWeight:
    module, like = nn.Module(), weight.tensor
    module.weight = nn.Parameter(torch.empty_strided(like.shape, like.stride(), device="cuda", dtype=like.dtype))
    return ConstrainedWeight(weight.name, module, "weight", weight.axes, weight.shape)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _copied(tensor: Tensor, reduced: Tensor) -> int:
    """Return the bytes of the copy that a reduction to a wider dtype writes and reads again.

    On CUDA, half precision is reduced to float32 without a copy.
    """
    if reduced.dtype.itemsize <= tensor.dtype.itemsize or (tensor.dtype in _HALF and reduced.dtype == torch.float32):
        return 0
    return 2 * tensor.numel() * reduced.element_size()
