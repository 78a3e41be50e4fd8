"""Noticing a loss or gradient that is not finite before it reaches the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NonFiniteError(Exception):
    """The loss or a gradient is NaN or infinite."""


def broken(loss: Tensor, model: nn.Module | None) -> str | None:
    """Name what is not finite: the loss, and the first layers whose gradients are; None where all is well.

    Without a model the loss alone counts: gradients that overflow are the business of a gradient scaler.
    """
    if model is None:
        return None if torch.isfinite(loss).item() else f"the loss is {loss.item()}"
    named = [(name, parameter.grad) for name, parameter in model.named_parameters() if parameter.grad is not None]
    norms = torch.stack([_local(norm) for norm in torch._foreach_norm([_local(gradient) for _, gradient in named])])
    if torch.isfinite(loss + norms.sum()).item():
        return None
    layers = [name for (name, _), norm in zip(named, norms.tolist(), strict=True) if not abs(norm) < float("inf")]
    more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""
    gradients = f"the gradient of {', '.join(layers[:3])}{more} is not finite" if layers else ""
    if torch.isfinite(loss).item():
        return gradients or None  # every gradient is finite where only their sum is not
    return f"the loss is {loss.item()}" + (f", {gradients}" if gradients else "")


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
