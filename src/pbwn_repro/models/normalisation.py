"""What normalises activations: batch normalisation, or what stands in its place."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pbwn_repro.models.checks import one_of

Normalisation = Literal["none", "batch", "layer", "divisive"]
NORMALISATIONS = ("none", "batch", "layer", "divisive")
WINDOW = {2: 61, 4: 5}  # neighbours, by the number of dimensions: hidden units, or pixels along each side
SMOOTHING = 1.0


class DivisiveNorm(nn.Module):
    """Divisive normalisation of an example by its neighbourhood (Ren et al. 2017).

    gamma (z - m) / sqrt(sigma^2 + v) + beta, m being the mean of z over the neighbourhood of a unit, v the mean over it
    of (z - m)^2. Of images, the neighbourhood is a window of 5 x 5 pixels in all channels; of hidden units, the 61
    around a unit in their order. At borders it has fewer. Sigma is 1; with sigma = 0 and all units as the neighbourhood
    it is layer normalisation. The authors' L1 term on z - m is a part of the loss, and is left out.

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
        """The mean over each unit's neighbourhood."""
        window = self.window or WINDOW[values.ndim]
        if values.ndim == 2:
            rows = values.unsqueeze(1)
            return functional.avg_pool1d(rows, window, 1, window // 2, count_include_pad=False).squeeze(1)
        channels = values.mean(dim=1, keepdim=True)
        return functional.avg_pool2d(channels, window, 1, window // 2, count_include_pad=False)


def normalise_units(kind: Normalisation, width: int) -> list[nn.Module]:
    """What normalises a layer of hidden units: one module, or none."""
    one_of("mlp", "normalisation", kind, NORMALISATIONS)
    made = {"none": None, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "divisive": DivisiveNorm}[kind]
    return [] if made is None else [made(width)]


def normalise_channels(kind: Normalisation, channels: int) -> nn.Module:
    """What normalises the channels of images; layer normalisation is over all of them, pixels too."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "layer":
        return nn.GroupNorm(1, channels)
    return DivisiveNorm(channels) if kind == "divisive" else nn.Identity()
