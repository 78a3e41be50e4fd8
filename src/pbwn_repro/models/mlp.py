"""The multi-layer perceptron of figure 2."""

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from pbwn_repro.models.checks import one_of, positive
from pbwn_repro.models.family import Family
from pbwn_repro.models.initialisation import UNIFORM
from pbwn_repro.models.normalisation import Normalisation, normalise_units

HIDDEN_SIZES = {"paper": (750, 250, 250), "authors": (1000, 750, 250, 250, 250), "small": (100, 100)}


class MLP(nn.Module):
    """Linear layers with bias and ReLU on 32x32 MNIST (figure 2).

    `sizes="paper"`, the default, is the caption's 1024-750-250-250-10, 1024 being the pixels; `sizes="authors"` is the
    published code's 1024-1000-750-250-250-250-10. The caption takes precedence because readers of the figure can
    check it; the defaults of every network follow the paper's text. `sizes="small"` is two hidden layers of 100.
    `normalisation`, 'none' in figure 2, is applied between each hidden linear layer and its ReLU: 'batch', 'layer' or
    'divisive'.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 1,
        image_size: int = 32,
        sizes: Literal["paper", "authors", "small"] = "paper",
        normalisation: Normalisation = "none",
    ) -> None:
        super().__init__()
        positive("mlp", num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        one_of("mlp", "sizes", sizes, tuple(HIDDEN_SIZES))
        widths = (in_channels * image_size**2, *HIDDEN_SIZES[sizes])
        self.num_pixels = widths[0]
        layers: list[nn.Module] = []
        for below, width in pairwise(widths):
            layers += [nn.Linear(below, width), *normalise_units(normalisation, width), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if flat.shape[1] != self.num_pixels:
            raise ValueError(f"mlp: expects {self.num_pixels} pixels per image, got a batch of shape {tuple(x.shape)}")
        scores: Tensor = self.classifier(self.features(flat))
        return scores


FAMILIES = (
    Family(
        pattern=r"mlp",
        members=("mlp",),
        constructor=MLP,
        paper=UNIFORM,
        recipe={
            "model_options": {"sizes": "paper"},
            "data": {"name": "mnist", "normalisation": "mnist-mlp"},
            "optimizer": {"kind": "sgd", "lr": 0.3, "momentum": 0.0},
            "epochs": 20,
            "batch_size": 256,
            "log_every": 10,
        },
        layers={"output_layer": None},  # all layers, including the output layer
        free_at_start=("pbwn-riem", "pbwn-riem-nxn"),  # their first gradient is taken at unnormalised weights
        work="linear",
    ),
)
