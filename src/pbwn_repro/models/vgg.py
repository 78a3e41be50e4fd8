"""VGG-E for 32x32 images (table 2)."""

from torch import Tensor, nn

from pbwn_repro.models.checks import at_least, positive

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and number of convolutions of each stage; max pooling stands between the stages."""


class VGG(nn.Module):
    """VGG-E: 16 convolutions of 3x3 without bias, BN behind each, global average pooling, a linear layer (table 2)."""

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> None:
        super().__init__()
        positive("vgg-e", num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        at_least("vgg-e", "image_size", image_size, 16, reason="four poolings halve it")
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
