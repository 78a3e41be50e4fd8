"""The wide residual network (table 6)."""

from torch import Tensor, nn
from torch.nn import functional

from pbwn_repro.errors import UsageError
from pbwn_repro.models.checks import blocks_per_stage, positive
from pbwn_repro.models.family import Family
from pbwn_repro.models.initialisation import HE, torch7_scale


class WideBlock(nn.Module):
    """BN, ReLU and 3x3 convolution, twice, with dropout before the second convolution.

    The shortcut is the input itself, or a 1x1 convolution of the activated input where the number of channels changes.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.shortcut = (
            None if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        activated = functional.relu(self.bn1(x))
        residual: Tensor = self.conv2(self.dropout(functional.relu(self.bn2(self.conv1(activated)))))
        return residual + (x if self.shortcut is None else self.shortcut(activated))


class WideResNet(nn.Module):
    """The pre-activation wide ResNet of depth 6n+4 and a width factor; WRN-16-4 with dropout 0.4 on SVHN (table 6)."""

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        image_size: int = 32,
        dropout: float = 0.4,
    ) -> None:
        super().__init__()
        name = f"wrn-{depth}-{width}"
        positive(name, width=width, num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        if not 0 <= dropout < 1:
            raise UsageError(f"{name}: dropout must be a probability in [0, 1), got {dropout}")
        num_blocks = blocks_per_stage("wrn", depth, offset=4)
        self.conv = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        channels = 16
        for stage, out_channels in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range(num_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(WideBlock(channels, out_channels, stride=stride, dropout=dropout))
                channels = out_channels
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = functional.relu(self.bn(self.blocks(self.conv(x))))
        scores: Tensor = self.classifier(features.mean((2, 3)))
        return scores


FAMILIES = (
    Family(
        pattern=r"wrn-(\d+)-(\d+)",
        members=("wrn-16-4",),
        constructor=WideResNet,
        paper=HE,
        authors=torch7_scale(HE),
        # The authors' script for SVHN constrains only the first convolution; the paper describes the whole network.
        authors_layers={"output_layer": "classifier", "skip": ["blocks"]},
        recipe={
            "data": {"name": "svhn", "train": ["train", "extra"]},
            "optimizer": {"kind": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
            "schedule": {"kind": "steps", "drops": [80, 120], "factor": 0.1},
            "epochs": 160,
            "batch_size": 128,
            "log_every": 100,
        },
    ),
)
