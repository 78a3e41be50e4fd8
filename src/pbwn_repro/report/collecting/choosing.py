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
from pbwn_repro.report.statistics import deviation, mean


@dataclass(frozen=True)
class Chosen:
    """The finished runs of the best setting, how many more diverged, and how many settings there were."""

    setting: Mapping[str, Any]
    runs: tuple[Labelled, ...]
    diverged: int
    settings: int

    def values(self, measure: Callable[[Record], float]) -> dict[int, float]:
        """What each seed's run gave."""
        return {run.record.seed: measure(run.record) for run in self.runs}

    def summary(self, measure: Callable[[Record], float]) -> Summary:
        """All runs in one."""
        values = tuple(self.values(measure).values())
        middle = mean(values) if values else math.nan
        return Summary(values, middle, deviation(values), self.setting, self.diverged)


def choose(runs: Sequence[Labelled], searched: tuple[Axis, ...], measure: Callable[[Record], float]) -> Chosen | None:
    """The setting with the lowest mean over the seeds that all settings have; a run that diverged is worse than any.

    Settings without a seed in common are compared by the means of what they have.
    """
    settings: dict[tuple[Any, ...], list[Labelled]] = {}
    for run in runs:
        if run.record.state != "unfinished":
            settings.setdefault(run.on(searched), []).append(run)
    if not settings:
        return None
    values = {setting: {run.record.seed: _value(run, measure) for run in found} for setting, found in settings.items()}
    common = set.intersection(*(set(found) for found in values.values()))

    def rank(setting: tuple[Any, ...]) -> float:
        return mean([value for seed, value in sorted(values[setting].items()) if not common or seed in common])

    best = min(settings, key=rank)  # settings come in the order of the plans: of equal ones the first
    finished = tuple(run for run in settings[best] if run.record.state == "done")
    labels = {axis.name: value for axis, value in zip(searched, best, strict=True)}
    return Chosen(labels, finished, len(settings[best]) - len(finished), len(settings))


def _value(run: Labelled, measure: Callable[[Record], float]) -> float:
    return measure(run.record) if run.record.state == "done" else math.inf
