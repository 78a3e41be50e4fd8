"""Changes of whole batches, on whatever device they are; the random numbers come from outside.

Every `draw` returns one row for each picture of the whole batch, so that each rank of a distributed run can take its
own rows: the ranks together see what one process would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from pbwn_repro.data.words import require_word


class Transform(Protocol):
    """One change of a batch of pictures."""

    def draw(self, generator: torch.Generator, count: int) -> Tensor | None:
        """Random numbers for `count` pictures, one row each, on the CPU; or None."""

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """The changed pictures."""


class FixedTransform:
    """A change without randomness."""

    def draw(self, generator: torch.Generator, count: int) -> None:
        """Nothing is random here."""


@dataclass(frozen=True)
class Normalise(FixedTransform):
    """Return (pixel - mean) / std per channel, as float32; mean and std are in the units of the pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, images: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Subtract and divide; a number of channels that would be broadcast to another is refused."""
        if len(self.mean) not in (1, images.shape[1]):
            raise ValueError(
                f"pictures of {images.shape[1]} channels cannot take {len(self.mean)} means: use another recipe"
            )
        mean, std = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (self.mean, self.std))
        return (images - mean).div_(std)


@dataclass(frozen=True)
class ZeroPad(FixedTransform):
    """Put a black border around each picture."""

    width: int

    def apply(self, images: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Pad all four sides."""
        return pad(images, [self.width] * 4)


@dataclass(frozen=True)
class PadCrop:
    """Pad all sides, then cut the old size out at a random offset.

    fill: the border mirrors the picture, or is zero (after normalisation that is the mean colour).
    offset: each picture has its own, or the whole batch has one, as in the authors' code.
    """

    padding: int = 4
    fill: Literal["reflect", "zero"] = "reflect"
    offset: Literal["image", "batch"] = "image"

    def __post_init__(self) -> None:
        """Refuse other words."""
        require_word("fill", self.fill, ("reflect", "zero"))
        require_word("offset", self.offset, ("image", "batch"))

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw top and left."""
        number = 1 if self.offset == "batch" else count
        return torch.randint(0, 2 * self.padding + 1, (number, 2), generator=generator).expand(count, 2)

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Pad, then cut."""
        assert drawn is not None
        if len(images) == 0:
            return images
        height, width = images.shape[2:]
        padded = pad(images, [self.padding] * 4, mode="reflect" if self.fill == "reflect" else "constant")
        if self.offset == "batch":
            top, left = drawn[0].tolist()
            return padded[:, :, top : top + height, left : left + width]
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        picture = torch.arange(len(images), device=images.device)
        top, left = drawn.to(images.device).unbind(1)
        return windows[picture, :, top, left]


@dataclass(frozen=True)
class Flip:
    """Mirror pictures left to right: each with probability 1/2, or exactly half of each batch, as the authors did."""

    which: Literal["random", "half"] = "random"

    def __post_init__(self) -> None:
        """Refuse other words."""
        require_word("flip", self.which, ("random", "half"))

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw whether to mirror."""
        if self.which == "half":
            return torch.randperm(count, generator=generator) < count // 2
        return torch.rand(count, generator=generator) < 0.5

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Mirror the drawn pictures."""
        assert drawn is not None
        return torch.where(drawn.to(images.device).view(-1, 1, 1, 1), images.flip(3), images)
