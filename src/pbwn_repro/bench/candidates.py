"""The weights that are timed, and the ways to project them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

import pbwn
from pbwn.paths.batch import Backend, Batch, missing
from pbwn.selection import ConstrainedWeight
from pbwn_repro.models import build, find

GPT2_SMALL = "gpt-2 small"
_GPT2_LAYER = ((768, 2304), (768, 768), (768, 3072), (3072, 768))


def weights_of(network: str) -> tuple[ConstrainedWeight, ...]:
    """The constrained weights of a network of the paper, or of GPT-2 small's twelve layers."""
    if network == GPT2_SMALL:
        model = nn.Sequential(*(nn.Linear(*sizes, bias=False) for _ in range(12) for sizes in _GPT2_LAYER))
        return pbwn.select(model, output_layer=None).constrained
    return pbwn.select(build(network), **find(network).layers()).constrained


def stack(num_weights: int, num_layers: int) -> tuple[ConstrainedWeight, ...]:
    """So many square layers with about so many weights in all."""
    side = max(1, round((num_weights / num_layers) ** 0.5))
    model = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(num_layers)))
    return pbwn.select(model, output_layer=None).constrained


def projections(weights: Sequence[ConstrainedWeight]) -> dict[str, Callable[[], object]]:
    """The limit, the plain loop, the same with its views kept between calls, and every path that can be had here."""
    same_bytes = torch.randn(sum(weight.tensor.numel() for weight in weights))
    tensors = [weight.tensor for weight in weights]
    rows = [tensor.detach().flatten(1) for tensor in tensors]

    @torch.no_grad()
    def naive() -> None:
        for tensor in tensors:
            tensor.div_(tensor.flatten(1).norm(dim=1).view(-1, *(1 for _ in tensor.shape[1:])))

    def naive_with_kept_views() -> None:
        for row in rows:
            row.div_(row.norm(dim=1, keepdim=True))

    paths: list[Backend] = [backend for backend in ("torch", "numba") if missing(backend) is None]
    batches = {path: Batch(weights, pbwn.UnitNorm(), backend=path) for path in paths}
    return {
        "limit": lambda: same_bytes.mul_(1.0),
        "naive": naive,
        "views kept": naive_with_kept_views,
        **{path: batch.project_ for path, batch in batches.items()},
    }


def tangents(weights: Sequence[ConstrainedWeight]) -> dict[str, Callable[[], object]]:
    """The plain loop of the Riemannian gradient, and every path; gradients are tangent after the first run."""
    tensors = [weight.tensor for weight in weights]
    for tensor in tensors:
        tensor.grad = torch.randn_like(tensor)

    @torch.no_grad()
    def naive() -> None:
        for tensor in tensors:
            gradient = tensor.grad
            assert gradient is not None
            row, slope = tensor.flatten(1), gradient.flatten(1)
            along = (row * slope).sum(1, keepdim=True) / row.square().sum(1, keepdim=True)
            slope.sub_(along * row)

    paths: list[Backend] = [backend for backend in ("torch", "numba") if missing(backend) is None]
    batches = {path: Batch(weights, pbwn.UnitNorm(), backend=path) for path in paths}
    return {"naive": naive, **{path: batch.tangent_ for path, batch in batches.items()}}
