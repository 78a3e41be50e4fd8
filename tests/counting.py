"""Counting what a call asks of a device: kernels, bytes moved, bytes allocated. Nothing is timed, and no GPU is needed.

With fake tensors on the device cuda, a look at a value raises: a call that passes waits for nothing.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drawing import constrained
from pbwn import Axes

HALF = (torch.bfloat16, torch.float16)
WITHOUT_KERNEL = ("aten.empty", "aten.new_empty", "aten.detach")
LAYOUTS = {  # shape, strides, axes
    "rows": ((96, 512), (512, 1), Axes((0,))),
    "long rows": ((8, 65_536), (65_536, 1), Axes((0,))),
    "columns": ((512, 96), (96, 1), Axes((1,))),
    "convolution": ((64, 64, 3, 3), (576, 9, 3, 1), Axes((0,))),
    "channels last": ((64, 64, 3, 3), (576, 1, 192, 64), Axes((0,))),
    "transposed": ((96, 512), (1, 96), Axes((0,))),
    "grouped": ((256, 32, 3, 3), (288, 9, 3, 1), Axes((1,), groups=4)),
    "experts": ((4, 32, 512), (16_384, 512, 1), Axes((0, 1))),
    "sliced": ((96, 512), (1024, 2), Axes((0,))),
}


@dataclass
class Counts:
    """Operations by name, bytes that they read and write, and the largest tensor that one of them made."""

    operations: list[str] = field(default_factory=list)
    bytes_moved: int = 0
    largest_allocation: int = 0


class Counting(TorchDispatchMode):
    """Counts the operations of a call that launch a kernel, which views do not."""

    def __init__(self):
        super().__init__()
        self.counts = Counts()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name, read = str(function), {key: value for key, value in kwargs.items() if key != "out"}
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        inputs = [leaf for leaf in tree_leaves((args, read)) if isinstance(leaf, Tensor)]
        inputs = inputs[1:] if name.startswith("aten.copy_") else inputs  # what is written is not read
        if function.is_view or not outputs:
            return result
        if not any(argument.alias_info and argument.alias_info.is_write for argument in function._schema.arguments):
            self.counts.largest_allocation = max(self.counts.largest_allocation, *map(size, outputs))
        if not name.startswith(WITHOUT_KERNEL):
            self.counts.operations.append(name)
            self.counts.bytes_moved += sum(map(size, (*inputs, *outputs)))
            if "norm" in name or "sum" in name:
                self.counts.bytes_moved += copied(inputs[0], outputs[0])
        return result


def size(tensor):
    return tensor.numel() * tensor.element_size()


def copied(one, reduced):
    """What a reduction to a wider dtype writes and reads again: it copies its input, but not half precision on CUDA."""
    if reduced.dtype.itemsize <= one.dtype.itemsize or (one.dtype in HALF and reduced.dtype == torch.float32):
        return 0
    return 2 * one.numel() * reduced.element_size()


def fake_weights(layouts, dtype):
    """Weights on a GPU that is not there."""
    return [
        constrained(torch.empty_strided(shape, strides, device="cuda", dtype=dtype), axes, f"{index} of {dtype}")
        for index, (shape, strides, axes) in enumerate(layouts)
    ]
