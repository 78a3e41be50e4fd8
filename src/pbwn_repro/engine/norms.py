"""How long the weights of neurons are while a network trains, whether a method constrains them or not."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import pbwn
from pbwn.functional import row_norms
from pbwn_repro.models import Layers


class NormWatch:
    """Watches the weights that a constraint would touch.

    Make it before the network is changed: weight normalization hides its weights under new names, and what the forward
    pass multiplies with is what counts.
    """

    def __init__(self, model: nn.Module, layers: Layers) -> None:
        """Find the weights."""
        self._weights = pbwn.select(model, **layers).constrained

    @torch.no_grad()
    def quartiles(self) -> list[float]:
        """The smallest norm of a neuron, the three quartiles and the largest norm. Every process has to ask."""
        norms = []
        for weight in self._weights:
            tensor = getattr(weight.module, weight.attribute)
            tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            norms.append(row_norms(tensor.detach(), weight.axes).flatten().double().cpu())
        ordered = torch.cat(norms).sort().values
        last = len(ordered) - 1
        return [ordered[round(last * part / 4)].item() for part in range(5)]
