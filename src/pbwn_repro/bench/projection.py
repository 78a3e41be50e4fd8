"""The projection by itself: the weights that are timed, the ways to project them, and the memory that these keep."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

import pbwn
from pbwn.paths.batch import Backend, Batch, missing
from pbwn.selection import ConstrainedWeight
from pbwn_repro.bench.timing import Times, interleaved
from pbwn_repro.models import build, find

GPT2_SMALL = "gpt-2 small"
_GPT2_LAYER = ((768, 2304), (768, 768), (768, 3072), (3072, 768))


def weights_of(network: str) -> tuple[ConstrainedWeight, ...]:
    """The constrained weights of a network of the paper, or of GPT-2 small's twelve layers."""
    [weights] = constrained_in(network, "neuron")
    return weights


def constrained_in(network: str, *per: Literal["neuron", "matrix"]) -> list[tuple[ConstrainedWeight, ...]]:
    """The constrained weights of one model, once for each way to take their norms."""
    if network == GPT2_SMALL:
        model: nn.Module = nn.Sequential(*(nn.Linear(*each, bias=False) for _ in range(12) for each in _GPT2_LAYER))
        layers: Mapping[str, Any] = {"output_layer": None}
    else:
        model, layers = build(network), find(network).layers()
    return [pbwn.select(model, per=each, **layers).constrained for each in per]


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


def projection(network: str, seconds: float) -> dict[str, Times]:
    """Times of the limit, the plain loop and every path."""
    return interleaved(projections(weights_of(network)), seconds=seconds)


def riemannian(network: str, seconds: float) -> dict[str, Times]:
    """Times of the Riemannian gradient."""
    return interleaved(tangents(weights_of(network)), seconds=seconds)


def growth(num_weights: int, num_layers: int, seconds: float) -> dict[str, Any]:
    """Times for a stack of layers with so many weights in all."""
    times = interleaved(projections(stack(num_weights, num_layers)), seconds=seconds)
    return {"weights": num_weights, "layers": num_layers, "times": times}


def extra_memory(network: str) -> dict[str, dict[str, int]]:
    """By path, the bytes of tensors that it keeps between calls, beside the weights and the neurons that there are."""
    weights = weights_of(network)
    return {path: _memory(weights, path) for path in ("torch", "numba") if missing(path) is None}


def _memory(weights: Sequence[ConstrainedWeight], path: Any) -> dict[str, int]:
    batch = Batch(weights, pbwn.UnitNorm(), backend=path)
    batch.project_()
    own = {weight.tensor.untyped_storage().data_ptr() for weight in weights}
    kept = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in _tensors_of(batch)
        if tensor.untyped_storage().data_ptr() not in own
    }
    return {
        "neurons": sum(weight.neurons for weight in weights),
        "bytes of weights": sum(weight.tensor.nbytes for weight in weights),
        "bytes kept": sum(kept.values()),
    }


def _tensors_of(batch: Batch) -> list[Tensor]:
    """The tensors that a batch holds, found by following its references; not those of the model."""
    seen: set[int] = set()
    waiting: list[Any] = [batch]
    tensors = []
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (type, torch.nn.Module)):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            tensors.append(thing)
        elif isinstance(thing, (list, tuple, dict)) or type(thing).__module__.startswith("pbwn"):
            waiting.extend(gc.get_referents(thing))
    return tensors
