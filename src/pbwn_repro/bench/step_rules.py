"""What `per=` and `step=` cost: timed on the CPU, in one run with the plain projection, and counted for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

import pbwn
from pbwn.paths.batch import Backend, Batch, missing
from pbwn.selection import ConstrainedWeight
from pbwn_repro.bench.counting import counted
from pbwn_repro.bench.projection import constrained_in
from pbwn_repro.bench.timing import interleaved

NEURON, MATRIX, TANGENT, ANGLE = "per neuron", "per matrix", "tangent", "angle"
RULES = (NEURON, MATRIX, TANGENT, ANGLE)
_RATE = 0.01


def step_rules(network: str, seconds: float) -> dict[str, Any]:
    """By rule: the times of each path, and what it asks of a GPU; with step rules, the copy that they keep included."""
    neurons, matrices = constrained_in(network, "neuron", "matrix")
    found: list[Backend] = [backend for backend in ("torch", "numba") if missing(backend) is None]
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
