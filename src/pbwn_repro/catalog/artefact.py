"""What a table or figure of the paper is: the runs that it needs, and how they become cells or curves."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pbwn_repro.config import RunConfig, read_config
from pbwn_repro.data import original
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
    """

    name: str
    values: tuple[Value, ...]
    role: Literal["row", "column", "searched", "variant"]
    controls: tuple[Control, ...] = ()

    @property
    def known(self) -> tuple[Value, ...]:
        """All values that may be asked for, the controls too."""
        return (*self.values, *(control.name for control in self.controls))


# What a shown value is averaged over or chosen from: runs that differ in it cannot stand beside each other.
OBSERVED_BY: Mapping[str, str] = {"training_loss": "log_every", "best_test_error": "evaluate_every"}

INIT = Axis("init", ("paper", "authors"), "variant")
UNIT_START = Control("unit-start", "Unit start", "normal", {"method": "unit-start"})


@dataclass(frozen=True)
class Plan:
    """A run that an artefact needs: what it is in the artefact's words, and the wishes that make its configuration.

    `artefact` is the one whose folder keeps the run: an artefact may use another's runs, nothing is trained twice.
    """

    artefact: str
    scale: Scale
    labels: Labels
    wishes: Mapping[str, Any]

    @property
    def config(self) -> RunConfig:
        """The configuration of the run as far as it is known without its data."""
        fields, _ = complete(self.wishes)
        fields["data"]["digest"] = ""
        return read_config(fields)

    @property
    def identity(self) -> str:
        """What the configuration of such a run has in common over all seeds and all copies of the data."""
        return identity(self.config)


@dataclass(frozen=True)
class Artefact:
    """What all artefacts have: a name, words for people, and where they depart from the paper."""

    name: str
    title: str
    about: str
    protocol: str
    departures: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainedArtefact(Artefact):
    """A table or figure that is made of training runs.

    Args:
        axes: what differs between the runs, at a scale.
        wishes: the configuration of one combination of values, at a scale, as `resolve` takes it; no seed.
        seeds: how many seeds the paper used, and how many a scale uses unless asked for another number.
        value: what a run contributes: the last or the best test error, or the curve of its training loss.
        home: which artefact's folder keeps the run of a combination; the artefact's own if None.
    """

    axes: Callable[[Scale], tuple[Axis, ...]] = lambda scale: ()
    wishes: Callable[[Labels, Scale], Mapping[str, Any]] = lambda labels, scale: {}
    seeds: Mapping[Scale, int] = field(default_factory=lambda: {"smoke": 1, "short": 3, "paper": 5})
    value: Literal["test_error", "best_test_error", "training_loss"] = "test_error"
    home: Callable[[Labels], str] | None = None

    def plans(self, scale: Scale, *, seeds: int | None = None, only: Only | None = None) -> list[Plan]:
        """The runs that the artefact needs at a scale; `only` keeps those with one of the given values on each axis."""
        count = self.seeds[scale] if seeds is None else seeds
        found = []
        for labels in self.combinations(scale, only or {}):
            home = self.home(labels) if self.home else self.name
            for seed in range(1, count + 1):
                if _kept({**labels, "seed": seed}, only or {}):
                    wishes = {**self._wishes(labels, scale), "seed": seed}
                    found.append(Plan(home, scale, {**labels, "seed": seed}, wishes))
        return found

    def combinations(self, scale: Scale, only: Only) -> Iterator[Labels]:
        """All values of the axes together; variants but the first, and controls, only where `only` names their axis."""
        axes = self.axes(scale)
        choices = [
            axis.known if axis.name in only else axis.values[:1] if axis.role == "variant" else axis.values
            for axis in axes
        ]
        for values in itertools.product(*choices):
            yield dict(zip((axis.name for axis in axes), values, strict=True))

    def _wishes(self, labels: Labels, scale: Scale) -> Mapping[str, Any]:
        """The configuration of a combination; that of a control is another row's with some changes."""
        like, changes = dict(labels), dict[str, Any]()
        for axis in self.axes(scale):
            for control in axis.controls:
                if labels[axis.name] == control.name:
                    like[axis.name] = control.like
                    changes.update(control.changes)
        return {**self.wishes(like, scale), **changes}


@dataclass(frozen=True)
class MeasuredArtefact(Artefact):
    """A table or figure that is computed or timed in one go, without training runs.

    Args:
        measurement: the name of what makes it, in `pbwn_repro.measurements`.
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


def _kept(labels: Labels, only: Only) -> bool:
    return all(str(labels.get(name)) in values for name, values in only.items())
