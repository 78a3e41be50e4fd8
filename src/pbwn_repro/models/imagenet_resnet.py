"""The residual networks for ImageNet, with activation after or before the convolutions (table 7)."""

from collections.abc import Iterator
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional

from pbwn_repro.models.checks import one_of, positive
from pbwn_repro.models.family import Family
from pbwn_repro.models.initialisation import HE

Branch = Literal["basic", "bottleneck"]
EXPANSION = {"basic": 1, "bottleneck": 4}


def convolution(in_channels: int, out_channels: int, kernel_size: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)


def branch_convolutions(branch: Branch, in_channels: int, width: int, stride: int) -> list[nn.Conv2d]:
    """Return 3x3-3x3, or 1x1-3x3-1x1 with fourfold width after the last; the first 3x3 has the stride."""
    if branch == "basic":
        return [convolution(in_channels, width, 3, stride=stride), convolution(width, width, 3)]
    return [
        convolution(in_channels, width, 1),
        convolution(width, width, 3, stride=stride),
        convolution(width, 4 * width, 1),
    ]


class PostActivationBlock(nn.Module):
    """Convolution, BN, ReLU, with the last ReLU after the addition.

    The shortcut, type B, is a 1x1 convolution with BN where the number of channels changes.
    """

    def __init__(self, branch: Branch, in_channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        out_channels = width * EXPANSION[branch]
        layers: list[nn.Module] = []
        for conv in branch_convolutions(branch, in_channels, width, stride):
            layers += [conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(inplace=True)]
        self.branch = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            shortcut = convolution(in_channels, out_channels, 1, stride=stride)
            self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.branch(x) + self.shortcut(x))


class PreActivationBlock(nn.Module):
    """BN, ReLU, convolution; the first block of a stage activates its input for both branch and shortcut.

    `activated_input` marks the network's first block, whose input the stem has already activated by BN and ReLU. The
    shortcut, type B, is a 1x1 convolution without BN where the number of channels changes.
    """

    def __init__(
        self, branch: Branch, in_channels: int, width: int, *, stride: int, stage_start: bool, activated_input: bool
    ) -> None:
        super().__init__()
        out_channels = width * EXPANSION[branch]
        layers: list[nn.Module] = []
        for conv in branch_convolutions(branch, in_channels, width, stride):
            layers += [nn.BatchNorm2d(conv.in_channels), nn.ReLU(), conv]
        self.activate_input: nn.Module = nn.Identity()
        if stage_start:
            if not activated_input:
                self.activate_input = nn.Sequential(*layers[:2])
            layers = layers[2:]
        self.branch = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            self.shortcut = convolution(in_channels, out_channels, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activate_input(x)
        total: Tensor = self.branch(x) + self.shortcut(x)
        return total


DEPTHS: dict[int, tuple[Branch, tuple[int, ...]]] = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
}
"""Type of residual branch, and number of blocks in each stage."""


class ImageNetResNet(nn.Module):
    """ResNet-18, 34 or 50 with shortcut type B (table 7: 34 layers)."""

    family = "imagenet-resnet"

    def __init__(self, depth: int, *, num_classes: int = 1000, in_channels: int = 3, image_size: int = 224) -> None:
        super().__init__()
        one_of(self.family, "depth", depth, tuple(DEPTHS))
        positive(f"{self.family}-{depth}", num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.features = nn.Sequential(*self.layers(depth))
        self.classifier = nn.Linear(512 * EXPANSION[DEPTHS[depth][0]], num_classes)

    def layers(self, depth: int) -> Iterator[nn.Module]:
        """Yield the modules between stem and pooling."""
        branch, _ = DEPTHS[depth]
        for _, _, channels, width, stride in block_plan(depth):
            yield PostActivationBlock(branch, channels, width, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(self.stem(x)).mean((2, 3)))
        return scores


class ImageNetPreResNet(ImageNetResNet):
    """The pre-activation variant of He et al. 2016, with BN and ReLU after the last block (table 7: 34 layers)."""

    family = "imagenet-preresnet"

    def layers(self, depth: int) -> Iterator[nn.Module]:
        """Yield the blocks, then the final activation."""
        branch, _ = DEPTHS[depth]
        for stage, block, channels, width, stride in block_plan(depth):
            yield PreActivationBlock(
                branch,
                channels,
                width,
                stride=stride,
                stage_start=block == 0,
                activated_input=stage == 0,
            )
        yield nn.BatchNorm2d(512 * EXPANSION[branch])
        yield nn.ReLU(inplace=True)


def block_plan(depth: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the stage, index in the stage, input channels, width and stride of each block."""
    branch, counts = DEPTHS[depth]
    channels = 64
    for stage, count in enumerate(counts):
        width = 64 * 2**stage
        for block in range(count):
            yield stage, block, channels, width, 2 if stage > 0 and block == 0 else 1
            channels = width * EXPANSION[branch]


RECIPE: dict[str, Any] = {
    "data": {"name": "imagenet", "normalisation": "imagenet"},
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4},
    "schedule": {"kind": "exponential", "final": 0.01},
    "epochs": 50,
    "batch_size": 64,
    "log_every": 100,
}
FAMILIES = (
    Family(
        pattern=r"imagenet-resnet-(\d+)",
        members=("imagenet-resnet-18", "imagenet-resnet-34", "imagenet-resnet-50"),
        constructor=ImageNetResNet,
        paper=HE,
        recipe=RECIPE,
    ),
    Family(
        pattern=r"imagenet-preresnet-(\d+)",
        members=("imagenet-preresnet-18", "imagenet-preresnet-34", "imagenet-preresnet-50"),
        constructor=ImageNetPreResNet,
        paper=HE,
        recipe=RECIPE,
    ),
)
