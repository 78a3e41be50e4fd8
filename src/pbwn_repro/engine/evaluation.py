"""Test errors, and batch statistics that belong to the weights as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from pbwn_repro.data import Batches
from pbwn_repro.engine.processes import Processes


class Scores(NamedTuple):
    """Errors in percent, and the mean loss; top-5 where there are more than ten classes."""

    error: float
    loss: float
    top5_error: float | None


@torch.no_grad()
def evaluate(model: nn.Module, batches: Batches, place: Processes, num_classes: int) -> Scores:
    """Test a model on every picture once."""
    place.align(model)
    model.eval()
    counts = torch.zeros(4, dtype=torch.float64, device=place.device)
    for images, labels, _ in batches.epoch(0):
        if not len(labels):  # where weights are sharded, every process has to take part in every pass
            model(images.new_zeros(1, *images.shape[1:]))
            continue
        scores = model(images).float()
        own = scores.gather(1, labels[:, None])
        earlier = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
        ranks = ((scores > own) | ((scores == own) & earlier)).sum(1)  # of equal scores the first wins, as in argmax
        # A score that is not a number beats nothing and is beaten by nothing: it must not count as right.
        ranks = ranks.masked_fill(~scores.isfinite().all(1), num_classes)
        loss = functional.cross_entropy(scores, labels, reduction="sum")
        counts += torch.stack([(ranks > 0).sum(), (ranks > 4).sum(), loss, loss.new_tensor(len(labels))])
    wrong, wrong5, loss, total = place.sum(counts).tolist()
    model.train()
    return Scores(100 * wrong / total, loss / total, 100 * wrong5 / total if num_classes > 10 else None)


@torch.no_grad()
def estimate_statistics(model: nn.Module, pictures: Iterable[Tensor], place: Processes) -> None:
    """Set every BN's running statistics to the mean over one pass: they belong to the weights as they are now."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean over all batches
    model.train()
    for images in pictures:
        model(images)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        for statistic in (layer.running_mean, layer.running_var):
            assert statistic is not None
            statistic.copy_(place.sum(statistic.clone()) / place.count)
