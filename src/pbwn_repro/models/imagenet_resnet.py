"""The residual networks for ImageNet, with activation behind or before the convolutions (table 7)."""

from collections.abc import Iterator

from torch import Tensor, nn

from pbwn_repro.models.checks import one_of, positive
from pbwn_repro.models.imagenet_blocks import EXPANSION, Branch, PostActivationBlock, PreActivationBlock

DEPTHS: dict[int, tuple[Branch, tuple[int, ...]]] = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
}
"""Kind of residual branch, and number of blocks of each stage."""


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
        """What stands between stem and pooling."""
        branch, _ = DEPTHS[depth]
        for _, _, channels, width, stride in block_plan(depth):
            yield PostActivationBlock(branch, channels, width, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(self.stem(x)).mean((2, 3)))
        return scores


class ImageNetPreResNet(ImageNetResNet):
    """The pre-activation variant of He et al. 2016, with BN and ReLU behind the last block (table 7: 34 layers)."""

    family = "imagenet-preresnet"

    def layers(self, depth: int) -> Iterator[nn.Module]:
        """The blocks, then the activation that the last of them leaves out."""
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
    """Stage, block, input channels, width and stride of each block."""
    branch, counts = DEPTHS[depth]
    channels = 64
    for stage, count in enumerate(counts):
        width = 64 * 2**stage
        for block in range(count):
            yield stage, block, channels, width, 2 if stage > 0 and block == 0 else 1
            channels = width * EXPANSION[branch]
