"""Cuts of pictures of any size to one size: the ImageNet protocol of fb.resnet.torch, with Pillow.

Pillow's bicubic resize averages over the source pixels when it shrinks; Torch7's does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

Box = tuple[int, int, int, int]
ATTEMPTS = 10
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)


class Crop(Protocol):
    """Cuts one picture to size x size; the random numbers come from outside."""

    @property
    def size(self) -> int:
        """The pixels of a side."""

    def draw(self, generator: torch.Generator, count: int) -> Tensor | None:
        """Random numbers for `count` pictures, one row each, or None."""

    def __call__(self, picture: Image.Image, drawn: Tensor | None) -> Image.Image:
        """The cut picture."""


@dataclass(frozen=True)
class RandomSizedCrop:
    """A random part, 8 to 100 % of the area and 3:4 to 4:3 in shape, resized to size x size."""

    size: int = 224

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw area, aspect, orientation, top and left for each of ten attempts."""
        return torch.rand(count, ATTEMPTS, 5, generator=generator)

    def __call__(self, picture: Image.Image, drawn: Tensor | None) -> Image.Image:
        """Cut the first box that fits; if none does, the middle."""
        assert drawn is not None
        box = random_box(*picture.size, drawn.tolist())
        if box is None:
            return CentreCrop(self.size, resize=self.size)(picture)
        return picture.resize((self.size, self.size), Image.Resampling.BICUBIC, box=box)


@dataclass(frozen=True)
class CentreCrop:
    """The shorter side resized to `resize`, then the middle size x size."""

    size: int = 224
    resize: int = 256

    def draw(self, generator: torch.Generator, count: int) -> None:
        """Nothing is random here."""

    def __call__(self, picture: Image.Image, drawn: Tensor | None = None) -> Image.Image:
        """Resize, then cut."""
        width, height = picture.size
        scale = self.resize / min(width, height)
        width, height = max(self.resize, round(width * scale)), max(self.resize, round(height * scale))
        left, top = (width - self.size) // 2, (height - self.size) // 2
        resized = picture.resize((width, height), Image.Resampling.BICUBIC)
        return resized.crop((left, top, left + self.size, top + self.size))


def random_box(width: int, height: int, attempts: list[list[float]]) -> Box | None:
    """Return the first of the attempted boxes that lies in the picture, as left, top, right, bottom.

    attempts: five uniform numbers of [0, 1) each: area, aspect, orientation, top, left.
    """
    for area, aspect, orientation, top, left in attempts:
        target = width * height * (AREA[0] + area * (AREA[1] - AREA[0]))
        ratio = ASPECT[0] + aspect * (ASPECT[1] - ASPECT[0])
        box_width, box_height = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if orientation < 0.5:
            box_width, box_height = box_height, box_width
        if 0 < box_width <= width and 0 < box_height <= height:
            x, y = int(left * (width - box_width + 1)), int(top * (height - box_height + 1))
            return x, y, x + box_width, y + box_height
    return None
