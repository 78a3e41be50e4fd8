"""Weights that are spread over processes, all in one exchange."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from pbwn import sharded
from pbwn.axes import Axes
from pbwn.constraint import Constraint


class ShardedWeights:
    """DTensors; the part of each that this process holds, and where, is looked up in each call."""

    def __init__(
        self, tensors: Sequence[Tensor], axes: Sequence[Axes], radii: Sequence[Tensor | None], constraint: Constraint
    ) -> None:
        self._weights = list(zip(tensors, axes, radii, strict=True))
        self._constraint = constraint

    def fits(self) -> bool:
        """Whether nothing has moved: no place in memory is kept."""
        return True

    @torch.no_grad()
    def project_(self) -> None:
        """Project all weights: equation (10)."""
        shards = [sharded.Shard.of(tensor, axes) for tensor, axes, _ in self._weights]
        sharded.project_(shards, self._constraint, [_beside(tensor, radii) for tensor, _, radii in self._weights])
        increment_version([tensor for tensor, _, _ in self._weights])  # what was written to are their parts

    @torch.no_grad()
    def tangent_(self) -> None:
        """Make the gradients of all weights tangent: equation (7)."""
        trained = [weight for weight in self._weights if weight[0].grad is not None]
        if not trained:
            return
        shards = [sharded.Shard.of(tensor, axes) for tensor, axes, _ in trained]
        gradients = [sharded.local_gradient(tensor) for tensor, _, _ in trained]
        sharded.tangent_(shards, gradients, [_beside(tensor, radii) for tensor, _, radii in trained])
        increment_version([tensor.grad for tensor, _, _ in trained if tensor.grad is not None])


def _beside(tensor: Tensor, radii: Tensor | None) -> Tensor | None:
    """The radii on the device of their weight."""
    return None if radii is None else radii.to(tensor.device)
