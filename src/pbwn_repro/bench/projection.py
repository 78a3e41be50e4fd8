"""Time and memory of the projection alone.

The cost of `per=` and `step=` is timed together with the plain projection, and counted for a GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

import pbwn
from pbwn.paths.batch import Backend, Batch, missing
from pbwn.selection import ConstrainedWeight
from pbwn_repro.bench.counting import count
from pbwn_repro.bench.timing import Times, interleaved
from pbwn_repro.models import build, find

GPT2_SMALL = "gpt-2 small"
_GPT2_LAYER = ((768, 2304), (768, 768), (768, 3072), (3072, 768))


def weights_of(network: str) -> tuple[ConstrainedWeight, ...]:
    """Return the constrained weights of a network of the paper, or of the twelve layers of GPT-2 small."""
    [weights] = constrained_in(network, "neuron")
    return weights


def constrained_in(network: str, *per: Literal["neuron", "matrix"]) -> list[tuple[ConstrainedWeight, ...]]:
    """Return the constrained weights of one model, once for each value of `per`."""
    if network == GPT2_SMALL:
        model: nn.Module = nn.Sequential(*(nn.Linear(*each, bias=False) for _ in range(12) for each in _GPT2_LAYER))
        layers: Mapping[str, Any] = {"output_layer": None}
    else:
        model, layers = build(network), find(network).layers()
    return [pbwn.select(model, per=each, **layers).constrained for each in per]


def stack(num_weights: int, num_layers: int) -> tuple[ConstrainedWeight, ...]:
    """Return the weights of `num_layers` square layers with about `num_weights` weights in total."""
    side = max(1, round((num_weights / num_layers) ** 0.5))
    model = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(num_layers)))
    return pbwn.select(model, output_layer=None).constrained


def paths() -> list[Backend]:
    """Return the paths that are available on this machine."""
    known: tuple[Backend, ...] = ("torch", "numba")
    return [path for path in known if missing(path) is None]


def batches(weights: Sequence[ConstrainedWeight]) -> dict[Backend, Batch]:
    """Return a batch of the weights for each available path."""
    return {path: Batch(weights, pbwn.UnitNorm(), backend=path) for path in paths()}


def projections(weights: Sequence[ConstrainedWeight]) -> dict[str, Callable[[], object]]:
    """Return the memory-bandwidth limit, the plain loop, the same loop with kept views, and every available path."""
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

    return {
        "limit": lambda: same_bytes.mul_(1.0),
        "naive": naive,
        "views kept": naive_with_kept_views,
        **{path: batch.project_ for path, batch in batches(weights).items()},
    }


def tangents(weights: Sequence[ConstrainedWeight]) -> dict[str, Callable[[], object]]:
    """Return the plain loop for the Riemannian gradient and every path; gradients are tangent after the first call."""
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

    return {"naive": naive, **{path: batch.tangent_ for path, batch in batches(weights).items()}}


def projection(network: str, seconds: float) -> dict[str, Times]:
    """Time the limit, the plain loops and every path."""
    return interleaved(projections(weights_of(network)), seconds=seconds)


def riemannian(network: str, seconds: float) -> dict[str, Times]:
    """Time the Riemannian gradient with the plain loop and every path."""
    return interleaved(tangents(weights_of(network)), seconds=seconds)


def growth(num_weights: int, num_layers: int, seconds: float) -> dict[str, Any]:
    """Time the projection of a stack of equal layers."""
    times = interleaved(projections(stack(num_weights, num_layers)), seconds=seconds)
    return {"weights": num_weights, "layers": num_layers, "times": times}


def extra_memory(network: str) -> dict[Backend, dict[str, int]]:
    """Return for each path the bytes of the tensors that it keeps between calls, and the size of the weights."""
    weights = weights_of(network)
    return {path: _memory(weights, batch) for path, batch in batches(weights).items()}


def _memory(weights: Sequence[ConstrainedWeight], batch: Batch) -> dict[str, int]:
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
    """Return the tensors reachable from a batch by following references, without those of the model."""
    seen: set[int] = set()
    pending: list[Any] = [batch]
    tensors = []
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, (type, nn.Module)):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            tensors.append(item)
        elif isinstance(item, (list, tuple, dict)) or type(item).__module__.startswith("pbwn"):
            pending.extend(gc.get_referents(item))
    return tensors


NEURON, MATRIX, TANGENT, ANGLE = "per neuron", "per matrix", "tangent", "angle"
RULES = (NEURON, MATRIX, TANGENT, ANGLE)
_RATE = 0.01


def step_rules(network: str, seconds: float) -> dict[str, Any]:
    """Return for each rule the time of each path and its cost on a GPU; both include the copy that step rules keep."""
    neurons, matrices = constrained_in(network, "neuron", "matrix")
    available = paths()
    candidates = {
        f"{path} {rule}": run for path in available for rule, run in _candidates(neurons, matrices, path).items()
    }
    times = interleaved(candidates, seconds=seconds)
    return {
        rule: {"times": {path: times[f"{path} {rule}"] for path in available}, **_gpu_cost(rule, neurons, matrices)}
        for rule in RULES
    }


def _candidates(
    neurons: Sequence[ConstrainedWeight], matrices: Sequence[ConstrainedWeight], path: Backend
) -> dict[str, Callable[[], object]]:
    """Return a function for each rule; all of them work on the same weights."""
    by_neuron, by_matrix = (Batch(weights, pbwn.UnitNorm(), backend=path) for weights in (neurons, matrices))
    starts, rates = starts_of(neurons), [_RATE] * len(neurons)
    return {
        NEURON: by_neuron.project_,
        MATRIX: by_matrix.project_,
        # The batch copies the starts, as it copies the weights before a training step.
        TANGENT: lambda: by_neuron.step_(starts, None),
        ANGLE: lambda: by_neuron.step_(starts, rates),
    }


def starts_of(weights: Sequence[ConstrainedWeight]) -> list[Tensor]:
    """Return possible weights before a step that ends at these: no row has a zero update, which would cost less."""
    return [weight.tensor.detach() + _RATE * weight.tensor.detach().roll(1) for weight in weights]


def _gpu_cost(
    rule: str, neurons: Sequence[ConstrainedWeight], matrices: Sequence[ConstrainedWeight]
) -> dict[str, float]:
    """Return the operations per weight and the bytes moved per element on a GPU."""
    counts = count(
        matrices if rule == MATRIX else neurons, lambda weights: _candidates(weights, weights, "torch")[rule]
    )
    elements = sum(weight.tensor.numel() for weight in neurons)
    return {
        "operations a weight": len(counts.operations) / len(neurons),
        "bytes an element": counts.bytes_moved / elements,
    }
