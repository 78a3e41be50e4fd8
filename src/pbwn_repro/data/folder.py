"""Image folders, train/<class>/*.JPEG and val/<class>/*.JPEG: images of any size, decoded on demand."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from pbwn_repro.data.splits import Crop, DataSet, Split, combined_digest, rows, to_pixels
from pbwn_repro.errors import DamagedFileError, DataError, MissingFileError

PREFIX = "folder:"
IMAGENET_PREPARATION = {"normalisation": "imagenet"}
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
TEST_FOLDERS = ("val", "test")


@dataclass(frozen=True, eq=False, repr=False)
class FolderSplit(Split):
    """Images in files, ordered by class and name.

    paths: relative to the folder, so that moving it does not change the digest.
    """

    folder: Path
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    labels: Tensor
    lazy = True

    def __repr__(self) -> str:
        """Return a summary without the file names."""
        return f"{type(self).__name__}({len(self)} images in {self.folder})"

    @cached_property
    def digest(self) -> str:
        """The sha256 of the names and sizes of the files; hashing their contents would take hours."""
        return combined_digest(f"{path} {size}" for path, size in zip(self.paths, self.sizes, strict=True))

    def subset(self, indices: Tensor) -> FolderSplit:
        """Return the images at these indices, in this order."""
        chosen = indices.tolist()
        paths, sizes = (tuple(values[index] for index in chosen) for values in (self.paths, self.sizes))
        return FolderSplit(self.folder, paths, sizes, self.labels[indices])

    def read(self, indices: Tensor, crop: Crop | None = None, drawn: Tensor | None = None) -> Tensor:
        """Decode the images, cropping each; without a crop, all must have the same size."""
        images = []
        for index, row in zip(indices.tolist(), rows(drawn, len(indices)), strict=True):
            image = decode(self.folder / self.paths[index])
            images.append(to_pixels(image if crop is None else crop(image, row)))
            if images[-1].shape != images[0].shape:
                raise DataError.about(
                    self.folder / self.paths[index],
                    expected=f"{images[0].shape[2]}x{images[0].shape[1]} pixels like the others of its batch",
                    found=f"{image.width}x{image.height}",
                    remedy="Use an augmentation with a crop (imagenet_training, imagenet_evaluation).",
                )
        size = crop.size if crop else 0
        return torch.stack(images) if images else torch.empty(0, 3, size, size, dtype=torch.uint8)

    def damaged(self) -> list[str]:
        """Decode every image, and return a message for each that cannot be decoded."""
        messages = []
        for path in self.paths:
            try:
                decode(self.folder / path)
            except DamagedFileError as error:
                messages.append(str(error))
        return messages


def decode(path: Path) -> Image.Image:
    """Return the image in a file as RGB."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        found = f"{path.stat().st_size:,} bytes that cannot be decoded ({error})" if path.is_file() else "no such file"
        raise DamagedFileError.about(
            path, expected="an image", found=found, remedy="Replace the file, or remove it from the folder."
        ) from error


def load_folder(folder: Path, name: str | None = None) -> DataSet:
    """Load the set in a folder with train/ and val/ (or test/), each with one folder per class."""
    folder = folder.expanduser()
    test_folder = next((part for part in TEST_FOLDERS if (folder / part).is_dir()), TEST_FOLDERS[0])
    parts = {"train": folder / "train", "test": folder / test_folder}
    for part in parts.values():
        if not part.is_dir():
            raise MissingFileError.about(
                part,
                expected="a folder with one folder of images for each class",
                found="no such folder",
                remedy="Arrange the images as train/<class>/* and val/<class>/*.",
            )
    classes = _class_names(parts["train"])
    _compare_classes(parts["train"], classes, parts["test"], _class_names(parts["test"]))
    splits = {split: _scan(part, classes) for split, part in parts.items()}
    return DataSet(name or folder.resolve().name, splits, classes, "an image folder")


def load_imagenet(data_dir: Path | None) -> DataSet:
    """Load ImageNet from the user's folder, or from imagenet/ inside it."""
    if data_dir is None:
        raise MissingFileError.about(
            "imagenet",
            expected="a folder with train/<class>/*.JPEG and val/<class>/*.JPEG",
            found="no --data-dir",
            remedy="Obtain ImageNet from its owners, and pass its folder with --data-dir.",
        )
    folder = data_dir / "imagenet"
    return load_folder(folder if folder.is_dir() else data_dir, name="imagenet")


def _class_names(part: Path) -> tuple[str, ...]:
    """Return the names of the class folders, sorted."""
    return tuple(sorted(entry.name for entry in os.scandir(part) if entry.is_dir()))


def _compare_classes(train: Path, expected: tuple[str, ...], test: Path, found: tuple[str, ...]) -> None:
    """Raise unless train and test have the same class folders."""
    missing, unexpected = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    parts = {"missing": missing, "unexpected": unexpected}
    differences = [f"{word}: {', '.join(names[:5])}" for word, names in parts.items() if names]
    if differences:
        raise MissingFileError.about(
            test,
            expected=f"the {len(expected)} class folders of {train}",
            found=f"{len(found)} class folders ({'; '.join(differences)})",
            remedy="ImageNet's validation images must be sorted into class folders first.",
        )


def _scan(part: Path, classes: tuple[str, ...]) -> FolderSplit:
    """Return the images of all classes; raise if a class has none."""
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
                expected=f"images ({', '.join(SUFFIXES)})",
                found="none",
                remedy="Add images to the class folder, or remove it from train and val.",
            )
        paths += [f"{name}/{file}" for file, _ in files]
        sizes += [size for _, size in files]
        labels += [label] * len(files)
    return FolderSplit(part, tuple(paths), tuple(sizes), torch.tensor(labels))
