"""The measurements of `pbwn bench`: their parts and extent, and the dictionary of their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pbwn_repro import models
from pbwn_repro.bench import projection, steps
from pbwn_repro.bench.projection import GPT2_SMALL
from pbwn_repro.bench.timing import machine
from pbwn_repro.models import recipe

# In order of interest to users.
PARTS = ("training", "projection", "riemannian", "step-rules", "optimizer", "growth", "memory")


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    networks: tuple[str, ...] = ("resnet-20", "resnet-110", "inception", "vgg-e", GPT2_SMALL)
    batch_size: int = 128
    rounds: int = 5
    seconds: float = 10.0
    sizes: tuple[tuple[int, int], ...] = (
        *((millions * 1_000_000, 20) for millions in (1, 3, 10, 30, 100)),
        *((1_000_000, count) for count in (10, 30, 100, 300, 1000)),
    )


QUICK = Extent(
    networks=("resnet-20",),
    batch_size=16,
    rounds=5,
    seconds=0.05,
    sizes=((10_000, 2), (10_000, 4)),
)


def is_measured(part: str, network: str) -> bool:
    """Whether a part measures a network; whole steps need one on 32 x 32 colour images.

    Raises ValueError if the network is unknown.
    """
    if network == GPT2_SMALL:  # only its weight shapes are available
        return part not in ("optimizer", "training")
    models.find(network)
    return part != "training" or recipe(network)["data"]["name"] in ("cifar10", "svhn")


def measure(
    extent: Extent, parts: tuple[str, ...] = PARTS, progress: Callable[[str], None] = lambda label: None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure the parts, and yield after each step its part and all results so far.

    `progress` is called with the label of each step before it starts.
    """
    results: dict[str, Any] = {"machine": machine(), "batch size": extent.batch_size}
    for part in parts:
        results[part] = {}
        for label, run in _steps(part, extent).items():
            progress(f"{part}, {label}")
            results[part][label] = _plain(run())
            yield part, results


def _steps(part: str, extent: Extent) -> dict[str, Callable[[], Any]]:
    """Return the measurements of a part by label, in order."""
    if part == "growth":
        return {
            f"{weights:,} weights in {layers:,} layers": partial(projection.growth, weights, layers, extent.seconds / 2)
            for weights, layers in extent.sizes
        }
    measurements: dict[str, Callable[[str], Any]] = {
        "projection": partial(projection.projection, seconds=extent.seconds),
        "riemannian": partial(projection.riemannian, seconds=extent.seconds),
        "step-rules": partial(projection.step_rules, seconds=extent.seconds),
        "optimizer": partial(steps.optimizer_steps, seconds=extent.seconds),
        "training": partial(
            steps.training_steps,
            batch_size=extent.batch_size,
            rounds=extent.rounds,
            steps_per_epoch=steps.EPOCH_IMAGES // extent.batch_size,
        ),
        "memory": projection.extra_memory,
    }
    return {network: partial(measurements[part], network) for network in extent.networks if is_measured(part, network)}


def _plain(value: Any) -> Any:
    """Convert a result, with its dataclasses, to plain JSON values."""
    return json.loads(json.dumps(value, default=asdict))
