"""Of the settings that were searched for a cell, the best one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pbwn_repro.catalog.artefact import Axis
from pbwn_repro.report.collecting.matching import Labelled
from pbwn_repro.report.collecting.reading import Record
from pbwn_repro.report.model import Summary
from pbwn_repro.report.statistics import deviation, diverging, finite, mean, shared


@dataclass(frozen=True)
class Chosen:
    """The finished runs of the best setting, how many more diverged, and all settings that were tried."""

    setting: Mapping[str, Any]
    runs: tuple[Labelled, ...]
    diverged: int
    tried: frozenset[tuple[Any, ...]]

    def values(self, measure: Callable[[Record], float]) -> dict[int, float]:
        """What each seed's run gave."""
        return {run.record.seed: measure(run.record) for run in self.runs}

    def summary(self, measure: Callable[[Record], float]) -> Summary:
        """All runs in one."""
        values = tuple(self.values(measure).values())
        middle = mean(values) if values else math.nan
        return Summary(values, middle, deviation(values), self.setting, self.diverged)


def choose(runs: Sequence[Labelled], searched: tuple[Axis, ...], measure: Callable[[Record], float]) -> Chosen | None:
    """The setting that is better than most others, each time over the seeds that both have.

    Fewer runs that diverge are better than any mean. Settings without a seed in common are compared by what there is.
    """
    settings: dict[tuple[Any, ...], list[Labelled]] = {}
    for run in runs:
        if run.record.state != "unfinished":
            settings.setdefault(run.on(searched), []).append(run)
    if not settings:
        return None
    values = {setting: values_of(found, measure) for setting, found in settings.items()}

    def wins(setting: tuple[Any, ...]) -> int:
        return sum(_is_better(values[setting], other) for other in values.values())

    best = max(settings, key=wins)  # settings come in the order of the plans: of equal ones the first
    finished = tuple(run for run in settings[best] if run.record.state == "done")
    labels = {axis.name: value for axis, value in zip(searched, best, strict=True)}
    return Chosen(labels, finished, len(settings[best]) - len(finished), frozenset(settings))


def values_of(runs: Sequence[Labelled], measure: Callable[[Record], float]) -> dict[int, float]:
    """What each seed's run gave: infinity where it diverged, nothing where it is not finished."""
    return {
        run.record.seed: measure(run.record) if run.record.state == "done" else math.inf
        for run in runs
        if run.record.state != "unfinished"
    }


def _is_better(ours: Mapping[int, float], theirs: Mapping[int, float]) -> bool:
    if diverging(ours) != diverging(theirs):
        return diverging(ours) < diverging(theirs)
    ours, theirs = finite(ours), finite(theirs)
    return bool(ours) and mean(shared(ours, theirs)) < mean(shared(theirs, ours))
