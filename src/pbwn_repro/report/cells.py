"""The cells of an artefact: the runs of each cell, and the best setting where settings are searched."""

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
    """The ended runs of a cell's best setting, and all settings that were tried."""

    setting: Mapping[str, Any]
    runs: pd.DataFrame
    tried: frozenset[tuple[Any, ...]]

    def values(self, metric: str) -> dict[int, float]:
        """Return the metric of the finished runs by seed."""
        return finite(by_seed(self.runs, METRICS[metric]))

    @property
    def diverged(self) -> int:
        """The number of runs of the setting that diverged."""
        return int((self.runs.state == "diverged").sum())

    def summary(self, metric: str) -> Summary:
        """Summarise the runs in one metric."""
        return Summary.of(list(self.values(metric).values()), self.setting, self.diverged)


def labelled(artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame) -> tuple[pd.DataFrame, dict[Path, str]]:
    """Select the runs of an artefact at a scale, with a column for each of its axes, in the order of its plans.

    The configurations alone decide which runs these are. All must use the same copy of a data set and be observed as
    often as the reported metric needs: the second part of the result maps the folders of other runs to the reason.
    """
    runs = runs[runs.scale == scale]
    all_values = {axis.name: [str(value) for value in axis.known] for axis in artefact.axes(scale)}
    plans = artefact.plans(scale, seeds=1, only=all_values)
    homes = {plan.artefact for plan in plans}
    # An artefact that trains runs of its own needs at least one of them: shared runs alone do not count.
    if not runs.home.isin({artefact.name} & homes or homes).any():
        return runs.head(0), {}
    planned = pd.DataFrame(
        {"home": plan.artefact, "identity": plan.identity, "position": position, **plan.labels}
        for position, plan in enumerate(plans)
    ).drop(columns="seed")
    found = runs.merge(planned, on=["home", "identity"]).sort_values(["position", "seed", "path"], ignore_index=True)
    other_protocol = {
        path: reason
        for path, config, position in zip(found.path, found.config, found.position, strict=True)
        if (reason := _observed_differently(artefact, config, plans[position].config))
    }
    found = found[~found.path.isin(other_protocol)]
    used = _copies_used(found)
    other_copy = {
        path: f"another copy of the data: {_copy_name(config.data)}, the runs shown are on {_copy_name(shown)}"
        for path, config in zip(found.path, found.config, strict=True)
        if config.data.digest != (shown := used[original(config.data.name)]).digest
    }
    return found[~found.path.isin(other_copy)], {**other_protocol, **other_copy}


def best_settings(artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame) -> list[Labels]:
    """Return the best setting of each cell whose search is complete, as the values of all axes.

    A search is complete if a run of each setting and seed has finished or diverged. `runs` come from `labelled`.
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


def _observed_differently(artefact: TrainedArtefact, config: RunConfig, planned: RunConfig) -> str | None:
    """Return why a run is not comparable with the planned one although both train alike, or None if it is."""
    shown = [artefact.metric, *(column.metric for column in (artefact.table.columns if artefact.table else ()))]
    for name in dict.fromkeys(OBSERVED_BY[metric] for metric in shown if metric in OBSERVED_BY):
        actual, needed = (getattr(each, name) or "each epoch" for each in (config, planned))
        if actual != needed:
            return f"another protocol: {name} is {actual}, {artefact.name} needs {needed}"
    return None


def by_seed(runs: pd.DataFrame, metric: Metric) -> dict[int, float]:
    """Return the metric of the ended runs by seed, infinity where a run diverged."""
    ended = runs[runs.state != "unfinished"]
    values = ended[metric.name].where(ended.state == "done", math.inf)
    return dict(zip(ended.seed.tolist(), values.tolist(), strict=True))


def choose(runs: pd.DataFrame, searched: tuple[Axis, ...], metric: Metric) -> Chosen | None:
    """Choose the setting that beats the most others, each compared over the seeds that both have.

    Fewer diverged runs rank before any mean. Settings without a common seed are compared over all of their seeds.
    """
    ended = runs[runs.state != "unfinished"]
    names = [axis.name for axis in searched]
    settings = groups(ended, names)  # in the order of the plans: the first wins a tie
    if not settings:
        return None
    values = {setting: by_seed(found, metric) for setting, found in settings.items()}

    def wins(setting: tuple[Any, ...]) -> int:
        return sum(_is_better(values[setting], other, metric) for other in values.values())

    best = max(settings, key=wins)
    return Chosen(dict(zip(names, best, strict=True)), settings[best], frozenset(settings))


def groups(runs: pd.DataFrame, names: list[str]) -> dict[tuple[Any, ...], pd.DataFrame]:
    """Group runs by the values of columns, in order of first appearance; without columns, all runs are one group."""
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
        """Choose the best setting of each cell; `runs` come from `labelled`."""
        self.artefact, self.runs = artefact, runs
        axes = artefact.axes(scale)
        [self.axis] = [axis for axis in axes if axis.role == "row"]
        self.column_axes = tuple(axis for axis in axes if axis.role == "column")
        self.searched = tuple(axis for axis in axes if axis.role == "searched")
        self.metric = METRICS[artefact.metric]
        self.task_metric = metric_of(runs.config.iloc[0])
        self.search_size = math.prod(len(axis.values) for axis in self.searched)
        titles = {str(value): self.axis.title(value) for value in self.axis.values}
        controls = {each.name: each.title for each in self.axis.controls if (runs[self.axis.name] == each.name).any()}
        self.curve_rows = self._rows(titles | controls)
        self.rows = self._rows({**artefact.table.rows, **controls}) if artefact.table else self.curve_rows
        self.chosen = self._choose(runs)
        self.stated_value, self.stated = self._at_the_papers_setting()
        self._all = self.chosen | {(row, self.stated_value): found for row, found in self.stated.items()}

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table: the paper's, or the final loss and the metric of the task."""
        if self.artefact.table:
            return self.artefact.table.columns
        metric = self.task_metric
        if self.artefact.curves == "search":
            titles = {f"{axis.name} {value}": str(value) for axis in self.column_axes for value in axis.values}
            return tuple(Column(title, value, metric.name) for title, value in (titles or {metric.label: ""}).items())
        shown = (FINAL_LOSS, metric) if self.artefact.curves else (metric, FINAL_LOSS)
        return tuple(Column(each.label, metric=each.name) for each in shown)

    def at(self, row: str, column: Column) -> Chosen | None:
        """Return the runs of a cell, at its best setting or at the one that the column states."""
        return self._all.get((row, column.value))

    def values(self, row: str, column: Column) -> dict[int, float]:
        """Return the metric of a cell's finished runs by seed."""
        chosen = self.at(row, column)
        return chosen.values(column.metric) if chosen else {}

    def diverged(self, row: str, column: Column) -> int:
        """Return how many runs of a cell's setting diverged."""
        chosen = self.at(row, column)
        return chosen.diverged if chosen else 0

    def title(self, row: str) -> str:
        """Return the title of a row."""
        return next((each.title for each in self.rows if each.key == row), row)

    def number(self, row: str, column: Column) -> Number | None:
        """Return the paper's number in a cell."""
        return self.artefact.table.numbers.get((row, column.title)) if self.artefact.table else None

    def columns_for(self, metric: str, *, at_one_setting: bool = False) -> tuple[Column, ...]:
        """Return the columns in which a claim about a metric is tested.

        For a table, these are its columns that the scale has. For a figure, they are the best settings, which may
        differ between rows, and then the setting that the paper states; `at_one_setting` keeps the latter alone.
        """
        if self.artefact.table and self.artefact.table.by_metric:
            titles = {column.value: column.title.partition(",")[0] for column in self.columns}
            return tuple(Column(title, value, metric) for value, title in titles.items())
        if self.artefact.table:
            values = {str(value) for axis in self.column_axes for value in axis.values}
            return tuple(column for column in self.columns if column.value in values or not values)
        stated = (Column(self.stated_value, self.stated_value, metric),) if self.stated else ()
        return stated if stated and at_one_setting else (Column("", metric=metric), *stated)

    def search_values(self, name: str) -> list[float]:
        """Return all values of a searched axis."""
        [axis] = [axis for axis in self.searched if axis.name == name]
        return [float(value) for value in axis.values]

    def tried(self, row: str, column: str, name: str) -> dict[float, dict[int, float]]:
        """Return the results of a cell at each value of a searched axis that has runs, by seed.

        The other searched axes are at their best for that value. The result of a diverged run is infinite.
        """
        runs = self.runs[self.runs[self.axis.name].astype(str) == row]
        for axis in self.column_axes:
            runs = runs[runs[axis.name].astype(str) == column]
        others = tuple(axis for axis in self.searched if axis.name != name)
        best = {value: choose(runs[runs[name] == value], others, self.metric) for value in self.search_values(name)}
        return {value: by_seed(chosen.runs, self.metric) for value, chosen in best.items() if chosen}

    def at_settings(self, row: str, column: Column, name: str) -> dict[float, Values]:
        """Return the results of a cell at all values of a searched axis, ascending, empty where there are no runs."""
        found = self.tried(row, column.value, name)
        return {value: found.get(value, {}) for value in sorted(self.search_values(name))}

    def table(self) -> Table:
        """Return our cells beside the paper's, with further columns at the paper's setting if it is not our best."""
        columns = self.columns
        if self.stated:
            stated = self.stated_value
            columns += tuple(Column(f"{column.title}, at {stated}", stated, column.metric) for column in self.columns)
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
        legend = "mean ± standard deviation, median (runs)" if self.artefact.skewed else Table.ours
        return Table(self.rows, columns, cells, unit, legend, medians=self.artefact.skewed)

    def _rows(self, titles: Mapping[str, str]) -> tuple[Row, ...]:
        styles = {str(value): name for value, name in self.axis.methods.items()}
        return tuple(Row(key, title, styles.get(key, key)) for key, title in titles.items())

    def _choose(self, runs: pd.DataFrame) -> dict[tuple[str, str], Chosen]:
        """Return the best setting of these runs by row and column."""
        cells = runs.groupby([self.axis.name, *(axis.name for axis in self.column_axes)], sort=False)
        best = {key: choose(found, self.searched, self.metric) for key, found in cells}
        return {(str(row), str(*column)): chosen for (row, *column), chosen in best.items() if chosen}

    def _at_the_papers_setting(self) -> tuple[str, dict[str, Chosen]]:
        """Return the setting that the paper states as best and its runs by row; empty if it is our best everywhere."""
        for claim in self.artefact.claims:
            if isinstance(claim.criterion, BestSetting):
                name, value = claim.criterion.name, claim.criterion.value
                if any(chosen.setting[name] != value for chosen in self.chosen.values()):
                    best = self._choose(self.runs[self.runs[name] == value])
                    # The column title names the setting, and nothing was chosen: `setting` stays empty.
                    stated = {row: Chosen({}, chosen.runs, chosen.tried) for (row, _), chosen in best.items()}
                    return f"{SETTINGS.get(name, name)} {value:g}", stated
        return "", {}


def _copies_used(runs: pd.DataFrame) -> dict[str, Data]:
    """Return for each data set the copy that most ended runs used; the original images win a tie."""
    copies = {(config.data.name, config.data.digest): config.data for config in runs.config}
    ended = Counter((config.data.name, config.data.digest) for config in runs[runs.state != "unfinished"].config)
    ranked = sorted(copies, key=lambda copy: (-ended[copy], copy[0] != original(copy[0]), copy[1]))
    return {original(copy[0]): copies[copy] for copy in reversed(ranked)}  # reversed: the first in rank wins


def _copy_name(data: Data) -> str:
    return f"{data.name} ({data.digest[:8]})"
