"""VGG-E for 32x32 images (table 2)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from pbwn_repro.models.checks import at_least, positive
from pbwn_repro.models.family import Family
from pbwn_repro.models.initialisation import HE, torch7_scale

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and number of convolutions of each stage; max pooling separates the stages."""


class VGG(nn.Module):
    """VGG-E (table 2): 16 bias-free 3x3 convolutions, each with BN and ReLU, global average pooling, a linear layer."""

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> None:
        super().__init__()
        positive("vgg-e", num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        at_least("vgg-e", "image_size", image_size, 16, reason="four poolings halve the size")
        layers: list[nn.Module] = []
        channels = in_channels
        for stage, (out_channels, num_convolutions) in enumerate(STAGES):
            if stage > 0:
                layers.append(nn.MaxPool2d(2))
            for _ in range(num_convolutions):
                layers += [
                    nn.Conv2d(channels, out_channels, 3, padding=1, bias=False),
                    nn.BatchNorm2d(out_channels, eps=1e-3),
                    nn.ReLU(inplace=True),
                ]
                channels = out_channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return scores


def authors_start(method: str) -> Mapping[str, Any]:
    """Return the arguments of `build` that differ for a method in the authors' code.

    The convolutions of some methods kept Torch7's uniform initialisation.
    """
    uniform = {"init": replace(torch7_scale(HE), convolution="uniform-fan-in")}
    return uniform if method in ("wn", "pbwn", "pbwn-riem", "pbwn-riem-nxn") else {}


FAMILIES = (
    Family(
        pattern=r"vgg-e",
        members=("vgg-e",),
        constructor=VGG,
        paper=HE,
        authors=torch7_scale(HE),
        authors_start=authors_start,
        recipe={
            "data": {"name": "cifar10", "normalisation": "cifar", "augmentation": "authors"},
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
            "schedule": {"kind": "steps", "drops": [80, 120], "factor": 0.2},
            "epochs": 160,
            "batch_size": 128,
            "log_every": 10,
        },
    ),
)
