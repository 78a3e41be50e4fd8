"""Inception with batch normalisation for 32x32 images (table 1)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from pbwn_repro.models.checks import at_least, positive


class BlockWidths(NamedTuple):
    """Channels of a block's four branches; 0 leaves the branch's last (or only) convolution out."""

    single: int
    reduce: int
    triple: int
    double_reduce: int
    double_triple: int
    pool: Literal["avg", "max"]
    pool_projection: int


STAGES = (
    (
        BlockWidths(64, 64, 64, 64, 96, "avg", 32),
        BlockWidths(64, 64, 96, 64, 96, "avg", 64),
        BlockWidths(0, 128, 160, 64, 96, "max", 0),
    ),
    (
        BlockWidths(224, 64, 96, 96, 128, "avg", 128),
        BlockWidths(192, 96, 128, 96, 128, "avg", 128),
        BlockWidths(160, 128, 160, 128, 160, "avg", 96),
        BlockWidths(96, 128, 192, 160, 192, "avg", 96),
        BlockWidths(0, 128, 192, 192, 256, "max", 0),
    ),
    (
        BlockWidths(352, 192, 320, 160, 224, "avg", 128),
        BlockWidths(352, 192, 320, 192, 224, "max", 128),
    ),
)
"""Blocks 3a to 3c, 4a to 4e, 5a and 5b; a 2x2 convolution of stride 2 stands between the stages."""


def normalised(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels, eps=1e-3), nn.ReLU(inplace=True)]


def convolution_in_block(in_channels: int, out_channels: int, kernel_size: int) -> list[nn.Module]:
    """A convolution of a block: a ReLU stands between it and its BN, and one behind the BN, as the authors have it."""
    convolution = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)
    return [convolution, nn.ReLU(inplace=True), *normalised(out_channels)]


class InceptionBlock(nn.Module):
    """Branches 1x1; 1x1-3x3; 1x1-3x3-3x3; pool-1x1 side by side."""

    def __init__(self, in_channels: int, widths: BlockWidths) -> None:
        super().__init__()
        branches: list[list[nn.Module]] = []
        if widths.single:
            branches.append(convolution_in_block(in_channels, widths.single, 1))
        branches.append(
            convolution_in_block(in_channels, widths.reduce, 1) + convolution_in_block(widths.reduce, widths.triple, 3)
        )
        branches.append(
            convolution_in_block(in_channels, widths.double_reduce, 1)
            + convolution_in_block(widths.double_reduce, widths.double_triple, 3)
            + convolution_in_block(widths.double_triple, widths.double_triple, 3)
        )
        pool = nn.AvgPool2d if widths.pool == "avg" else nn.MaxPool2d
        branches.append([pool(3, stride=1, padding=1)])
        if widths.pool_projection:
            branches[-1] += convolution_in_block(in_channels, widths.pool_projection, 1)
        self.branches = nn.ModuleList(nn.Sequential(*branch) for branch in branches)
        self.out_channels = (
            widths.single + widths.triple + widths.double_triple + (widths.pool_projection or in_channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Inception(nn.Module):
    """Inception with BN for 32x32 images (table 1): all convolutions have biases, there is no auxiliary classifier."""

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> None:
        super().__init__()
        positive("inception", num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        at_least(
            "inception", "image_size", image_size, 8, reason="the stem takes 4 pixels, then two convolutions halve it"
        )
        layers = [
            *(nn.Conv2d(in_channels, 64, 3), *normalised(64)),
            *(nn.Conv2d(64, 192, 3), *normalised(192)),
        ]
        channels = 192
        for number, blocks in enumerate(STAGES):
            if number > 0:
                layers += [nn.Conv2d(channels, channels, 2, stride=2), *normalised(channels)]
            for widths in blocks:
                layers.append(InceptionBlock(channels, widths))
                channels = layers[-1].out_channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))
