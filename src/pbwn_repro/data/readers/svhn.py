"""SVHN's cropped digits: MATLAB files with X of (height, width, channel, index) and y, where 10 means the digit 0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
from torch import Tensor

from pbwn_repro.data.errors import DamagedFileError


def read_split(split: str, files: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """Return the pictures and the digits of one .mat file."""
    from scipy.io import loadmat

    path = files[0]
    try:
        content = loadmat(path)
    except Exception as error:  # scipy raises many kinds, depending on where the bytes are wrong
        raise DamagedFileError.about(
            path,
            expected="a MATLAB file",
            found=f"{path.stat().st_size:,} bytes that do not read ({error})",
            remedy="Fetch the file anew.",
        ) from error
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None or images.shape[:3] != (32, 32, 3) or images.shape[3:] != (labels.size,):
        variables = {name: value.shape for name, value in content.items() if isinstance(value, numpy.ndarray)}
        raise DamagedFileError.about(
            path,
            expected="variables X of shape (32, 32, 3, n) and y of n labels",
            found=", ".join(f"{name} {shape}" for name, shape in variables.items()) or "no variables",
            remedy="Fetch the cropped digits (format 2) anew.",
        )
    if not ((labels >= 1) & (labels <= 10)).all():
        found = f"{labels.min()}..{labels.max()}"
        raise DamagedFileError.about(path, expected="labels 1..10", found=found, remedy="Fetch the file anew.")
    pixels = torch.from_numpy(numpy.ascontiguousarray(images.transpose(3, 2, 0, 1)).astype(numpy.uint8, copy=False))
    return pixels, torch.from_numpy(labels.reshape(-1).astype(numpy.int64) % 10)
