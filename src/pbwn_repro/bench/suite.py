"""One run of all measurements: what is measured how long, and the one dictionary that holds the results."""

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

# What a user asks first comes first.
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
    """Whether a part has a network: whole steps take one on colour images of 32 x 32. ValueError if unknown."""
    if network == GPT2_SMALL:  # its shapes alone
        return part not in ("optimizer", "training")
    models.find(network)
    return part != "training" or recipe(network)["data"]["name"] in ("cifar10", "svhn")


def measure(
    extent: Extent, parts: tuple[str, ...] = PARTS, tell: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure these parts; after each step, its part and all results so far. `tell` hears what begins."""
    results: dict[str, Any] = {"machine": machine(), "batch size": extent.batch_size}
    for part in parts:
        results[part] = {}
        for label, run in _steps(part, extent).items():
            tell(f"{part}, {label}")
            results[part][label] = _plain(run())
            yield part, results


def _steps(part: str, extent: Extent) -> dict[str, Callable[[], Any]]:
    """What a part is measured on, one after the other."""
    if part == "growth":
        return {
            f"{weights:,} weights in {layers:,} layers": partial(projection.growth, weights, layers, extent.seconds / 2)
            for weights, layers in extent.sizes
        }
    of_network: dict[str, Callable[[str], Any]] = {
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
    return {network: partial(of_network[part], network) for network in extent.networks if is_measured(part, network)}


def _plain(value: Any) -> Any:
    """The same as dictionaries, lists and numbers alone, as a JSON file holds them."""
    return json.loads(json.dumps(value, default=asdict))
