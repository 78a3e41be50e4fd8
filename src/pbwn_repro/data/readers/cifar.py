"""The binary form of CIFAR-10 and CIFAR-100: records of label bytes and 3 x 32 x 32 pixels, in a tar.gz archive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy
import torch
from torch import Tensor

from pbwn_repro.data.archives import read_members
from pbwn_repro.data.errors import DamagedFileError

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32

CIFAR10_MEMBERS = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}
CIFAR100_MEMBERS = {"train": ("cifar-100-binary/train.bin",), "test": ("cifar-100-binary/test.bin",)}


def reader(
    members: Mapping[str, tuple[str, ...]], label_bytes: int
) -> Callable[[str, Sequence[Path]], tuple[Tensor, Tensor]]:
    """Return the reader of an archive; the last of a record's label bytes counts (CIFAR-100: coarse, fine)."""

    def read_split(split: str, files: Sequence[Path]) -> tuple[Tensor, Tensor]:
        archive, record = files[0], label_bytes + PIXELS
        contents = read_members(archive, members[split])
        for name, content in contents.items():
            if len(content) % record or not content:
                raise DamagedFileError.about(
                    f"{archive}, member {name}",
                    expected=f"records of {record:,} bytes",
                    found=f"{len(content):,} bytes",
                    remedy="The file was cut or is of another set: fetch the archive anew.",
                )
        records = numpy.frombuffer(b"".join(contents[name] for name in members[split]), numpy.uint8)
        records = records.reshape(-1, record)
        images = torch.from_numpy(records[:, label_bytes:].copy()).view(-1, *SHAPE)
        return images, torch.from_numpy(records[:, label_bytes - 1].astype(numpy.int64))

    return read_split
