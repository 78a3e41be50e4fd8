"""Pictures with labels: the part of a data set that a run trains or tests on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy
import torch
from PIL import Image
from torch import Tensor

from pbwn_repro.data.crops import Crop
from pbwn_repro.data.digests import combined_digest, tensor_digest
from pbwn_repro.data.errors import DataError


class Split(Protocol):
    """What the batcher needs to know of pictures, wherever they live."""

    @property
    def labels(self) -> Tensor:
        """The classes as int64, one for each picture."""

    @property
    def digest(self) -> str:
        """The sha256 that stands for the content."""

    @property
    def lazy(self) -> bool:
        """Whether reading decodes files, so that worker processes pay."""

    def __len__(self) -> int:
        """The number of pictures."""

    def subset(self, indices: Tensor) -> Split:
        """The pictures at these indices, in this order."""

    def read(self, indices: Tensor, crop: Crop | None = None, drawn: Tensor | None = None) -> Tensor:
        """The pictures as uint8 of shape (number, channels, height, width).

        crop: cuts each picture to one size while it is decoded.
        drawn: the crop's random numbers, one row for each picture.
        """


@dataclass(frozen=True, eq=False, repr=False)
class MemorySplit:
    """All pictures as one uint8 tensor.

    known_digest: the digest, if it has been computed already.
    """

    images: Tensor
    labels: Tensor
    known_digest: str | None = None
    lazy = False

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

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.labels)

    def __repr__(self) -> str:
        """Return the number and the shape, not the pixels."""
        return f"{type(self).__name__}({len(self)} pictures of {tuple(self.images.shape[1:])})"

    @cached_property
    def digest(self) -> str:
        """The sha256 of images and labels."""
        return self.known_digest or combined_digest([tensor_digest(self.images), tensor_digest(self.labels)])

    def to(self, device: torch.device | str) -> MemorySplit:
        """Return the split with its tensors on a device."""
        return MemorySplit(self.images.to(device), self.labels.to(device), self.known_digest)

    def subset(self, indices: Tensor) -> MemorySplit:
        """Return the pictures at these indices, in this order."""
        indices = indices.to(self.labels.device)
        return MemorySplit(self.images[indices], self.labels[indices])

    def read(self, indices: Tensor, crop: Crop | None = None, drawn: Tensor | None = None) -> Tensor:
        """Return the pictures at these indices, cropped one by one if asked."""
        pictures = self.images[indices.to(self.images.device)]
        if crop is None:
            return pictures
        pairs = zip(pictures.cpu(), rows(drawn, len(indices)), strict=True)
        cropped = [to_pixels(crop(to_picture(pixels), row)) for pixels, row in pairs]
        return torch.stack(cropped) if cropped else pictures.new_empty(0, pictures.shape[1], crop.size, crop.size)


def join(*splits: MemorySplit) -> MemorySplit:
    """Put splits one after the other, as the paper does with SVHN's train and extra."""
    return MemorySplit(torch.cat([split.images for split in splits]), torch.cat([split.labels for split in splits]))


def rows(drawn: Tensor | None, count: int) -> list[Tensor | None]:
    """Return the random numbers of each picture, or None for each if nothing was drawn."""
    return [None] * count if drawn is None else list(drawn)


def to_pixels(picture: Image.Image) -> Tensor:
    """Return a Pillow picture as uint8 of shape (channels, height, width)."""
    pixels = numpy.array(picture)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def to_picture(pixels: Tensor) -> Image.Image:
    """Return uint8 of shape (channels, height, width) as a Pillow picture."""
    return Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy())
