"""Colour changes of ImageNet's training pictures, as fb.resnet.torch makes them, on whole batches of 0..1 pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GREY = (0.299, 0.587, 0.114)
# Principal components of ImageNet's RGB values: eigenvalues, and eigenvectors as columns.
EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


@dataclass(frozen=True)
class ColourJitter:
    """Blend each picture with black, with its mean grey and with its grey self, in random order.

    Each blend is a * picture + (1 - a) * other, a uniform in [1 - strength, 1 + strength]; nothing is clamped.
    """

    strength: float = 0.4

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw, for each picture, three kinds of blend in random order and their factors."""
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
class Lighting:
    """Add to every pixel of a picture one random step along the principal components of ImageNet's colours."""

    strength: float = 0.1

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draw how far to go along each component."""
        return self.strength * torch.randn(count, 3, generator=generator)

    def apply(self, images: Tensor, drawn: Tensor | None) -> Tensor:
        """Shift the colours."""
        assert drawn is not None
        shift = (drawn * torch.tensor(EIGENVALUES)) @ torch.tensor(EIGENVECTORS).T
        return images + shift.to(images.device).view(-1, 3, 1, 1)
