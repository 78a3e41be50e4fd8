"""The idx format of MNIST and Fashion-MNIST, packed by gzip or not."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
from torch import Tensor

from pbwn_repro.data.errors import DamagedFileError

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTES = 8


def read_unpacked(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if it is gzip's."""
    content = path.read_bytes()
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedFileError.about(
            path,
            expected="a whole gzip file",
            found=f"{len(content):,} bytes that do not unpack ({error})",
            remedy="Fetch the file anew.",
        ) from error


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the unsigned bytes of an idx file as a tensor of the given number of dimensions."""
    content = read_unpacked(path)
    magic = bytes([0, 0, UNSIGNED_BYTES, dimensions])
    header = 4 + 4 * dimensions
    if content[:4] != magic or len(content) < header:
        raise DamagedFileError.about(
            path,
            expected=f"an idx file of {dimensions} dimensions, beginning with {magic.hex()}",
            found=f"{len(content):,} bytes beginning with {content[:4].hex() or 'nothing'}",
            remedy="Check that images and labels are not swapped, or fetch the file anew.",
        )
    shape = [int.from_bytes(content[4 * i : 4 * i + 4], "big") for i in range(1, dimensions + 1)]
    if len(content) != header + math.prod(shape):
        raise DamagedFileError.about(
            path,
            expected=f"{header + math.prod(shape):,} bytes for shape {tuple(shape)}",
            found=f"{len(content):,} bytes",
            remedy="The file was cut or added to: fetch it anew.",
        )
    return torch.from_numpy(numpy.frombuffer(content, numpy.uint8, offset=header).copy()).view(shape)


def read_split(split: str, files: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """Return the pictures and labels of an image file and a label file."""
    images, labels = read_idx(files[0], 3), read_idx(files[1], 1)
    if len(images) != len(labels):
        raise DamagedFileError.about(
            files[1],
            expected=f"{len(images):,} labels, one for each image of {files[0].name}",
            found=f"{len(labels):,}",
            remedy="Check that the files of train and test are not swapped.",
        )
    return images.unsqueeze(1), labels.long()
