"""The section of a trained artefact: its runs become cells, curves and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from pbwn_repro.catalog import Plan
from pbwn_repro.report.collecting.cell_plots import plots_of
from pbwn_repro.report.collecting.cells import Cells
from pbwn_repro.report.collecting.matching import Labelled, Protocol
from pbwn_repro.report.collecting.notes import notes
from pbwn_repro.report.model import Run, Section
from pbwn_repro.report.verdicts.deciding import verdicts


def sections(protocol: Protocol, runs: Sequence[Labelled]) -> list[Section]:
    """A section for the artefact itself, if it has runs, and one for each of its variants that has."""
    variants = protocol.with_role("variant")
    usual = tuple(axis.values[0] for axis in variants)
    groups: dict[tuple[Any, ...], list[Labelled]] = {}
    for run in runs:
        groups.setdefault(run.on(variants), []).append(run)
    ordered = sorted(
        groups, key=lambda values: [axis.values.index(v) for axis, v in zip(variants, values, strict=True)]
    )
    names = [axis.name for axis in variants]
    return [
        _section(
            protocol,
            groups[values],
            {name: value for name, value, first in zip(names, values, usual, strict=True) if value != first},
            dict(zip(names, values, strict=True)),
        )
        for values in ordered
    ]


def _section(
    protocol: Protocol, runs: Sequence[Labelled], variant: Mapping[str, Any], labels: Mapping[str, Any]
) -> Section:
    artefact, scale = protocol.artefact, protocol.scale
    cells = Cells(protocol, runs)
    done = [run for run in runs if run.record.state == "done"]
    missing = _missing(protocol, runs, labels)
    prefix = "-".join([artefact.name, scale, *(str(value) for value in variant.values())])
    environments = list({repr(run.record.environment): run.record.environment for run in done}.values())
    return Section(
        artefact,
        scale,
        variant,
        cells.table(),
        plots_of(cells, prefix),
        verdicts(artefact.name, cells),
        tuple(_run(run) for run in done),
        len(missing),
        (
            *_searched(cells),
            *_diverged(cells, runs),
            *notes(artefact, scale, variant, [run.record for run in done], len(missing)),
        ),
        unfinished=_paths(runs, "unfinished"),
        diverged=_paths(runs, "diverged"),
        environments=tuple(environments),
        missing_runs=tuple(plan.config for plan in missing),
    )


def _searched(cells: Cells) -> list[str]:
    """A word of caution where a search is not complete: the best of some settings need not be the best of all."""
    possible = prod(len(axis.values) for axis in cells.searched)
    least = min((len(chosen.tried) for chosen in cells.chosen.values()), default=possible)
    if least == possible:
        return []
    return [f"The search is not complete: of the cells that have runs, one has {least} of {possible} settings."]


def _diverged(cells: Cells, runs: Sequence[Labelled]) -> list[str]:
    """Which runs diverged, by what they have in common but the seed."""
    found: dict[str, list[int]] = {}
    [row], axes = cells.protocol.with_role("row"), (*cells.protocol.with_role("column"), *cells.searched)
    for run in runs:
        if run.record.state == "diverged":
            place = "".join(f", {axis.name} = {run.labels[axis.name]}" for axis in axes)
            found.setdefault(cells.layout.title(str(run.labels[row.name])) + place, []).append(run.record.seed)
    return [f"Diverged: {which}, seeds {', '.join(map(str, sorted(seeds)))}." for which, seeds in found.items()]


def _missing(protocol: Protocol, runs: Sequence[Labelled], variant: Mapping[str, Any]) -> list[Plan]:
    """The runs of the protocol that have neither ended nor diverged."""
    settled = {(*sorted(run.labels.items()), run.record.seed) for run in runs if run.record.state != "unfinished"}
    plans = protocol.artefact.plans(protocol.scale, only={name: [str(value)] for name, value in variant.items()})
    return [
        plan
        for plan in plans
        if (*sorted((n, v) for n, v in plan.labels.items() if n != "seed"), plan.labels["seed"]) not in settled
    ]


def _run(run: Labelled) -> Run:
    record = run.record
    return Run(record.path, {**run.labels, "seed": record.seed}, record.config, record.result, record.environment)


def _paths(runs: Sequence[Labelled], state: str) -> tuple[Path, ...]:
    return tuple(run.record.path for run in runs if run.record.state == state)
