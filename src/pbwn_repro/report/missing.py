"""What is missing, the command that makes it, and what it takes: of artefacts, of sections, and of undecided claims."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from pbwn_repro.catalog import ARTEFACTS, KNOWN, Plan, Scale, TrainedArtefact
from pbwn_repro.catalog.artefact import Axis
from pbwn_repro.config import RunConfig
from pbwn_repro.data import original
from pbwn_repro.report.model import Decided, Report, Section
from pbwn_repro.runs.effort import LAYER_SECONDS, NetworkCost, effort, network_cost

TERAFLOPS = 10.0
ASSUMPTION = (
    f"GPU hours are the FLOPs of the runs at {TERAFLOPS:g} TFLOP/s, or {1000 * LAYER_SECONDS:g} milliseconds for each "
    "layer in a step where that is more: a count, not a measurement. Large convolutions come near the one on a current "
    "GPU; small networks and narrow deep ones, such as those of figure 2 and tables 3, 4 and 8, wait for the host that "
    "starts their kernels: the other, which a slow processor may double."
)
_MOST_SEEDS = 100
_NAMED = 6  # so many cells that lack runs are named


@dataclass(frozen=True)
class Missing:
    """Something that was not run."""

    artefact: str
    what: str
    command: str
    price: str  # empty where nothing is trained


def missing(report: Report) -> list[Missing]:
    """Artefacts without a finished run, those that have none at paper scale, and those of which runs are missing.

    Nothing, where the report is about runs of other kinds alone.
    """
    lines: list[Missing] = []
    if not any(section.is_of_the_paper for section in report.sections):
        return lines
    for name, artefact in ARTEFACTS.items():
        found = [section for section in report.sections if section.artefact.name == name and section.has_results]
        if not any(section.scale == "paper" and not section.variant for section in found):
            what = "at paper scale" if found else artefact.title
            lines.append(Missing(name, what, _command(name, "paper"), _price(name)))
        for section in found:
            if section.missing:
                cost = hours(section.missing)
                beside = "" if report.root.name == "runs" else f" --out {report.root.name}"
                lines.append(Missing(name, f"{len(section.missing)} of the runs", command(section) + beside, cost))
    return lines


def needed(decided: Decided, section: Section) -> str:
    """Of a claim that has not enough runs, which are missing, how many, and what they take; empty for all others."""
    if decided.outcome != "not enough runs":
        return ""
    if not isinstance(section.artefact, TrainedArtefact):
        timed = any(verdict.difference is not None for verdict in decided.verdicts)
        what = "a quieter machine, or more rounds; with this folder moved away, " if timed else ""
        return f"Missing: {what}`{command(section)}` measures it."
    criterion = decided.claim.criterion
    keys = {key for name in ("rows", "than", "among") for key in _as_tuple(getattr(criterion, name, ()))}
    row, columns = _axes(section)
    plans = [plan for plan in section.missing if not keys or str(plan.labels[row.name]) in keys]
    if plans:
        places = Counter(
            ", ".join([row.title(plan.labels[row.name]), *(f"{name} {plan.labels[name]}" for name in columns)])
            for plan in plans
        )
        named = [f"{place}: {count}" for place, count in places.items()]
        listed = "; ".join(named[:_NAMED]) + (f"; and {len(named) - _NAMED} more cells" if len(named) > _NAMED else "")
        count = f"{len(plans)} {'run' if len(plans) == 1 else 'runs'}"
        return f"Missing: {count} of this scale's protocol ({listed}), {hours(plans)}: `{command(section)}`."
    return _more_seeds(decided, section)


def _more_seeds(decided: Decided, section: Section) -> str:
    """How many seeds it would take with the spread that was found, where all runs of the protocol are there."""
    wanted = 0
    for verdict in decided.verdicts:
        if verdict.outcome == "holds" or verdict.low is None or verdict.high is None or not verdict.gap:
            continue
        reach = (verdict.high - verdict.low) / 2
        wanted = max(wanted, math.ceil(min(verdict.counts) * (reach / verdict.gap) ** 2))
    there = int(section.runs.seed.max()) if len(section.runs) else 0
    if wanted > _MOST_SEEDS:
        return f"Missing: with the spread of these runs, more than {_MOST_SEEDS} seeds would be needed to decide it."
    if wanted <= there:
        return ""
    assert isinstance(section.artefact, TrainedArtefact)
    assert section.scale
    only = {name: [str(value)] for name, value in section.variant.items()}
    plans = section.artefact.plans(section.scale, seeds=wanted, only=only)
    more = [plan for plan in plans if int(plan.labels["seed"]) > there]
    made_by = f"{_command(section.artefact.name, section.scale)} --seeds {wanted}"
    words = f"Missing: with the spread of these runs, about {wanted} seeds would decide it"
    return f"{words}, {len(more)} runs more, {hours(more)}: `{made_by}`."


def command(section: Section) -> str:
    """The command that makes the missing runs of a section, or all of them again where none is missing.

    FOLDER stands for a copy of the data that the reader has to name. A user's own runs have no such command.
    """
    if not section.scale:
        return ""
    if not section.is_reproduced:
        return f"pbwn {section.artefact.name}"
    parts = [_command(section.artefact.name, section.scale)]
    parts += [f"--only {name}={value}" for name, value in section.variant.items()]
    configs = list(section.runs.config) if len(section.runs) else []
    copies = {config.data.name for config in configs}
    # Runs on another copy of a set are other runs.
    parts += [f"--data {original(name)}=hf:FOLDER" for name in sorted(copies) if name != original(name)]
    seeds = max((config.seed for config in configs), default=0)
    if isinstance(section.artefact, TrainedArtefact) and not section.missing:
        parts += [f"--seeds {seeds}"] if seeds > section.artefact.seeds[section.scale] else []
    return " ".join(parts)


def hours(plans: Sequence[Plan]) -> str:
    """The GPU hours that planned runs take together."""
    kinds: dict[str, list[Plan]] = {}
    for plan in plans:  # seeds alike
        kinds.setdefault(json.dumps({**plan.wishes, "seed": 0}, sort_keys=True), []).append(plan)
    found = sum(_hours(alike[0].config) * len(alike) for alike in kinds.values())
    return f"about {found:,.1f} GPU hours" if found >= 0.1 else "minutes of a GPU"


@cache
def _price(name: str) -> str:
    """The runs of an artefact at paper scale, and the GPU hours that they take together; empty where it has none."""
    artefact = KNOWN[name]
    if not isinstance(artefact, TrainedArtefact):
        return ""
    plans = artefact.plans("paper")
    words = f"{len(plans)} runs, {hours(plans)}"
    others = sorted({plan.artefact for plan in plans} - {name})
    return f"{words}, shared with {' and '.join(others).replace('-', ' ')}" if others else words


def _hours(config: RunConfig) -> float:
    # As many classes more or less change nothing that counts.
    data = config.data.name.replace("cifar100", "cifar10")
    key = (config.model, json.dumps(config.model_options), config.batch_size, data, config.data.labels)
    if key not in _COSTS:
        _COSTS[key] = network_cost(config)
    return effort(config, _COSTS[key]).gpu_seconds(TERAFLOPS * 1e12) / 3_600


_COSTS: dict[tuple[object, ...], NetworkCost] = {}


def _axes(section: Section) -> tuple[Axis, list[str]]:
    """The row axis, and the names of the column axes."""
    assert isinstance(section.artefact, TrainedArtefact)
    assert section.scale
    axes = section.artefact.axes(section.scale)
    return next(axis for axis in axes if axis.role == "row"), [axis.name for axis in axes if axis.role == "column"]


def _as_tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _command(name: str, scale: Scale) -> str:
    return f"pbwn reproduce {name} --scale {scale}"
