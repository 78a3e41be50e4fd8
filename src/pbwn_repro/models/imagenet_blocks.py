"""The residual branches and blocks of the ImageNet networks, with activation behind or before the convolutions."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

Branch = Literal["basic", "bottleneck"]
EXPANSION = {"basic": 1, "bottleneck": 4}


def convolution(in_channels: int, out_channels: int, kernel_size: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)


def branch_convolutions(branch: Branch, in_channels: int, width: int, stride: int) -> list[nn.Conv2d]:
    """3x3-3x3, or 1x1-3x3-1x1 whose last widens fourfold; the stride sits on the first 3x3."""
    if branch == "basic":
        return [convolution(in_channels, width, 3, stride=stride), convolution(width, width, 3)]
    return [
        convolution(in_channels, width, 1),
        convolution(width, width, 3, stride=stride),
        convolution(width, 4 * width, 1),
    ]


class PostActivationBlock(nn.Module):
    """Convolution, BN, ReLU, the last ReLU behind the sum.

    The shortcut, type B, is a 1x1 convolution with BN where channels change.
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
    """BN, ReLU, convolution. A stage's first block activates its input for branch and shortcut alike.

    `activated_input` marks the network's first block: the stem before it has BN and ReLU already. The shortcut, type B,
    is a 1x1 convolution without BN where channels change.
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
