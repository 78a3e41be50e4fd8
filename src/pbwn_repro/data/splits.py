"""Images with labels: splits, data sets, and the digests that identify their content."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy
import torch
from PIL import Image
from torch import Tensor

from pbwn_repro.errors import DataError


class Crop(ABC):
    """A crop to size x size, applied to one image during decoding; random numbers, if any, are passed in."""

    size: int

    def draw(self, generator: torch.Generator, count: int) -> Tensor | None:
        """Return random numbers for `count` images, one row each; None if the crop is deterministic."""
        return None

    @abstractmethod
    def __call__(self, image: Image.Image, drawn: Tensor | None) -> Image.Image:
        """Return the cropped image."""


class Split(ABC):
    """The images of a split as `Batches` reads them, independent of where they are stored.

    labels: the classes as int64, one for each image.
    lazy: whether reading decodes files, so that worker processes pay off.
    """

    labels: Tensor
    lazy = False

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    @property
    @abstractmethod
    def digest(self) -> str:
        """The sha256 that identifies the content."""

    @abstractmethod
    def subset(self, indices: Tensor) -> Split:
        """Return the images at these indices, in this order."""

    @abstractmethod
    def read(self, indices: Tensor, crop: Crop | None = None, drawn: Tensor | None = None) -> Tensor:
        """Return the images as uint8 of shape (number, channels, height, width).

        crop: applied to each image during decoding.
        drawn: the random numbers of the crop, one row for each image.
        """


@dataclass(frozen=True, eq=False, repr=False)
class MemorySplit(Split):
    """A split held in memory as one uint8 tensor.

    known_digest: the digest, if it is already computed.
    """

    images: Tensor
    labels: Tensor
    known_digest: str | None = None

    def __post_init__(self) -> None:
        """Validate types and shapes."""
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            found = f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            expected = "uint8 of shape (number, channels, height, width)"
            raise DataError.about("images", expected=expected, found=found, remedy="Convert them first.")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            found = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            expected = f"int64 of shape ({len(self.images)},)"
            raise DataError.about("labels", expected=expected, found=found, remedy="Give one class for each image.")

    def __repr__(self) -> str:
        """Return a summary without the pixels."""
        return f"{type(self).__name__}({len(self)} images of {tuple(self.images.shape[1:])})"

    @cached_property
    def digest(self) -> str:
        """The sha256 of images and labels."""
        return self.known_digest or combined_digest([tensor_digest(self.images), tensor_digest(self.labels)])

    @cached_property
    def content(self) -> str:
        """The sha256 of the images with their labels, independent of their order."""
        pairs = zip(self.labels.tolist(), self.images.numpy(), strict=True)
        digests = (hashlib.sha256(b"%d " % label + image.tobytes()).hexdigest() for label, image in pairs)
        return combined_digest(sorted(digests))

    def subset(self, indices: Tensor) -> MemorySplit:
        """Return the images at these indices, in this order."""
        return MemorySplit(self.images[indices], self.labels[indices])

    def read(self, indices: Tensor, crop: Crop | None = None, drawn: Tensor | None = None) -> Tensor:
        """Return the images at these indices, cropped one by one if a crop is given."""
        images = self.images[indices]
        if crop is None:
            return images
        pairs = zip(images, rows(drawn, len(indices)), strict=True)
        cropped = [to_pixels(crop(to_image(pixels), row)) for pixels, row in pairs]
        return torch.stack(cropped) if cropped else images.new_empty(0, images.shape[1], crop.size, crop.size)


def join(*splits: MemorySplit) -> MemorySplit:
    """Concatenate splits, as the paper does with SVHN's train and extra."""
    return MemorySplit(torch.cat([split.images for split in splits]), torch.cat([split.labels for split in splits]))


def rows(drawn: Tensor | None, count: int) -> list[Tensor | None]:
    """Return the random numbers of each image; None for each if nothing was drawn."""
    return [None] * count if drawn is None else list(drawn)


def to_pixels(image: Image.Image) -> Tensor:
    """Convert a Pillow image to uint8 of shape (channels, height, width)."""
    pixels = numpy.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def to_image(pixels: Tensor) -> Image.Image:
    """Convert uint8 of shape (channels, height, width) to a Pillow image."""
    return Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy())


@dataclass(frozen=True, eq=False)
class DataSet:
    """Splits that share their classes.

    name: recorded in a run's configuration together with the digest; never a path.
    origin: where the files came from, for display.
    """

    name: str
    splits: Mapping[str, Split]
    classes: tuple[str, ...] = field(repr=False)
    origin: str

    def __post_init__(self) -> None:
        """Refuse labels outside the classes, as from the label file of another set."""
        for split_name, split in self.splits.items():
            if len(split) and not 0 <= int(split.labels.min()) <= int(split.labels.max()) < len(self.classes):
                raise DataError.about(
                    f"labels of {self.name}, split {split_name}",
                    expected=f"0..{len(self.classes) - 1}",
                    found=f"{int(split.labels.min())}..{int(split.labels.max())}",
                    remedy="Replace the label file.",
                )

    def __getitem__(self, split: str) -> Split:
        """Return a split by name."""
        if split not in self.splits:
            raise DataError.about(
                f"split {split!r} of {self.name}",
                expected=" or ".join(self.splits),
                found="no such split",
                remedy="Choose one of these.",
            )
        return self.splits[split]

    @property
    def train(self) -> Split:
        """The images to train on."""
        return self["train"]

    @property
    def test(self) -> Split:
        """The images to evaluate on."""
        return self["test"]

    @property
    def digest(self) -> str:
        """The sha256 of the loaded splits and of the class names."""
        digests = {name: split.digest for name, split in self.splits.items()}
        return combined_digest({**digests, "classes": combined_digest(self.classes)})


def tensor_digest(tensor: Tensor) -> str:
    """Return the sha256 of a tensor's dtype, shape and elements."""
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def combined_digest(parts: Iterable[str] | Mapping[str, str]) -> str:
    """Combine strings into one sha256; a mapping's keys are included, but not their order."""
    lines = [f"{key}={value}" for key, value in sorted(parts.items())] if isinstance(parts, Mapping) else list(parts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
