"""The encoder's layers: the one stack that serves the clean, the noisy and the labeled pass."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class CleanLayer(NamedTuple):
    """What the denoising cost needs of one layer of the clean pass."""

    z: Tensor
    mean: Tensor
    inverse_std: Tensor


class EncoderLayer(nn.Module):
    """One hidden layer of the Ladder's encoder (table 8).

    z = BN(W h + b) without affine, Gaussian noise on z in the noisy passes, then h' = ReLU(scale * (z + shift)).
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.normalisation = nn.BatchNorm1d(out_features, affine=False)
        self.shift = nn.Parameter(torch.zeros(out_features))
        self.scale = nn.Parameter(torch.ones(out_features))

    def activate(self, z: Tensor) -> Tensor:
        return functional.relu((z + self.shift) * self.scale, inplace=True)

    def forward(self, h: Tensor) -> Tensor:
        """The layer without noise; its BN follows the training mode, as in any network."""
        return self.activate(self.normalisation(self.linear(h)))

    def clean(self, h: Tensor) -> CleanLayer:
        """Batch-normalised z and the batch statistics behind it; the running statistics take note."""
        normalisation = self.normalisation
        assert normalisation.num_batches_tracked is not None
        assert normalisation.momentum is not None
        normalisation.num_batches_tracked.add_(1)
        # The operator under functional.batch_norm, called for the two results which that throws away: computing
        # mean and variance a second time costs more than the normalisation itself.
        z, mean, inverse_std = torch.native_batch_norm(
            self.linear(h),
            None,
            None,
            normalisation.running_mean,
            normalisation.running_var,
            True,
            normalisation.momentum,
            normalisation.eps,
        )
        return CleanLayer(z, mean, inverse_std)

    def noisy(self, h: Tensor, passes: list[int], noise: Tensor) -> Tensor:
        """Noisy z of several passes stacked in `h`, `passes` naming their numbers of rows.

        One matrix product serves all of them; the batch statistics stay each pass's own.
        """
        return normalise_each(self.normalisation, self.linear(h), passes).add_(noise)


def normalise_each(normalisation: nn.BatchNorm1d, stacked: Tensor, passes: list[int]) -> Tensor:
    """Batch-normalise each pass of a stack by its own statistics, in order."""
    return torch.cat([normalisation(rows) for rows in stacked.split(passes)])
