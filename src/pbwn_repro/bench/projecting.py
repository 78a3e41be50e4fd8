"""The projection by itself: per network and path, as it grows, and the memory that it keeps."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import pbwn
from pbwn.paths.batch import Batch, missing
from pbwn.selection import ConstrainedWeight
from pbwn_repro.bench.candidates import projections, stack, tangents, weights_of
from pbwn_repro.bench.timing import Times, interleaved


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
