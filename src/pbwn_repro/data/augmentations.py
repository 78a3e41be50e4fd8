"""What happens to images between the data set and the model: transforms, crops, and the recipe of each experiment.

Transforms change whole batches, on whatever device they are. Every `draw` returns one row for each image of the whole
batch, so that each rank of a distributed run can take its own rows: the ranks together see what one process would.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from pbwn_repro.data.splits import Crop, MemorySplit
from pbwn_repro.errors import UsageError, require_word

# Of 0..255 pixels; the authors use them for CIFAR-10 and CIFAR-100 alike.
CIFAR_MEAN = (125.3, 123.0, 113.9)
CIFAR_STD = (63.0, 62.1, 66.7)
# Of 0..1 pixels.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue
# Principal components of ImageNet's RGB values: eigenvalues, and eigenvectors as columns.
EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
# Of fb.resnet.torch's random sized crop.
ATTEMPTS = 10
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
Box = tuple[int, int, int, int]


class Transform(ABC):
    """One change of a batch of images, without randomness unless `draw` gives some."""

    def draw(self, generator: torch.Generator, count: int) -> Tensor | None:
        """Random numbers for `count` images, one row each, on the CPU; or None."""
        return None

    @abstractmethod
    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """The changed images."""


@dataclass(frozen=True)
class Normalise(Transform):
    """Return (pixel - mean) / std per channel, as float32; mean and std are in the units of the pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, images: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Subtract and divide; a number of channels that would be broadcast to another is refused."""
        if len(self.mean) not in (1, images.shape[1]):
            raise UsageError(
                f"images of {images.shape[1]} channels cannot take {len(self.mean)} means: use another recipe"
            )
        mean, std = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (self.mean, self.std))
        return (images - mean).div_(std)


@dataclass(frozen=True)
class ZeroPad(Transform):
    """Put a black border around each image."""

    width: int

    def apply(self, images: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Pad all four sides."""
        return pad(images, [self.width] * 4)


@dataclass(frozen=True)
class PadCrop(Transform):
    """Pad all sides, then cut the old size out at a random offset.

    fill: the border mirrors the image, or is zero (after normalisation that is the mean colour).
    offset: each image has its own, or the whole batch has one, as in the authors' code.
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
        index = torch.arange(len(images), device=images.device)
        top, left = drawn.to(images.device).unbind(1)
        return windows[index, :, top, left]


@dataclass(frozen=True)
class Flip(Transform):
    """Mirror images left to right: each with probability 1/2, or exactly half of each batch, as the authors did."""

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
        """Mirror the drawn images."""
        assert drawn is not None
        return torch.where(drawn.to(images.device).view(-1, 1, 1, 1), images.flip(3), images)


@dataclass(frozen=True)
class ColourJitter(Transform):
    """Blend each image with black, with its mean grey and with its grey self, in random order, as fb.resnet.torch.

    Each blend is a * image + (1 - a) * other, a uniform in [1 - strength, 1 + strength]; nothing is clamped.
    """

    strength: float = 0.4

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw, for each image, three kinds of blend in random order and their factors."""
        order = torch.rand(count, 3, generator=generator).argsort(dim=1).float()
        factors = 1 + self.strength * (2 * torch.rand(count, 3, generator=generator) - 1)
        return torch.stack([order, factors], dim=1)

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Blend three times."""
        assert drawn is not None
        order, factors = drawn.to(images.device).unbind(1)
        weights = torch.tensor(GREY, device=images.device).view(3, 1, 1)
        for kind, factor in zip(order.T, factors.T, strict=True):
            kind, factor = kind.view(-1, 1, 1, 1), factor.view(-1, 1, 1, 1)
            grey = (images * weights).sum(dim=1, keepdim=True)
            mean = grey.mean(dim=(2, 3), keepdim=True)
            other = torch.where(kind == 0, torch.zeros_like(grey), torch.where(kind == 1, mean.expand_as(grey), grey))
            images = factor * images + (1 - factor) * other
        return images


@dataclass(frozen=True)
class Lighting(Transform):
    """Add to every pixel of an image one random step along the principal components of ImageNet's colours."""

    strength: float = 0.1

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw how far to go along each component."""
        return self.strength * torch.randn(count, 3, generator=generator)

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Shift the colours."""
        assert drawn is not None
        shift = (drawn * torch.tensor(EIGENVALUES)) @ torch.tensor(EIGENVECTORS).T
        return images + shift.to(images.device).view(-1, 3, 1, 1)


@dataclass(frozen=True)
class RandomSizedCrop(Crop):
    """A random part, 8 to 100 % of the area and 3:4 to 4:3 in shape, resized to size x size.

    Pillow's bicubic resize averages over the source pixels when it shrinks; Torch7's does not.
    """

    size: int = 224

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw area, aspect, orientation, top and left for each of ten attempts."""
        return torch.rand(count, ATTEMPTS, 5, generator=generator)

    def __call__(self, image: Image.Image, drawn: Tensor | None) -> Image.Image:
        """Cut the first box that fits; if none does, the middle."""
        assert drawn is not None
        box = random_box(*image.size, drawn.tolist())
        if box is None:
            return CentreCrop(self.size, resize=self.size)(image)
        return image.resize((self.size, self.size), Image.Resampling.BICUBIC, box=box)


@dataclass(frozen=True)
class CentreCrop(Crop):
    """The shorter side resized to `resize`, then the middle size x size."""

    size: int = 224
    resize: int = 256

    def __call__(self, image: Image.Image, drawn: Tensor | None = None) -> Image.Image:
        """Resize, then cut."""
        width, height = image.size
        scale = self.resize / min(width, height)
        width, height = max(self.resize, round(width * scale)), max(self.resize, round(height * scale))
        left, top = (width - self.size) // 2, (height - self.size) // 2
        resized = image.resize((width, height), Image.Resampling.BICUBIC)
        return resized.crop((left, top, left + self.size, top + self.size))


def random_box(width: int, height: int, attempts: list[list[float]]) -> Box | None:
    """Return the first of the attempted boxes that lies in the image, as left, top, right, bottom.

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


@dataclass(frozen=True)
class Augmentation:
    """Transforms in order, and the crop while decoding for images of many sizes."""

    transforms: tuple[Transform, ...]
    crop: Crop | None = None

    def apply(self, images: Tensor, generator: torch.Generator, *, count: int, rows: slice = slice(None)) -> Tensor:
        """Transform images that are the given rows of a batch of `count`."""
        for transform in self.transforms:
            drawn = transform.draw(generator, count)
            images = transform.apply(images, None if drawn is None else drawn[rows])
        return images


def unit_range() -> Augmentation:
    """Divide pixels by 255 and nothing else: SVHN, the Ladder's MNIST, digits."""
    return Augmentation((Normalise((0.0,), (255.0,)),))


def mnist_mlp(split: MemorySplit) -> Augmentation:
    """Pad 28x28 with zeros to 32x32, divide by 255 and subtract the split's own mean, one number."""
    pad = ZeroPad(2)
    pixels = len(split) * pad.apply(split.images[:1]).numel()
    mean = split.images.sum(dtype=torch.int64).item() / pixels
    return Augmentation((pad, Normalise((mean,), (255.0,))))


def cifar_evaluation() -> Augmentation:
    """Normalise each channel by the authors' constants."""
    return Augmentation((Normalise(CIFAR_MEAN, CIFAR_STD),))


def cifar_training(
    *,
    fill: Literal["reflect", "zero"] = "reflect",
    offset: Literal["image", "batch"] = "batch",
    flip: Literal["random", "half"] = "half",
) -> Augmentation:
    """Normalise, crop out of a 4-pixel border, mirror; by default as in the authors' code.

    He et al. and the paper's text: fill="zero", offset="image", flip="random".
    """
    return Augmentation((Normalise(CIFAR_MEAN, CIFAR_STD), PadCrop(4, fill, offset), Flip(flip)))


def imagenet_training(size: int = 224) -> Augmentation:
    """Random sized crop, colour jitter 0.4, lighting 0.1, normalisation and mirroring, as fb.resnet.torch."""
    scale, normalise = Normalise((0.0,), (255.0,)), Normalise(IMAGENET_MEAN, IMAGENET_STD)
    return Augmentation((scale, ColourJitter(0.4), Lighting(0.1), normalise, Flip("random")), RandomSizedCrop(size))


def imagenet_evaluation(size: int = 224, resize: int = 256) -> Augmentation:
    """Resize the shorter side, cut the centre, normalise."""
    scale, normalise = Normalise((0.0,), (255.0,)), Normalise(IMAGENET_MEAN, IMAGENET_STD)
    return Augmentation((scale, normalise), CentreCrop(size, resize))
