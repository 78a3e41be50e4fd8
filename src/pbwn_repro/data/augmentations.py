"""Image transforms, crops applied during decoding, and the augmentation of each experiment.

Transforms act on whole batches, on any device. `draw` returns one row of random numbers for each image of the whole
batch, of which each rank of a distributed run takes its own rows: all ranks together see what a single process would.
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

# For pixels in 0..255; the authors use the same constants for CIFAR-10 and CIFAR-100.
CIFAR_MEAN = (125.3, 123.0, 113.9)
CIFAR_STD = (63.0, 62.1, 66.7)
# For pixels in 0..1.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
GREY = (0.299, 0.587, 0.114)  # luma weights of red, green and blue
# Principal components of ImageNet's RGB values: eigenvalues, and eigenvectors as columns.
EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
# Parameters of fb.resnet.torch's random sized crop.
ATTEMPTS = 10
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
Box = tuple[int, int, int, int]


class Transform(ABC):
    """A transform of a batch of images; deterministic unless `draw` returns random numbers."""

    def draw(self, generator: torch.Generator, count: int) -> Tensor | None:
        """Return random numbers for `count` images, one row each, on the CPU; None if none are needed."""
        return None

    @abstractmethod
    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Return the transformed images."""


@dataclass(frozen=True)
class Normalise(Transform):
    """Return (pixel - mean) / std per channel, as float32; mean and std are in the units of the pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, images: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Normalise; raise UsageError where broadcasting would change the number of channels."""
        if len(self.mean) not in (1, images.shape[1]):
            raise UsageError(
                f"cannot normalise {images.shape[1]} channels with {len(self.mean)} means: use another normalisation"
            )
        mean, std = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (self.mean, self.std))
        return (images - mean).div_(std)


@dataclass(frozen=True)
class ZeroPad(Transform):
    """Add a black border of `width` pixels to each image."""

    width: int

    def apply(self, images: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Pad all four sides."""
        return pad(images, [self.width] * 4)


@dataclass(frozen=True)
class PadCrop(Transform):
    """Pad all sides, then crop to the original size at a random offset.

    fill: "reflect" mirrors the image at its borders, "zero" pads with zeros (after normalisation, the mean colour).
    offset: one random offset per "image", or one for the whole "batch" as in the authors' code.
    """

    padding: int = 4
    fill: Literal["reflect", "zero"] = "reflect"
    offset: Literal["image", "batch"] = "image"

    def __post_init__(self) -> None:
        """Validate the options."""
        require_word("fill", self.fill, ("reflect", "zero"))
        require_word("offset", self.offset, ("image", "batch"))

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw the top and left offsets."""
        offsets = 1 if self.offset == "batch" else count
        return torch.randint(0, 2 * self.padding + 1, (offsets, 2), generator=generator).expand(count, 2)

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Pad, then crop."""
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
    """Mirror images horizontally: each with probability 1/2, or exactly half of each batch, as the authors did."""

    which: Literal["random", "half"] = "random"

    def __post_init__(self) -> None:
        """Validate the options."""
        require_word("flip", self.which, ("random", "half"))

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw which images to mirror."""
        if self.which == "half":
            return torch.randperm(count, generator=generator) < count // 2
        return torch.rand(count, generator=generator) < 0.5

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Mirror the selected images."""
        assert drawn is not None
        return torch.where(drawn.to(images.device).view(-1, 1, 1, 1), images.flip(3), images)


@dataclass(frozen=True)
class ColourJitter(Transform):
    """Blend each image with black, its mean grey and its greyscale version, in random order, as in fb.resnet.torch.

    Each blend is a * image + (1 - a) * other with a uniform in [1 - strength, 1 + strength]; values are not clamped.
    """

    strength: float = 0.4

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw the order and the factors of the three blends of each image."""
        order = torch.rand(count, 3, generator=generator).argsort(dim=1).float()
        factors = 1 + self.strength * (2 * torch.rand(count, 3, generator=generator) - 1)
        return torch.stack([order, factors], dim=1)

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Apply the three blends."""
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
    """Shift all pixels of an image by a random step along the principal components of ImageNet's colours."""

    strength: float = 0.1

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw the step along each component."""
        return self.strength * torch.randn(count, 3, generator=generator)

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Shift the colours."""
        assert drawn is not None
        shift = (drawn * torch.tensor(EIGENVALUES)) @ torch.tensor(EIGENVECTORS).T
        return images + shift.to(images.device).view(-1, 3, 1, 1)


@dataclass(frozen=True)
class RandomSizedCrop(Crop):
    """Crop a random box of 8 to 100 % of the area and aspect ratio 3:4 to 4:3, and resize it to size x size.

    Pillow's bicubic resize antialiases when it downscales; Torch7's does not.
    """

    size: int = 224

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw area, aspect ratio, orientation, top and left for each of ten attempts."""
        return torch.rand(count, ATTEMPTS, 5, generator=generator)

    def __call__(self, image: Image.Image, drawn: Tensor | None) -> Image.Image:
        """Crop the first box that fits, or the centre if none does."""
        assert drawn is not None
        box = random_box(*image.size, drawn.tolist())
        if box is None:
            return CentreCrop(self.size, resize=self.size)(image)
        return image.resize((self.size, self.size), Image.Resampling.BICUBIC, box=box)


@dataclass(frozen=True)
class CentreCrop(Crop):
    """Resize the shorter side to `resize`, then crop the central size x size pixels."""

    size: int = 224
    resize: int = 256

    def __call__(self, image: Image.Image, drawn: Tensor | None = None) -> Image.Image:
        """Resize, then crop."""
        width, height = image.size
        scale = self.resize / min(width, height)
        width, height = max(self.resize, round(width * scale)), max(self.resize, round(height * scale))
        left, top = (width - self.size) // 2, (height - self.size) // 2
        resized = image.resize((width, height), Image.Resampling.BICUBIC)
        return resized.crop((left, top, left + self.size, top + self.size))


def random_box(width: int, height: int, attempts: list[list[float]]) -> Box | None:
    """Return the first attempted box that fits into the image, as (left, top, right, bottom); None if none fits.

    attempts: five uniform numbers in [0, 1) each: area, aspect ratio, orientation, top, left.
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
    """A sequence of transforms, and the crop applied during decoding to images of different sizes."""

    transforms: tuple[Transform, ...]
    crop: Crop | None = None

    def apply(self, images: Tensor, generator: torch.Generator, *, count: int, rows: slice = slice(None)) -> Tensor:
        """Transform `images`, the given rows of a batch of `count`."""
        for transform in self.transforms:
            drawn = transform.draw(generator, count)
            images = transform.apply(images, None if drawn is None else drawn[rows])
        return images


def unit_range() -> Augmentation:
    """Divide pixels by 255, without augmentation: SVHN, the Ladder's MNIST, digits."""
    return Augmentation((Normalise((0.0,), (255.0,)),))


def mnist_mlp(split: MemorySplit) -> Augmentation:
    """Zero-pad 28x28 to 32x32, subtract the mean over all pixels of the split, and divide by 255."""
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
    """Normalise, crop at random from a 4-pixel border, and mirror; the defaults follow the authors' code.

    He et al. and the paper's text use fill="zero", offset="image", flip="random".
    """
    return Augmentation((Normalise(CIFAR_MEAN, CIFAR_STD), PadCrop(4, fill, offset), Flip(flip)))


def imagenet_training(size: int = 224) -> Augmentation:
    """Random sized crop, colour jitter 0.4, lighting 0.1, normalisation and mirroring, as in fb.resnet.torch."""
    scale, normalise = Normalise((0.0,), (255.0,)), Normalise(IMAGENET_MEAN, IMAGENET_STD)
    return Augmentation((scale, ColourJitter(0.4), Lighting(0.1), normalise, Flip("random")), RandomSizedCrop(size))


def imagenet_evaluation(size: int = 224, resize: int = 256) -> Augmentation:
    """Resize the shorter side, crop the centre, and normalise."""
    scale, normalise = Normalise((0.0,), (255.0,)), Normalise(IMAGENET_MEAN, IMAGENET_STD)
    return Augmentation((scale, normalise), CentreCrop(size, resize))
