"""What is measured of a model's layers: the norms of neurons while it trains, and the batch statistics at its end."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

import pbwn
from pbwn.functional import row_norms
from pbwn_repro.engine.processes import Processes
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
        """The smallest norm of a neuron, the three quartiles and the largest norm; nothing where there are no neurons.

        Every process has to ask.
        """
        norms = []
        for weight in self._weights:
            tensor = getattr(weight.module, weight.attribute)
            tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            norms.append(row_norms(tensor.detach(), weight.axes).flatten().double().cpu())
        if not norms:
            return []
        ordered = torch.cat(norms).sort().values
        last = len(ordered) - 1
        return [ordered[round(last * part / 4)].item() for part in range(5)]


@torch.no_grad()
def estimate_statistics(model: nn.Module, inputs: Iterable[Tensor], place: Processes) -> None:
    """Set every BN's running statistics to the mean over one pass: they belong to the weights as they are now."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean over all batches
    model.train()
    for batch in inputs:
        model(batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        for statistic in (layer.running_mean, layer.running_var):
            assert statistic is not None
            statistic.copy_(place.sum(statistic.clone()) / place.count)
