"""Images with labels: the splits of a data set, the set itself, and the digests that stand for their content."""

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
    """Cuts one image to size x size while it is decoded; the random numbers, if it needs any, come from outside."""

    size: int

    def draw(self, generator: torch.Generator, count: int) -> Tensor | None:
        """Random numbers for `count` images, one row each, or None."""
        return None

    @abstractmethod
    def __call__(self, image: Image.Image, drawn: Tensor | None) -> Image.Image:
        """The cut image."""


class Split(ABC):
    """What `Batches` needs to know of images, wherever they are kept.

    labels: the classes as int64, one for each image.
    lazy: whether reading decodes files, so that worker processes pay.
    """

    labels: Tensor
    lazy = False

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    @property
    @abstractmethod
    def digest(self) -> str:
        """The sha256 that stands for the content."""

    @abstractmethod
    def subset(self, indices: Tensor) -> Split:
        """Return the images at these indices, in this order."""

    @abstractmethod
    def read(self, indices: Tensor, crop: Crop | None = None, drawn: Tensor | None = None) -> Tensor:
        """The images as uint8 of shape (number, channels, height, width).

        crop: cuts each image to one size while it is decoded.
        drawn: the crop's random numbers, one row for each image.
        """


@dataclass(frozen=True, eq=False, repr=False)
class MemorySplit(Split):
    """All images as one uint8 tensor.

    known_digest: the digest, if it has been computed already.
    """

    images: Tensor
    labels: Tensor
    known_digest: str | None = None

    def __post_init__(self) -> None:
        """Refuse tensors that do not belong together."""
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            found = f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            expected = "uint8 of shape (number, channels, height, width)"
            raise DataError.about("images", expected=expected, found=found, remedy="Convert them first.")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            found = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            expected = f"int64 of shape ({len(self.images)},)"
            raise DataError.about("labels", expected=expected, found=found, remedy="Give one class for each image.")

    def __repr__(self) -> str:
        """Return the number and the shape, not the pixels."""
        return f"{type(self).__name__}({len(self)} images of {tuple(self.images.shape[1:])})"

    @cached_property
    def digest(self) -> str:
        """The sha256 of images and labels."""
        return self.known_digest or combined_digest([tensor_digest(self.images), tensor_digest(self.labels)])

    @cached_property
    def content(self) -> str:
        """The sha256 that the same images with the same labels have in any order."""
        pairs = zip(self.labels.tolist(), self.images.numpy(), strict=True)
        digests = (hashlib.sha256(b"%d " % label + image.tobytes()).hexdigest() for label, image in pairs)
        return combined_digest(sorted(digests))

    def subset(self, indices: Tensor) -> MemorySplit:
        """Return the images at these indices, in this order."""
        return MemorySplit(self.images[indices], self.labels[indices])

    def read(self, indices: Tensor, crop: Crop | None = None, drawn: Tensor | None = None) -> Tensor:
        """Return the images at these indices, cropped one by one if asked."""
        images = self.images[indices]
        if crop is None:
            return images
        pairs = zip(images, rows(drawn, len(indices)), strict=True)
        cropped = [to_pixels(crop(to_image(pixels), row)) for pixels, row in pairs]
        return torch.stack(cropped) if cropped else images.new_empty(0, images.shape[1], crop.size, crop.size)


def join(*splits: MemorySplit) -> MemorySplit:
    """Put splits one after the other, as the paper does with SVHN's train and extra."""
    return MemorySplit(torch.cat([split.images for split in splits]), torch.cat([split.labels for split in splits]))


def rows(drawn: Tensor | None, count: int) -> list[Tensor | None]:
    """Return the random numbers of each image, or None for each if nothing was drawn."""
    return [None] * count if drawn is None else list(drawn)


def to_pixels(image: Image.Image) -> Tensor:
    """Return a Pillow image as uint8 of shape (channels, height, width)."""
    pixels = numpy.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def to_image(pixels: Tensor) -> Image.Image:
    """Return uint8 of shape (channels, height, width) as a Pillow image."""
    return Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy())


@dataclass(frozen=True, eq=False)
class DataSet:
    """Splits with common classes.

    name: stands in a run's configuration together with the digest; never a path.
    origin: where the files came from, for people.
    """

    name: str
    splits: Mapping[str, Split]
    classes: tuple[str, ...] = field(repr=False)
    origin: str

    def __post_init__(self) -> None:
        """Refuse labels outside of the classes: a swapped or foreign label file."""
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
        """The sha256 of the content of the loaded splits and of the class names."""
        digests = {name: split.digest for name, split in self.splits.items()}
        return combined_digest({**digests, "classes": combined_digest(self.classes)})


def tensor_digest(tensor: Tensor) -> str:
    """Return the sha256 of a tensor's type, shape and elements."""
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def combined_digest(parts: Iterable[str] | Mapping[str, str]) -> str:
    """Return one sha256 for many; of a mapping the keys count too, their order does not."""
    lines = [f"{key}={value}" for key, value in sorted(parts.items())] if isinstance(parts, Mapping) else list(parts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
