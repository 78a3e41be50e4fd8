"""Weights of every layout on a GPU that is not there, to count what a call asks of it."""

import torch

from drawing import constrained
from pbwn import Axes
from pbwn_repro.bench.counting import Counting, FakeCopies

__all__ = ["LAYOUTS", "Counting", "FakeCopies", "fake_weights"]

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


def fake_weights(layouts, dtype):
    """Weights on a GPU that is not there."""
    return [
        constrained(torch.empty_strided(shape, strides, device="cuda", dtype=dtype), axes, f"{index} of {dtype}")
        for index, (shape, strides, axes) in enumerate(layouts)
    ]
