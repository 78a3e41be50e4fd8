"""The projection by itself: per network and path, as it grows, and the memory that it keeps."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import pbwn
from pbwn.backends import missing
from pbwn.batched import Batch
from pbwn.selection import ConstrainedWeight
from pbwn_repro.bench.candidates import projections, stack, tangents, weights_of
from pbwn_repro.bench.timing import Times, interleaved


def per_network(networks: Sequence[str], seconds: float) -> dict[str, dict[str, Times]]:
    """Times of the limit, the plain loop and every path, by network."""
    return {network: interleaved(projections(weights_of(network)), seconds=seconds) for network in networks}


def riemannian(networks: Sequence[str], seconds: float) -> dict[str, dict[str, Times]]:
    """Times of the Riemannian gradient, by network."""
    return {network: interleaved(tangents(weights_of(network)), seconds=seconds) for network in networks}


def growth(sizes: Sequence[tuple[int, int]], seconds: float) -> list[dict[str, Any]]:
    """Times for stacks with these numbers of weights and layers."""
    return [
        {"weights": size, "layers": count, "times": interleaved(projections(stack(size, count)), seconds=seconds)}
        for size, count in sizes
    ]


def extra_memory(networks: Sequence[str]) -> list[dict[str, Any]]:
    """The bytes of tensors that each path keeps between calls, beside the weights and the neurons that there are."""
    found = []
    for network in networks:
        weights = weights_of(network)
        for path in ("torch", "numba"):
            if missing(path) is None:
                found.append({"network": network, "path": path, **_memory(weights, path)})
    return found


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
