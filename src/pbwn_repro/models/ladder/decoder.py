"""The decoder's layers: a guess at each clean z, from its noisy version and from the layer above."""

import torch
from torch import Tensor, nn


class UnitwiseBilinear(nn.Module):
    """a = w z + v u + m z u + b, each unit with its own four numbers; at the start a = z."""

    def __init__(self, num_units: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(num_units))
        self.v = nn.Parameter(torch.zeros(num_units))
        self.m = nn.Parameter(torch.zeros(num_units))
        self.b = nn.Parameter(torch.zeros(num_units))

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        # Gathered as z (w + m u) + (b + v u): half the passes over memory of the formula as it is written.
        return z * torch.addcmul(self.w, self.m, u) + torch.addcmul(self.b, self.v, u)


class Combinator(nn.Module):
    """The 'vanilla' combinator: z_hat = a1 + c sigmoid(a2), a1 and a2 unit-wise bilinear in (z, u).

    At the start it is z + sigmoid(z).
    """

    def __init__(self, num_units: int) -> None:
        super().__init__()
        self.direct = UnitwiseBilinear(num_units)
        self.gate = UnitwiseBilinear(num_units)
        self.c = nn.Parameter(torch.ones(num_units))

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        return torch.addcmul(self.direct(z, u), self.c, torch.sigmoid(self.gate(z, u)))


class DecoderLayer(nn.Module):
    """One layer of the Ladder's decoder (table 8): u = BN(W above + b) without affine, then the combinator.

    The decoder runs in training alone, so its BN keeps no running statistics.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.normalisation = nn.BatchNorm1d(out_features, affine=False, track_running_stats=False)
        self.combinator = Combinator(out_features)

    def forward(self, noisy_z: Tensor, above: Tensor) -> Tensor:
        guess: Tensor = self.combinator(noisy_z, self.normalisation(self.linear(above)))
        return guess
