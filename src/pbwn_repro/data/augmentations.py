"""What happens to the pictures of each experiment between the data set and the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pbwn_repro.data.colour import ColourJitter, Lighting
from pbwn_repro.data.crops import CentreCrop, Crop, RandomSizedCrop
from pbwn_repro.data.splits import MemorySplit
from pbwn_repro.data.transforms import Flip, Normalise, PadCrop, Transform, ZeroPad

# Of 0..255 pixels; the authors use them for CIFAR-10 and CIFAR-100 alike.
CIFAR_MEAN = (125.3, 123.0, 113.9)
CIFAR_STD = (63.0, 62.1, 66.7)
# Of 0..1 pixels.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Augmentation:
    """Transforms in order, and the crop while decoding for pictures of many sizes."""

    transforms: tuple[Transform, ...]
    crop: Crop | None = None

    def apply(self, images: Tensor, generator: torch.Generator, *, count: int, rows: slice = slice(None)) -> Tensor:
        """Transform pictures that are the given rows of a batch of `count`."""
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
