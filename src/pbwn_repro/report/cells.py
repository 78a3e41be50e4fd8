"""Runs as the cells of an artefact: which run belongs where, and of what was searched the best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pbwn_repro.catalog import Column, Number, TrainedArtefact
from pbwn_repro.catalog.artefact import OBSERVED_BY, Axis, Labels, Scale
from pbwn_repro.catalog.claims import BestSetting
from pbwn_repro.config import Data, RunConfig
from pbwn_repro.data import original
from pbwn_repro.metrics import FINAL_LOSS, METRICS, Metric
from pbwn_repro.report.model import Cell, Row, Summary, Table
from pbwn_repro.report.statistics import Values, diverging, finite, mean, shared
from pbwn_repro.tasks import metric_of

SETTINGS = {"lr": "learning rate", "weight_decay": "weight decay"}


@dataclass(frozen=True)
class Chosen:
    """The runs of the best setting that ended, and all settings that were tried."""

    setting: Mapping[str, Any]
    runs: pd.DataFrame
    tried: frozenset[tuple[Any, ...]]

    def values(self, metric: str) -> dict[int, float]:
        """What each seed's finished run gave."""
        return finite(by_seed(self.runs, METRICS[metric]))

    @property
    def diverged(self) -> int:
        """How many runs of the setting diverged."""
        return int((self.runs.state == "diverged").sum())

    def summary(self, metric: str) -> Summary:
        """All runs in one."""
        return Summary.of(list(self.values(metric).values()), self.setting, self.diverged)


def labelled(artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame) -> tuple[pd.DataFrame, dict[Path, str]]:
    """The runs that belong to an artefact at a scale, with a column for each of its axes, in the order of its plans.

    Decided by configurations alone. All have to be made on the same copy of a data set, and observed as often as the
    shown value needs: others are named with the reason.
    """
    here = runs[runs.scale == scale]
    everything = {axis.name: [str(value) for value in axis.known] for axis in artefact.axes(scale)}
    plans = artefact.plans(scale, seeds=1, only=everything)
    homes = {plan.artefact for plan in plans}
    # An artefact that has runs of its own is there once one of these is, not when another's alone are.
    if not here.home.isin({artefact.name} & homes or homes).any():
        return here.head(0), {}
    planned = pd.DataFrame(
        {"home": plan.artefact, "identity": plan.identity, "position": position, **plan.labels}
        for position, plan in enumerate(plans)
    ).drop(columns="seed")
    found = here.merge(planned, on=["home", "identity"]).sort_values(["position", "seed", "path"], ignore_index=True)
    otherwise = {
        path: reason
        for path, config, position in zip(found.path, found.config, found.position, strict=True)
        if (reason := _otherwise_observed(artefact, config, plans[position].config))
    }
    found = found[~found.path.isin(otherwise)]
    used = _copies_used(found)
    others = {
        path: f"another copy of the data: {_named(config.data)}, the runs shown are on {_named(shown)}"
        for path, config in zip(found.path, found.config, strict=True)
        if config.data.digest != (shown := used[original(config.data.name)]).digest
    }
    return found[~found.path.isin(others)], {**otherwise, **others}


def best_settings(artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame) -> list[Labels]:
    """The best setting of each cell whose search is complete, as the values of all axes; `runs` are `labelled`.

    Complete is a search if a run of each setting and seed has ended, or diverged.
    """
    if runs.empty:
        return []
    axes = artefact.axes(scale)
    searched = tuple(axis for axis in axes if axis.role == "searched")
    names = [axis.name for axis in axes if axis.role != "searched"]
    seeds = artefact.seeds[scale]
    size = math.prod(len(axis.values) for axis in searched) * seeds
    found: list[Labels] = []
    for values, cell in runs[runs.state != "unfinished"].groupby(names, sort=False):
        on_the_grid = cell[cell.seed <= seeds].drop_duplicates([*(axis.name for axis in searched), "seed"])
        best = choose(on_the_grid, searched, METRICS[artefact.metric])
        if len(on_the_grid) == size and best is not None:
            found.append({**dict(zip(names, values, strict=True)), **best.setting})
    return found


def _otherwise_observed(artefact: TrainedArtefact, config: RunConfig, planned: RunConfig) -> str | None:
    """Why a run cannot stand beside others though its result is theirs."""
    shown = [artefact.metric, *(column.metric for column in (artefact.table.columns if artefact.table else ()))]
    for name in dict.fromkeys(OBSERVED_BY[metric] for metric in shown if metric in OBSERVED_BY):
        ours, theirs = (getattr(each, name) or "each epoch" for each in (config, planned))
        if ours != theirs:
            return f"another protocol: {name} is {ours}, {artefact.name} needs {theirs}"
    return None


def by_seed(runs: pd.DataFrame, metric: Metric) -> dict[int, float]:
    """What each seed's run gave: infinity where it diverged, nothing where it is not finished."""
    ended = runs[runs.state != "unfinished"]
    values = ended[metric.name].where(ended.state == "done", math.inf)
    return dict(zip(ended.seed.tolist(), values.tolist(), strict=True))


def choose(runs: pd.DataFrame, searched: tuple[Axis, ...], metric: Metric) -> Chosen | None:
    """The setting that is better than most others, each time over the seeds that both have.

    Fewer runs that diverge are better than any mean. Settings without a seed in common are compared by what there is.
    """
    ended = runs[runs.state != "unfinished"]
    names = [axis.name for axis in searched]
    settings = groups(ended, names)  # in the order of the plans: of equal ones the first
    if not settings:
        return None
    values = {setting: by_seed(found, metric) for setting, found in settings.items()}

    def wins(setting: tuple[Any, ...]) -> int:
        return sum(_is_better(values[setting], other, metric) for other in values.values())

    best = max(settings, key=wins)
    return Chosen(dict(zip(names, best, strict=True)), settings[best], frozenset(settings))


def groups(runs: pd.DataFrame, names: list[str]) -> dict[tuple[Any, ...], pd.DataFrame]:
    """The runs by what these columns hold, in the order of the first of each; all together where none is named."""
    if runs.empty:
        return {}
    return dict(iter(runs.groupby(names, sort=False))) if names else {(): runs}


def _is_better(ours: Values, theirs: Values, metric: Metric) -> bool:
    if diverging(ours) != diverging(theirs):
        return diverging(ours) < diverging(theirs)
    ours, theirs = finite(ours), finite(theirs)
    return bool(ours) and metric.sign * mean(shared(ours, theirs)) < metric.sign * mean(shared(theirs, ours))


class Cells:
    """The cells of one section: the runs of each, those of its best setting, and the paper's number."""

    def __init__(self, artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame) -> None:
        """Choose the best setting of each cell."""
        self.artefact, self.runs = artefact, runs
        axes = artefact.axes(scale)
        [self.axis] = [axis for axis in axes if axis.role == "row"]
        self.column_axes = tuple(axis for axis in axes if axis.role == "column")
        self.searched = tuple(axis for axis in axes if axis.role == "searched")
        self.metric = METRICS[artefact.metric]
        self.judged = metric_of(runs.config.iloc[0])
        self.possible = math.prod(len(axis.values) for axis in self.searched)
        titles = {str(value): self.axis.title(value) for value in self.axis.values}
        controls = {each.name: each.title for each in self.axis.controls if (runs[self.axis.name] == each.name).any()}
        self.curve_rows = self._rows(titles | controls)
        self.rows = self._rows({**artefact.table.rows, **controls}) if artefact.table else self.curve_rows
        self.chosen = self._choose(runs)
        self.stated_value, self.stated = self._at_the_papers_setting()
        self._all = self.chosen | {(row, self.stated_value): found for row, found in self.stated.items()}

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of its table: the paper's, or the final loss and what runs are judged by."""
        if self.artefact.table:
            return self.artefact.table.columns
        judged = self.judged
        if self.artefact.curves == "search":
            titles = {f"{axis.name} {value}": str(value) for axis in self.column_axes for value in axis.values}
            return tuple(Column(title, value, judged.name) for title, value in (titles or {judged.label: ""}).items())
        shown = (FINAL_LOSS, judged) if self.artefact.curves else (judged, FINAL_LOSS)
        return tuple(Column(metric.label, metric=metric.name) for metric in shown)

    def at(self, row: str, column: Column) -> Chosen | None:
        """The runs of a cell, at its best setting or at the one that the column names."""
        return self._all.get((row, column.value))

    def values(self, row: str, column: Column) -> dict[int, float]:
        """What the runs of a cell gave, by seed."""
        chosen = self.at(row, column)
        return chosen.values(column.metric) if chosen else {}

    def diverged(self, row: str, column: Column) -> int:
        """How many runs of a cell's setting diverged."""
        chosen = self.at(row, column)
        return chosen.diverged if chosen else 0

    def title(self, row: str) -> str:
        """The title of a row."""
        return next((each.title for each in self.rows if each.key == row), row)

    def number(self, row: str, column: Column) -> Number | None:
        """The paper's number in a cell."""
        return self.artefact.table.numbers.get((row, column.title)) if self.artefact.table else None

    def columns_for(self, metric: str, *, at_one_setting: bool = False) -> tuple[Column, ...]:
        """Where a claim is looked at.

        In a table that is its columns, as far as the scale has them; in a figure the best settings, which may differ
        between rows, then the paper's own: `at_one_setting` only there.
        """
        if self.artefact.table and self.artefact.table.by_metric:
            titles = {column.value: column.title.partition(",")[0] for column in self.columns}
            return tuple(Column(title, value, metric) for value, title in titles.items())
        if self.artefact.table:
            made = {str(value) for axis in self.column_axes for value in axis.values}
            return tuple(column for column in self.columns if column.value in made or not made)
        own = (Column(self.stated_value, self.stated_value, metric),) if self.stated else ()
        return own if own and at_one_setting else (Column("", metric=metric), *own)

    def to_try(self, name: str) -> list[float]:
        """The values that are to be searched of an axis."""
        [axis] = [axis for axis in self.searched if axis.name == name]
        return [float(value) for value in axis.values]

    def tried(self, row: str, column: str, name: str) -> dict[float, dict[int, float]]:
        """What a cell's runs gave at each value of a searched axis that has some: at the best of the other settings.

        By seed, and infinite where a run diverged.
        """
        runs = self.runs[self.runs[self.axis.name].astype(str) == row]
        for axis in self.column_axes:
            runs = runs[runs[axis.name].astype(str) == column]
        others = tuple(axis for axis in self.searched if axis.name != name)
        best = {value: choose(runs[runs[name] == value], others, self.metric) for value in self.to_try(name)}
        return {value: by_seed(chosen.runs, self.metric) for value, chosen in best.items() if chosen}

    def at_settings(self, row: str, column: Column, name: str) -> dict[float, Values]:
        """What a cell's runs gave at each value of a searched axis, ascending, also where there are none."""
        found = self.tried(row, column.value, name)
        return {value: found.get(value, {}) for value in sorted(self.to_try(name))}

    def table(self) -> Table:
        """Ours beside the paper's; beside the best settings those at the paper's, where they are others."""
        columns = self.columns
        if self.stated:
            at = self.stated_value
            columns += tuple(Column(f"{column.title}, at {at}", at, column.metric) for column in self.columns)
        cells = {}
        for row in self.rows:
            for column in columns:
                chosen = self.at(row.key, column)
                ours = chosen.summary(column.metric) if chosen else None
                cells[row.key, column] = Cell(ours, self.number(row.key, column))
        unit = (
            self.artefact.table.unit
            if self.artefact.table
            else " and ".join(dict.fromkeys(METRICS[column.metric].label for column in self.columns))
        )
        written = "mean ± standard deviation, median (runs)" if self.artefact.skewed else Table.ours
        return Table(self.rows, columns, cells, unit, written, medians=self.artefact.skewed)

    def _rows(self, titles: Mapping[str, str]) -> tuple[Row, ...]:
        looks = {str(value): name for value, name in self.axis.methods.items()}
        return tuple(Row(key, title, looks.get(key, key)) for key, title in titles.items())

    def _choose(self, runs: pd.DataFrame) -> dict[tuple[str, str], Chosen]:
        """By row and column, the best setting of these runs."""
        places = runs.groupby([self.axis.name, *(axis.name for axis in self.column_axes)], sort=False)
        best = {key: choose(found, self.searched, self.metric) for key, found in places}
        return {(str(row), str(*column)): chosen for (row, *column), chosen in best.items() if chosen}

    def _at_the_papers_setting(self) -> tuple[str, dict[str, Chosen]]:
        """The setting that the paper states as the best, and by row its runs, where it is not the best of ours too."""
        for claim in self.artefact.claims:
            if isinstance(claim.criterion, BestSetting):
                name, value = claim.criterion.name, claim.criterion.value
                if any(best.setting[name] != value for best in self.chosen.values()):
                    there = self._choose(self.runs[self.runs[name] == value])
                    words = f"{SETTINGS.get(name, name)} {value:g}"
                    # The words say the setting: nothing was chosen.
                    return words, {row: Chosen({}, best.runs, best.tried) for (row, _), best in there.items()}
        return "", {}


def _copies_used(runs: pd.DataFrame) -> dict[str, Data]:
    """By data set, the copy of it that most runs were made on to their end; of equals the original images."""
    copies = {(config.data.name, config.data.digest): config.data for config in runs.config}
    ended = Counter((config.data.name, config.data.digest) for config in runs[runs.state != "unfinished"].config)
    ranked = sorted(copies, key=lambda copy: (-ended[copy], copy[0] != original(copy[0]), copy[1]))
    return {original(copy[0]): copies[copy] for copy in reversed(ranked)}  # the first comes last, and stays


def _named(data: Data) -> str:
    return f"{data.name} ({data.digest[:8]})"
