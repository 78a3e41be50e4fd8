"""The residual networks for CIFAR (tables 3 and 4)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from pbwn_repro.models.checks import blocks_per_stage, one_of, positive
from pbwn_repro.models.family import Family
from pbwn_repro.models.initialisation import HE
from pbwn_repro.models.normalisation import NORMALISATIONS, Normalisation, normalise_channels


class PaddedShortcut(nn.Module):
    """Option A of He et al.: every second pixel, and zeros for the new channels; no parameters."""

    def __init__(self, new_channels: int) -> None:
        super().__init__()
        self.new_channels = new_channels

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.new_channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BN or its replacement, and a shortcut around them; ReLU after the addition."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stride: int,
        convolution_bias: bool,
        normalisation: Normalisation = "batch",
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=convolution_bias)
        self.bn1 = normalise_channels(normalisation, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=convolution_bias)
        self.bn2 = normalise_channels(normalisation, out_channels)
        self.shortcut = nn.Identity() if stride == 1 else PaddedShortcut(out_channels - in_channels)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(residual + self.shortcut(x))


class ResNet(nn.Module):
    """The CIFAR ResNet of depth 6n+2 with 16, 32 and 64 channels and option-A shortcuts (tables 3 and 4).

    `convolution_bias` adds biases to the convolutions, as in the authors' PBWN variants.
    `normalisation` replaces the paper's batch normalisation: 'layer', 'divisive' or 'none'.
    """

    def __init__(
        self,
        depth: int,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        image_size: int = 32,
        convolution_bias: bool = False,
        normalisation: Normalisation = "batch",
    ) -> None:
        super().__init__()
        one_of(f"resnet-{depth}", "normalisation", normalisation, NORMALISATIONS)
        positive(f"resnet-{depth}", num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        num_blocks = blocks_per_stage("resnet", depth, offset=2)
        self.conv = nn.Conv2d(in_channels, 16, 3, padding=1, bias=convolution_bias)
        self.bn = normalise_channels(normalisation, 16)
        blocks: list[nn.Module] = []
        channels = 16
        for out_channels in (16, 32, 64):
            for _ in range(num_blocks):
                stride = 1 if out_channels == channels else 2
                options: dict[str, Any] = {"convolution_bias": convolution_bias, "normalisation": normalisation}
                blocks.append(BasicBlock(channels, out_channels, stride=stride, **options))
                channels = out_channels
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(functional.relu(self.bn(self.conv(x))))
        scores: Tensor = self.classifier(features.mean((2, 3)))
        return scores


def authors_start(method: str) -> Mapping[str, Any]:
    """Return the arguments of `build` that differ for a method in the authors' code.

    The convolutions of the PBWN variants kept Torch7's uniform initialisation, and their biases.
    """
    if not method.startswith("pbwn"):
        return {}
    return {"init": replace(HE, convolution="uniform-fan-in"), "convolution_bias": True}


FAMILIES = (
    Family(
        pattern=r"resnet-(\d+)",
        members=("resnet-20", "resnet-32", "resnet-44", "resnet-56", "resnet-110"),
        constructor=ResNet,
        paper=HE,
        authors_start=authors_start,
        recipe={
            "data": {"name": "cifar10", "normalisation": "cifar", "augmentation": "authors"},
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
            "schedule": {"kind": "steps", "drops": [80, 120], "factor": 0.1},
            "epochs": 160,
            "batch_size": 128,
            "log_every": 10,
        },
    ),
)
