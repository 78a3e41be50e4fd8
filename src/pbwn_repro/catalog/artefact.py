"""What a table or figure of the paper is: its cells and claims, and the runs that it needs."""

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
    """A row of ours that the paper does not have: made only if `--only` names it, and shown below the paper's rows.

    Args:
        name: what `--only` calls it; `title` is that of its row.
        like: the value of the axis whose configuration it has, but for `changes`.
    """

    name: str
    title: str
    like: Value
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """One thing that differs between the runs of an artefact.

    Args:
        name: what `--only` calls it, such as depth.
        values: what it may be, in the order of the paper.
        role: rows and columns make cells; of what is searched, a cell shows the best; of a variant, the first value is
            the artefact, the others are made only if asked for, and shown beside it.
        controls: rows of ours beside the paper's.
        methods: the method that each value stands for, where values are not methods themselves; `title` names a value.
    """

    name: str
    values: tuple[Value, ...]
    role: Literal["row", "column", "searched", "variant"]
    controls: tuple[Control, ...] = ()
    methods: Mapping[Value, str] = field(default_factory=dict)
    title: Callable[[Value], str] = lambda value: method(str(value)).title

    @property
    def known(self) -> tuple[Value, ...]:
        """All values that may be asked for, the controls too."""
        return (*self.values, *(control.name for control in self.controls))


# What a shown value is averaged over or chosen from: runs that differ in it cannot stand beside each other.
OBSERVED_BY: Mapping[str, str] = {"final_training_loss": "log_every", "best_test_error": "evaluate_every"}

INIT = Axis("init", ("paper", "authors"), "variant")
UNIT_START = Control("unit-start", "Unit start", "normal", {"method": "unit-start"})


@dataclass(frozen=True)
class Plan:
    """A run that an artefact needs: what it is in the artefact's words, and the overrides that make its configuration.

    `artefact` is the one whose folder keeps the run: an artefact may use another's runs, nothing is trained twice.
    """

    artefact: str
    scale: Scale
    labels: Labels
    overrides: Mapping[str, Any]

    @property
    def config(self) -> RunConfig:
        """The configuration of the run as far as it is known without its data."""
        fields, _ = complete(self.overrides)
        fields["data"]["digest"] = ""
        return read_config(fields)

    @property
    def identity(self) -> str:
        """What the configuration of such a run has in common over all seeds and all copies of the data."""
        return identity(self.config)


@dataclass(frozen=True)
class Number:
    """A number of the paper: its spread and number of seeds where the paper gives them; whether it is printed bold.

    `text` is how the paper prints it; one that follows from others has none.
    """

    value: float
    spread: float | None = None
    seeds: int | None = None
    bold: bool = False
    text: str = ""

    @property
    def decimals(self) -> int:
        """How many decimals ours need beside it: two, or as many as the paper prints of its value."""
        return max(2, len(self.text.partition(" ")[0].partition(".")[2]))


@dataclass(frozen=True)
class Column:
    """A column: its title, the value that the column axis has there ('' without one), and the metric's name."""

    title: str
    value: str = ""
    metric: str = "test_error"


@dataclass(frozen=True)
class PaperTable:
    """A table as the paper prints it.

    Args:
        unit: what its numbers are.
        rows: the titles of rows by their keys; the key of a row of ours is its method's name.
        columns: in the order of the paper.
        numbers: by the key of the row and the title of the column; what the paper leaves open is not there.
        others: the keys of rows that stand for other people's systems, quoted by the paper.
        by_metric: whether a claim is looked at in its own metric, whatever the columns show.
    """

    unit: str
    rows: Mapping[str, str]
    columns: tuple[Column, ...]
    numbers: Mapping[tuple[str, str], Number]
    others: frozenset[str] = field(default_factory=frozenset)
    by_metric: bool = False


@dataclass(frozen=True)
class Artefact:
    """What all artefacts have.

    Args:
        title, about, protocol: words for people; `departures` say where ours departs from the paper's.
        table: the paper's cells, where it is a table.
        claims: what the paper claims of it, and what decides each claim.
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
    """A table or figure that is made of training runs.

    Args:
        axes: what differs between the runs, at a scale.
        overrides: the configuration of one combination of values, at a scale, as `resolve` takes it; no seed.
        seeds: how many seeds the paper used, and how many a scale uses unless asked for another number.
        metric: the metric that a run contributes, and that settings are searched by.
        curves: what it shows instead of a table: the training loss by iteration or by epoch, or what a search over the
            learning rate gave.
        skewed: whether a few failed runs carry the mean, so that the median has to stand beside it.
        home: which artefact's folder keeps the run of a combination; the artefact's own if None.
        seeds_at_best: how many seeds a scale uses at the best setting of each cell, once its search is complete, where
            that is more than on the other settings.
        compared: comparisons that are told without a verdict: of each row with the first, the range of learning rates
            in which each is good, or how well the best rate of one column does in the others.
        exists: whether there is such a combination: not every method works everywhere.
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
        """The runs that the artefact needs at a scale; `only` keeps those with one of the given values on each axis."""
        count = self.seeds[scale] if seeds is None else seeds
        found = []
        for labels in self.combinations(scale, only or {}):
            home = self.home(labels) if self.home else self.name
            for seed in range(1, count + 1):
                if _kept({**labels, "seed": seed}, only or {}):
                    overrides = {**self._overrides(labels, scale), "seed": seed}
                    found.append(Plan(home, scale, {**labels, "seed": seed}, overrides))
        return found

    def further_plans(self, best: Collection[Labels], scale: Scale, only: Only | None = None) -> list[Plan]:
        """The seeds that the best settings have and others have not; `best` are their values on all axes."""
        first, last = self.seeds[scale] + 1, self.seeds_at_best.get(scale, 0)
        found = []
        for labels in best:
            values = {name: [str(value)] for name, value in labels.items()}
            seeds = [str(seed) for seed in range(first, last + 1)]
            found += self.plans(scale, seeds=last, only={**values, "seed": seeds})
        return [plan for plan in found if _kept(plan.labels, only or {})]

    def combinations(self, scale: Scale, only: Only) -> Iterator[Labels]:
        """All values of the axes together; variants but the first, and controls, only where `only` names their axis."""
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
        """The configuration of a combination; that of a control is another row's with some changes."""
        like, changes = dict(labels), dict[str, Any]()
        for axis in self.axes(scale):
            for control in axis.controls:
                if labels[axis.name] == control.name:
                    like[axis.name] = control.like
                    changes.update(control.changes)
        return {**self.overrides(like, scale), **changes}


@dataclass(frozen=True)
class MeasuredArtefact(Artefact):
    """A table or figure that is computed or timed in one go, without training runs.

    Args:
        measurement: the name of what makes it, in `pbwn_repro.bench.measuring`.
        options: what it is made with at a scale.
        earlier: options of earlier protocols, whose measurements are shown where there is none of the present one.
    """

    measurement: str = ""
    options: Callable[[Scale], Mapping[str, Any]] = lambda scale: {}
    earlier: Callable[[Scale], tuple[Mapping[str, Any], ...]] = lambda scale: ()


def identity(config: RunConfig) -> str:
    """What a run's result depends on in one fixed form, without its seed and without telling copies of data apart."""
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
    """Read lines of `key | title | number | ...`; a number is `6.27 ± 0.34`, bold between stars, a dash where none is.

    `seeds` is the number of seeds of our rows; `others` names the quoted systems, with the seeds of each column.
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
    found = _CELL.fullmatch(cell)
    if found is None:
        raise ValueError(f"{cell!r} is not a number of a table: write 6.27 ± 0.34 or **6.27 ± 0.34**")
    bold, value, spread, _ = found.groups()
    return Number(float(value), float(spread) if spread else None, seeds, bold is not None, cell.strip("*"))


def _kept(labels: Labels, only: Only) -> bool:
    return all(str(labels.get(name)) in values for name, values in only.items())
