"""Inception with batch normalisation for 32x32 images (table 1)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from pbwn_repro.models.checks import at_least, positive
from pbwn_repro.models.family import Family
from pbwn_repro.models.initialisation import UNIFORM_ZERO_BIAS, torch7_scale


class BlockWidths(NamedTuple):
    """Channels of a block's four branches: 1x1; 1x1-3x3; 1x1-3x3-3x3; pool-1x1.

    Zero omits a part: the branch for `single`, the convolution after the pooling for `pool_projection`.
    """

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
"""Blocks 3a to 3c, 4a to 4e, 5a and 5b; a 2x2 convolution of stride 2 separates the stages."""


def normalised(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels, eps=1e-3), nn.ReLU(inplace=True)]


def convolutions_in_block(channels: int, *layers: tuple[int, int]) -> list[nn.Module]:
    """Return a sequence of convolutions in a block, each given as (output channels, kernel size).

    As in the authors' code, each convolution is followed by ReLU, BN and another ReLU.
    """
    modules: list[nn.Module] = []
    for out_channels, kernel_size in layers:
        modules.append(nn.Conv2d(channels, out_channels, kernel_size, padding=kernel_size // 2))
        modules += [nn.ReLU(inplace=True), *normalised(out_channels)]
        channels = out_channels
    return modules


class InceptionBlock(nn.Module):
    """Four parallel branches, concatenated along the channels."""

    def __init__(self, in_channels: int, widths: BlockWidths) -> None:
        super().__init__()
        single, reduce, triple, double_reduce, double_triple, pool, pool_projection = widths
        branches: list[list[nn.Module]] = [
            convolutions_in_block(in_channels, (reduce, 1), (triple, 3)),
            convolutions_in_block(in_channels, (double_reduce, 1), (double_triple, 3), (double_triple, 3)),
            [nn.AvgPool2d(3, stride=1, padding=1) if pool == "avg" else nn.MaxPool2d(3, stride=1, padding=1)],
        ]
        if single:
            branches.insert(0, convolutions_in_block(in_channels, (single, 1)))
        if pool_projection:
            branches[-1] += convolutions_in_block(in_channels, (pool_projection, 1))
        self.branches = nn.ModuleList(nn.Sequential(*branch) for branch in branches)
        self.out_channels = single + triple + double_triple + (pool_projection or in_channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Inception(nn.Module):
    """Inception with BN for 32x32 images (table 1): biases in all convolutions, no auxiliary classifier."""

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> None:
        super().__init__()
        positive("inception", num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        reason = "the stem removes 4 pixels, then two convolutions halve the size"
        at_least("inception", "image_size", image_size, 8, reason=reason)
        layers = [nn.Conv2d(in_channels, 64, 3), *normalised(64), nn.Conv2d(64, 192, 3), *normalised(192)]
        channels = 192
        for number, blocks in enumerate(STAGES):
            if number > 0:
                layers += [nn.Conv2d(channels, channels, 2, stride=2), *normalised(channels)]
            for widths in blocks:
                block = InceptionBlock(channels, widths)
                layers.append(block)
                channels = block.out_channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return scores


FAMILIES = (
    Family(
        pattern=r"inception",
        members=("inception",),
        constructor=Inception,
        paper=UNIFORM_ZERO_BIAS,
        authors=torch7_scale(UNIFORM_ZERO_BIAS),
        recipe={
            "data": {"name": "cifar10", "normalisation": "cifar", "augmentation": "authors"},
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
            "schedule": {"kind": "steps", "drops": [50, 80, 100], "factor": 0.2},
            "epochs": 120,
            "batch_size": 64,
            "log_every": 10,
        },
    ),
)
