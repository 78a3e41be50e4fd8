"""The data classes of the catalog: tables, figures and experiments, with their axes, claims and runs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pbwn_repro.catalog.claims import Claim
from pbwn_repro.config import RunConfig, read_config
from pbwn_repro.data import original
from pbwn_repro.methods import method
from pbwn_repro.runs.resolution import complete

Scale = Literal["smoke", "short", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Value = str | int | float
Labels = Mapping[str, Value]
Only = Mapping[str, Collection[str]]


@dataclass(frozen=True)
class Control:
    """A control row that the paper does not have: run only if `--only` names it, and shown below the paper's rows.

    Args:
        name: its name in `--only`.
        title: the title of its row.
        like: the value of the axis whose configuration it shares, except for `changes`.
    """

    name: str
    title: str
    like: Value
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """A dimension along which the runs of an artefact differ.

    Args:
        name: its name in `--only`, such as depth.
        values: its values, in the order of the paper.
        role: rows and columns span the cells of the table. A cell shows the best of the searched values. The first
            value of a variant belongs to the artefact itself; the others are run only on request and reported
            separately.
        controls: additional rows that the paper does not have.
        methods: the method of each value, where the values are not themselves method names.
        title: returns the title of a value.
    """

    name: str
    values: tuple[Value, ...]
    role: Literal["row", "column", "searched", "variant"]
    controls: tuple[Control, ...] = ()
    methods: Mapping[Value, str] = field(default_factory=dict)
    title: Callable[[Value], str] = lambda value: method(str(value)).title

    @property
    def known(self) -> tuple[Value, ...]:
        """All values that `--only` accepts, controls included."""
        return (*self.values, *(control.name for control in self.controls))


# The setting that decides which records a metric is computed from: runs that differ in it are not comparable.
OBSERVED_BY: Mapping[str, str] = {"final_training_loss": "log_every", "best_test_error": "evaluate_every"}

INIT = Axis("init", ("paper", "authors"), "variant")
UNIT_START = Control("unit-start", "Unit start", "normal", {"method": "unit-start"})


@dataclass(frozen=True)
class Plan:
    """A run that an artefact needs: its value on each axis, and the overrides that define its configuration.

    `artefact` names the folder that holds the run: an artefact may share another's runs, so that nothing is trained
    twice.
    """

    artefact: str
    scale: Scale
    labels: Labels
    overrides: Mapping[str, Any]

    @property
    def config(self) -> RunConfig:
        """The configuration of the run, without the digest of its data."""
        fields, _ = complete(self.overrides)
        fields["data"]["digest"] = ""
        return read_config(fields)

    @property
    def identity(self) -> str:
        """The part of the configuration that does not depend on the seed or on the copy of the data."""
        return identity(self.config)


@dataclass(frozen=True)
class Number:
    """A number of the paper, with its spread and number of seeds where the paper states them.

    `bold` is whether the paper prints it in bold, `text` how it is printed (empty for a derived number).
    """

    value: float
    spread: float | None = None
    seeds: int | None = None
    bold: bool = False
    text: str = ""

    @property
    def decimals(self) -> int:
        """The number of decimals to print ours with: at least two, and as many as the paper prints."""
        return max(2, len(self.text.partition(" ")[0].partition(".")[2]))


@dataclass(frozen=True)
class Column:
    """A column: its title, its value on the column axis ('' if there is no such axis), and the name of its metric."""

    title: str
    value: str = ""
    metric: str = "test_error"


@dataclass(frozen=True)
class PaperTable:
    """A table as the paper prints it.

    Args:
        unit: the quantity shown, with its unit.
        rows: the title of each row by its key; the key of a row that is reproduced is its value on the row axis.
        columns: the columns in the order of the paper.
        numbers: the numbers by row key and column title; empty cells are absent.
        others: the keys of rows that quote results of other systems.
        by_metric: whether claims are evaluated in their own metric, whichever metrics the columns show.
    """

    unit: str
    rows: Mapping[str, str]
    columns: tuple[Column, ...]
    numbers: Mapping[tuple[str, str], Number]
    others: frozenset[str] = field(default_factory=frozenset)
    by_metric: bool = False


@dataclass(frozen=True)
class Artefact:
    """A table, figure or experiment; the base class of trained and measured artefacts.

    Args:
        title, about, protocol: the description shown to users.
        departures: the differences from the paper's protocol.
        table: the paper's table, if the artefact is one.
        claims: the claims to test, each with its criterion.
    """

    name: str
    title: str
    about: str
    protocol: str
    departures: tuple[str, ...] = ()
    table: PaperTable | None = None
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class TrainedArtefact(Artefact):
    """A table, figure or experiment that consists of training runs.

    Args:
        axes: the axes along which the runs differ, at a scale.
        overrides: the configuration of one combination of values at a scale, as passed to `resolve`, without a seed.
        seeds: the default number of seeds at each scale; at paper scale the paper's, if it states one.
        metric: the metric of a run that is reported, and by which settings are searched.
        curves: the plot shown instead of a table: training loss by iteration or by epoch, or the result of a search
            over the learning rate.
        skewed: whether a few failed runs dominate the mean, so that the median is reported too.
        home: returns the artefact whose folder holds the run of a combination; the artefact itself if None.
        seeds_at_best: the number of seeds at the best setting of each cell once its search is complete, where it
            exceeds that of the other settings.
        compared: comparisons reported without a verdict: of each row with the first, the range of learning rates
            in which each row is good, or how well the best rate of one column does in the others.
        exists: whether a combination is valid: not every method supports every network.
    """

    axes: Callable[[Scale], tuple[Axis, ...]] = lambda scale: ()
    overrides: Callable[[Labels, Scale], Mapping[str, Any]] = lambda labels, scale: {}
    seeds: Mapping[Scale, int] = field(default_factory=lambda: {"smoke": 1, "short": 3, "paper": 5})
    metric: str = "test_error"
    curves: Literal["", "iteration", "epoch", "search"] = ""
    skewed: bool = False
    home: Callable[[Labels], str] | None = None
    seeds_at_best: Mapping[Scale, int] = field(default_factory=dict)
    compared: tuple[Literal["differences", "good-range", "carries-over"], ...] = ()
    exists: Callable[[Labels], bool] = lambda labels: True

    def plans(self, scale: Scale, *, seeds: int | None = None, only: Only | None = None) -> list[Plan]:
        """Return the runs that the artefact needs at a scale, restricted to the values in `only` on each axis named."""
        count = self.seeds[scale] if seeds is None else seeds
        plans = []
        for labels in self.combinations(scale, only or {}):
            home = self.home(labels) if self.home else self.name
            for seed in range(1, count + 1):
                if _matches({**labels, "seed": seed}, only or {}):
                    overrides = {**self._overrides(labels, scale), "seed": seed}
                    plans.append(Plan(home, scale, {**labels, "seed": seed}, overrides))
        return plans

    def further_plans(self, best: Collection[Labels], scale: Scale, only: Only | None = None) -> list[Plan]:
        """Return the runs with the additional seeds of the best settings; `best` holds their values on all axes."""
        first, last = self.seeds[scale] + 1, self.seeds_at_best.get(scale, 0)
        plans: list[Plan] = []
        for labels in best:
            values = {name: [str(value)] for name, value in labels.items()}
            seeds = [str(seed) for seed in range(first, last + 1)]
            plans += self.plans(scale, seeds=last, only={**values, "seed": seeds})
        return [plan for plan in plans if _matches(plan.labels, only or {})]

    def combinations(self, scale: Scale, only: Only) -> Iterator[Labels]:
        """Yield all combinations of values; controls and non-default variants only if `only` names their axis."""
        axes = self.axes(scale)
        choices = [
            axis.known if axis.name in only else axis.values[:1] if axis.role == "variant" else axis.values
            for axis in axes
        ]
        for values in itertools.product(*choices):
            labels = dict(zip((axis.name for axis in axes), values, strict=True))
            if self.exists(labels):
                yield labels

    def _overrides(self, labels: Labels, scale: Scale) -> Mapping[str, Any]:
        """Return the overrides of a combination; those of a control are another row's with its changes."""
        like, changes = dict(labels), dict[str, Any]()
        for axis in self.axes(scale):
            for control in axis.controls:
                if labels[axis.name] == control.name:
                    like[axis.name] = control.like
                    changes.update(control.changes)
        return {**self.overrides(like, scale), **changes}


@dataclass(frozen=True)
class MeasuredArtefact(Artefact):
    """A table, figure or experiment that is computed or timed by a single measurement, without training runs.

    Args:
        measurement: the name of the measurement in `pbwn_repro.bench.measuring`.
        options: the options of the measurement at a scale.
        earlier: options of earlier protocols, whose results are shown if there are none of the current one.
    """

    measurement: str = ""
    options: Callable[[Scale], Mapping[str, Any]] = lambda scale: {}
    earlier: Callable[[Scale], tuple[Mapping[str, Any], ...]] = lambda scale: ()


def identity(config: RunConfig) -> str:
    """Serialise all that a run's result depends on, except its seed and the copy of its data."""
    data = {**config.identity["data"], "digest": "", "name": original(config.data.name)}
    return json.dumps({**config.identity, "seed": 0, "data": data}, sort_keys=True)


def read_table(
    unit: str,
    columns: tuple[Column, ...],
    text: str,
    *,
    seeds: int | None,
    others: Mapping[str, tuple[int | None, ...]] | None = None,
) -> PaperTable:
    """Parse lines of `key | title | number | ...`; a number is `6.27 ± 0.34`, `**6.27**` if bold, `-` if absent.

    Args:
        unit: the quantity shown, with its unit.
        columns: the columns, in order.
        text: the lines.
        seeds: the paper's number of seeds in all rows except those of `others`; None if unknown.
        others: the keys of rows that quote other systems, with the number of seeds of each column.
    """
    others = others or {}
    rows: dict[str, str] = {}
    numbers: dict[tuple[str, str], Number] = {}
    for line in text.strip().splitlines():
        key, title, *cells = (part.strip() for part in line.split("|"))
        rows[key] = title
        counts = others.get(key) or (None if key in others else seeds,) * len(columns)
        for column, cell, count in zip(columns, cells, counts, strict=True):
            if cell != "-":
                numbers[key, column.title] = _number(cell, count)
    return PaperTable(unit, rows, columns, numbers, frozenset(others))


_CELL = re.compile(r"(\*\*)?([\d.]+)(?: ± ([\d.]+))?(\*\*)?")


def _number(cell: str, seeds: int | None) -> Number:
    match = _CELL.fullmatch(cell)
    if match is None:
        raise ValueError(f"{cell!r} is not a number of a table: write 6.27 ± 0.34 or **6.27 ± 0.34**")
    bold, value, spread, _ = match.groups()
    return Number(float(value), float(spread) if spread else None, seeds, bold is not None, cell.strip("*"))


def _matches(labels: Labels, only: Only) -> bool:
    return all(str(labels.get(name)) in values for name, values in only.items())
