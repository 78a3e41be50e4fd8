"""The projection by itself: the weights that are timed, the ways to project them, and the memory that these keep.

What `per=` and `step=` cost is timed in one run with the plain projection, and counted for a GPU.
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
from pbwn_repro.bench.counting import counted
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


def paths() -> list[Backend]:
    """The paths that can be had here."""
    known: tuple[Backend, ...] = ("torch", "numba")
    return [path for path in known if missing(path) is None]


def batches(weights: Sequence[ConstrainedWeight]) -> dict[Backend, Batch]:
    """The weights as each path takes them."""
    return {path: Batch(weights, pbwn.UnitNorm(), backend=path) for path in paths()}


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

    return {
        "limit": lambda: same_bytes.mul_(1.0),
        "naive": naive,
        "views kept": naive_with_kept_views,
        **{path: batch.project_ for path, batch in batches(weights).items()},
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

    return {"naive": naive, **{path: batch.tangent_ for path, batch in batches(weights).items()}}


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


def extra_memory(network: str) -> dict[Backend, dict[str, int]]:
    """By path, the bytes of tensors that it keeps between calls, beside the weights and the neurons that there are."""
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


NEURON, MATRIX, TANGENT, ANGLE = "per neuron", "per matrix", "tangent", "angle"
RULES = (NEURON, MATRIX, TANGENT, ANGLE)
_RATE = 0.01


def step_rules(network: str, seconds: float) -> dict[str, Any]:
    """By rule: the times of each path, and what it asks of a GPU; with step rules, the copy that they keep included."""
    neurons, matrices = constrained_in(network, "neuron", "matrix")
    found = paths()
    candidates = {f"{path} {rule}": run for path in found for rule, run in _candidates(neurons, matrices, path).items()}
    times = interleaved(candidates, seconds=seconds)
    return {
        rule: {"times": {path: times[f"{path} {rule}"] for path in found}, **_asked_for(rule, neurons, matrices)}
        for rule in RULES
    }


def _candidates(
    neurons: Sequence[ConstrainedWeight], matrices: Sequence[ConstrainedWeight], path: Backend
) -> dict[str, Callable[[], object]]:
    """A call for each rule; all of them work on the same weights."""
    by_neuron, by_matrix = (Batch(weights, pbwn.UnitNorm(), backend=path) for weights in (neurons, matrices))
    starts, rates = starts_of(neurons), [_RATE] * len(neurons)
    return {
        NEURON: by_neuron.project_,
        MATRIX: by_matrix.project_,
        # The batch copies the starts, as it copies weights before a step.
        TANGENT: lambda: by_neuron.step_(starts, None),
        ANGLE: lambda: by_neuron.step_(starts, rates),
    }


def starts_of(weights: Sequence[ConstrainedWeight]) -> list[Tensor]:
    """Where a step may have begun that ends at these weights: no row has an update of zero, which would cost less."""
    return [weight.tensor.detach() + _RATE * weight.tensor.detach().roll(1) for weight in weights]


def _asked_for(
    rule: str, neurons: Sequence[ConstrainedWeight], matrices: Sequence[ConstrainedWeight]
) -> dict[str, float]:
    """Operations a weight and bytes an element on a GPU."""
    counts = counted(
        matrices if rule == MATRIX else neurons, lambda weights: _candidates(weights, weights, "torch")[rule]
    )
    elements = sum(weight.tensor.numel() for weight in neurons)
    return {
        "operations a weight": len(counts.operations) / len(neurons),
        "bytes an element": counts.bytes_moved / elements,
    }
