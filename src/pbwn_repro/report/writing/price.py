"""What it takes to make an artefact that was not made: counted, not measured."""

from __future__ import annotations

import json
from functools import cache

from pbwn_repro.catalog import ARTEFACTS, Scale, TrainedArtefact
from pbwn_repro.config import RunConfig, read_config
from pbwn_repro.runs.effort import NetworkCost, effort, hours_at, network_cost

TERAFLOPS = 10.0
STEP_SECONDS = 0.003
ASSUMPTION = (
    f"GPU hours are the FLOPs of the runs at {TERAFLOPS:g} TFLOP/s, or {1000 * STEP_SECONDS:g} milliseconds a step "
    "where that is more: a count, not a measurement. Large convolutions come near the one on a current GPU; small "
    "networks, such as those of figure 2 and table 8, wait for the other."
)


@cache
def price(name: str, scale: Scale = "paper", count: int | None = None) -> str:
    """The GPU hours of an artefact's runs, or of so many of them; empty where it has none."""
    artefact = ARTEFACTS[name]
    if not isinstance(artefact, TrainedArtefact):
        return ""
    plans = artefact.plans(scale)
    hours = sum(_hours(plan.identity) for plan in plans) * (len(plans) if count is None else count) / len(plans)
    home = {plan.artefact for plan in plans}
    words = f"about {hours:,.1f} GPU hours" if hours >= 0.1 else "minutes of a GPU"
    if count is None:
        words = f"{len(plans)} runs, {words}"
    return words if home == {name} else f"{words}, shared with {' and '.join(sorted(home)).replace('-', ' ')}"


@cache
def _hours(identity: str) -> float:
    config = read_config(json.loads(identity))
    work = effort(config, _network_cost(config))
    return max(hours_at(work.flops, TERAFLOPS), work.steps * STEP_SECONDS / 3600)


def _network_cost(config: RunConfig) -> NetworkCost:
    key = (config.model, json.dumps(config.model_options), config.batch_size, config.data.name, config.data.labels)
    if key not in _KNOWN:
        _KNOWN[key] = network_cost(config)
    return _KNOWN[key]


_KNOWN: dict[tuple[object, ...], NetworkCost] = {}
