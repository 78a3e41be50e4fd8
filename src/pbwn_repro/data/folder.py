"""Image folders, train/<class>/*.JPEG and val/<class>/*.JPEG: pictures of any size, decoded when they are needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from pbwn_repro.data.crops import Crop
from pbwn_repro.data.datasets import DataSet
from pbwn_repro.data.digests import combined_digest
from pbwn_repro.data.errors import DamagedFileError, DataError, MissingFileError
from pbwn_repro.data.splits import rows, to_pixels

PREFIX = "folder:"
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
TEST_FOLDERS = ("val", "test")


@dataclass(frozen=True, eq=False, repr=False)
class FolderSplit:
    """Pictures as files, in the order of their classes and names.

    paths: relative to the folder, which may move without changing the digest.
    """

    folder: Path
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    labels: Tensor
    lazy = True

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.paths)

    def __repr__(self) -> str:
        """Return the number and the folder, not the names."""
        return f"{type(self).__name__}({len(self)} pictures in {self.folder})"

    @cached_property
    def digest(self) -> str:
        """The sha256 of the names and sizes of the files: reading them all would take hours."""
        return combined_digest(f"{path} {size}" for path, size in zip(self.paths, self.sizes, strict=True))

    def subset(self, indices: Tensor) -> FolderSplit:
        """Return the pictures at these indices, in this order."""
        chosen = indices.tolist()
        paths, sizes = (tuple(values[index] for index in chosen) for values in (self.paths, self.sizes))
        return FolderSplit(self.folder, paths, sizes, self.labels[indices])

    def read(self, indices: Tensor, crop: Crop | None = None, drawn: Tensor | None = None) -> Tensor:
        """Decode, and cut each picture while at it; without a crop all must have one size."""
        pictures = []
        for index, row in zip(indices.tolist(), rows(drawn, len(indices)), strict=True):
            picture = decode(self.folder / self.paths[index])
            pictures.append(to_pixels(picture if crop is None else crop(picture, row)))
            if pictures[-1].shape != pictures[0].shape:
                raise DataError.about(
                    self.folder / self.paths[index],
                    expected=f"{pictures[0].shape[2]}x{pictures[0].shape[1]} pixels like the others of its batch",
                    found=f"{picture.width}x{picture.height}",
                    remedy="Use an augmentation with a crop (imagenet_training, imagenet_evaluation).",
                )
        size = crop.size if crop else 0
        return torch.stack(pictures) if pictures else torch.empty(0, 3, size, size, dtype=torch.uint8)


def decode(path: Path) -> Image.Image:
    """Return a picture in RGB."""
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        found = f"{path.stat().st_size:,} bytes that do not decode ({error})" if path.is_file() else "no such file"
        raise DamagedFileError.about(
            path, expected="a picture", found=found, remedy="Replace the file, or remove it from the folder."
        ) from error


def load_folder(folder: Path, name: str | None = None) -> DataSet:
    """Return the set of a folder with train/ and val/ (or test/), one folder for each class in each."""
    folder = folder.expanduser()
    test_folder = next((part for part in TEST_FOLDERS if (folder / part).is_dir()), TEST_FOLDERS[0])
    parts = {"train": folder / "train", "test": folder / test_folder}
    for part in parts.values():
        if not part.is_dir():
            raise MissingFileError.about(
                part,
                expected="a folder with one folder of pictures for each class",
                found="no such folder",
                remedy="Lay the pictures out as train/<class>/* and val/<class>/*.",
            )
    classes = class_names(parts["train"])
    compare_classes(parts["train"], classes, parts["test"], class_names(parts["test"]))
    splits = {split: scan(part, classes) for split, part in parts.items()}
    return DataSet(name or folder.resolve().name, splits, classes, "an image folder")


def class_names(part: Path) -> tuple[str, ...]:
    """Return the names of the class folders, sorted."""
    return tuple(sorted(entry.name for entry in os.scandir(part) if entry.is_dir()))


def compare_classes(train: Path, expected: tuple[str, ...], test: Path, found: tuple[str, ...]) -> None:
    """Raise unless both parts have the same class folders."""
    missing, unknown = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or unknown:
        differences = [f"no {', '.join(missing[:5])}"] * bool(missing) + [f"also {', '.join(unknown[:5])}"] * bool(
            unknown
        )
        raise MissingFileError.about(
            test,
            expected=f"the {len(expected)} class folders of {train}",
            found=f"{len(found)} class folders, {' and '.join(differences)}",
            remedy="ImageNet's validation pictures have to be sorted into class folders first.",
        )


def scan(part: Path, classes: tuple[str, ...]) -> FolderSplit:
    """Return the pictures of all classes; a class without any is an error."""
    paths, sizes, labels = [], [], []
    for label, name in enumerate(classes):
        files = sorted(
            (entry.name, entry.stat().st_size)
            for entry in os.scandir(part / name)
            if entry.name.lower().endswith(SUFFIXES) and entry.is_file()
        )
        if not files:
            raise MissingFileError.about(
                part / name,
                expected=f"pictures ({', '.join(SUFFIXES)})",
                found="none",
                remedy="Fill the class folder, or remove it from train and val.",
            )
        paths += [f"{name}/{file}" for file, _ in files]
        sizes += [size for _, size in files]
        labels += [label] * len(files)
    return FolderSplit(part, tuple(paths), tuple(sizes), torch.tensor(labels))
