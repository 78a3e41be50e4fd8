"""What it takes to make an artefact that was not made: counted, not measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from pbwn_repro.catalog import ARTEFACTS, TrainedArtefact
from pbwn_repro.config import RunConfig
from pbwn_repro.runs.effort import LAYER_SECONDS, NetworkCost, effort, network_cost

TERAFLOPS = 10.0
ASSUMPTION = (
    f"GPU hours are the FLOPs of the runs at {TERAFLOPS:g} TFLOP/s, or {1000 * LAYER_SECONDS:g} milliseconds for each "
    "layer in a step where that is more: a count, not a measurement. Large convolutions come near the one on a current "
    "GPU; small networks and narrow deep ones, such as those of figure 2 and tables 3, 4 and 8, wait for the host that "
    "starts their kernels: the other, which a slow processor may double."
)


@cache
def price(name: str) -> str:
    """The runs of an artefact at paper scale, and the GPU hours that they take together; empty where it has none."""
    artefact = ARTEFACTS[name]
    if not isinstance(artefact, TrainedArtefact):
        return ""
    plans = artefact.plans("paper")
    words = f"{len(plans)} runs, {hours([plan.config for plan in plans])}"
    others = sorted({plan.artefact for plan in plans} - {name})
    return f"{words}, shared with {' and '.join(others).replace('-', ' ')}" if others else words


def hours(configs: Sequence[RunConfig]) -> str:
    """The GPU hours that runs with these configurations take together."""
    found = sum(map(_hours, configs))
    return f"about {found:,.1f} GPU hours" if found >= 0.1 else "minutes of a GPU"


def _hours(config: RunConfig) -> float:
    return effort(config, _network_cost(config)).gpu_seconds(TERAFLOPS * 1e12) / 3_600


def _network_cost(config: RunConfig) -> NetworkCost:
    key = (config.model, json.dumps(config.model_options), config.batch_size, config.data.name, config.data.labels)
    if key not in _KNOWN:
        _KNOWN[key] = network_cost(config)
    return _KNOWN[key]


_KNOWN: dict[tuple[object, ...], NetworkCost] = {}
