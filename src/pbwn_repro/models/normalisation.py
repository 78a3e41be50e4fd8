"""Normalisation of activations: batch normalisation and its alternatives."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pbwn_repro.models.checks import one_of

Normalisation = Literal["none", "batch", "layer", "divisive"]
NORMALISATIONS = ("none", "batch", "layer", "divisive")
WINDOW = {2: 61, 4: 5}  # by number of dimensions: hidden units, or pixels per side
SMOOTHING = 1.0


class DivisiveNorm(nn.Module):
    """Divisive normalisation of each unit by its neighbourhood in the same example (Ren et al. 2017).

    gamma (z - m) / sqrt(sigma^2 + v) + beta, where m is the mean of z and v that of (z - m)^2 over the neighbourhood of
    a unit: for images, a window of 5 x 5 pixels in all channels; for hidden units, the 61 units around it in index
    order; truncated at borders. Sigma is 1 by default; sigma = 0 with all units as the neighbourhood is layer
    normalisation. The authors' L1 term on z - m belongs to the loss and is omitted.

    >>> DivisiveNorm(8)(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    def __init__(self, num_features: int, window: int | None = None, sigma: float = SMOOTHING) -> None:
        super().__init__()
        self.window, self.sigma = window, sigma
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, z: Tensor) -> Tensor:
        centred = z - self._mean(z)
        normalised = centred * (self.sigma**2 + self._mean(centred.square())).rsqrt()
        shape = (-1, *(1,) * (z.ndim - 2))
        return normalised * self.weight.view(shape) + self.bias.view(shape)

    def _mean(self, values: Tensor) -> Tensor:
        """Return the mean over each unit's neighbourhood."""
        window = self.window or WINDOW[values.ndim]
        if values.ndim == 2:
            rows = values.unsqueeze(1)
            return functional.avg_pool1d(rows, window, 1, window // 2, count_include_pad=False).squeeze(1)
        channels = values.mean(dim=1, keepdim=True)
        return functional.avg_pool2d(channels, window, 1, window // 2, count_include_pad=False)


def normalise_units(kind: Normalisation, width: int) -> list[nn.Module]:
    """Return the normalisation of a layer of hidden units: one module, or none."""
    one_of("mlp", "normalisation", kind, NORMALISATIONS)
    layer = {"none": None, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "divisive": DivisiveNorm}[kind]
    return [] if layer is None else [layer(width)]


def normalise_channels(kind: Normalisation, channels: int) -> nn.Module:
    """Return the normalisation of image channels; layer normalisation covers all channels and pixels."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "layer":
        return nn.GroupNorm(1, channels)
    return DivisiveNorm(channels) if kind == "divisive" else nn.Identity()
