"""What it takes to make an artefact that was not made: counted, not measured."""

from __future__ import annotations

import json
from functools import cache

from pbwn_repro.catalog import ARTEFACTS, TrainedArtefact
from pbwn_repro.config import RunConfig, read_config
from pbwn_repro.runs.effort import NetworkCost, effort, hours_at, network_cost

TERAFLOPS = 10.0
ASSUMPTION = (
    f"GPU hours are the FLOPs of all runs at {TERAFLOPS:g} TFLOP/s: a count, not a measurement. Large convolutions "
    "come near that on a current GPU; small networks, such as those of figure 2 and table 8, stay far below."
)


@cache
def price(name: str) -> str:
    """The runs of an artefact at paper scale, and the GPU hours that they take together; empty where it has none."""
    artefact = ARTEFACTS[name]
    if not isinstance(artefact, TrainedArtefact):
        return ""
    plans = artefact.plans("paper")
    flops = sum(_flops(plan.identity) for plan in plans)
    hours = hours_at(flops, TERAFLOPS)
    return f"{len(plans)} runs, {f'about {hours:,.1f} GPU hours' if hours >= 0.1 else 'minutes of a GPU'}"


@cache
def _flops(identity: str) -> float:
    config = read_config(json.loads(identity))
    return effort(config, _network_cost(config)).flops


def _network_cost(config: RunConfig) -> NetworkCost:
    key = (config.model, json.dumps(config.model_options), config.batch_size, config.data.name, config.data.labels)
    if key not in _KNOWN:
        _KNOWN[key] = network_cost(config)
    return _KNOWN[key]


_KNOWN: dict[tuple[object, ...], NetworkCost] = {}
