"""Which cell of which artefact a run belongs to: decided by its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pbwn_repro.catalog import Plan, Scale, TrainedArtefact
from pbwn_repro.catalog.artefact import OBSERVED_BY, Axis, identity
from pbwn_repro.config import Data, RunConfig
from pbwn_repro.data import original
from pbwn_repro.report.collecting.reading import Record

Labels = Mapping[str, Any]


@dataclass(frozen=True)
class Labelled:
    """A run in the words of an artefact: its place on each axis."""

    record: Record
    labels: Labels

    def on(self, axes: tuple[Axis, ...]) -> tuple[Any, ...]:
        """The run's values on some axes."""
        return tuple(self.labels[axis.name] for axis in axes)


class Protocol:
    """The runs that an artefact may have at a scale, those of all its variants too."""

    def __init__(self, artefact: TrainedArtefact, scale: Scale) -> None:
        """Nothing is worked out yet."""
        self.artefact, self.scale = artefact, scale
        self.axes = artefact.axes(scale)

    def with_role(self, role: str) -> tuple[Axis, ...]:
        """The axes that play a role."""
        return tuple(axis for axis in self.axes if axis.role == role)

    @cached_property
    def homes(self) -> tuple[str, ...]:
        """The artefacts in whose folders the runs are kept."""
        return tuple(sorted({plan.artefact for plan in self._plans}))

    def label(self, records: Mapping[str, Sequence[Record]]) -> tuple[list[Labelled], dict[Path, str]]:
        """The runs that belong here, of those that are kept in each home, in the order of plans and seeds.

        All have to be made on the same copy of a data set, and observed as often as the shown value needs: others are
        named with that reason.
        """
        found, others = [], {}
        for home in self.homes:
            for record in records.get(home, ()):
                position = self._identities[home].get(identity(record.config))
                if position is None:
                    continue
                if reason := self._otherwise_observed(record.config, self._plans[position]):
                    others[record.path] = reason
                else:
                    found.append((position, record))
        found.sort(key=lambda item: (item[0], item[1].seed, item[1].path))
        used = _copies_used([record for _, record in found])
        labelled = []
        for position, record in found:
            data, shown = record.config.data, used[original(record.config.data.name)]
            if data.digest == shown.digest:
                labelled.append(Labelled(record, _without_seed(self._plans[position])))
            else:
                others[record.path] = f"another copy of the data: {_named(data)}, the runs shown are on {_named(shown)}"
        return labelled, others

    def _otherwise_observed(self, config: RunConfig, plan: Plan) -> str | None:
        """Why a run cannot stand beside others though its result is theirs."""
        if (name := OBSERVED_BY.get(self.artefact.value)) is None:
            return None
        ours, planned = (getattr(each, name) or "each epoch" for each in (config, plan.config))
        return None if ours == planned else f"another protocol: {name} is {ours}, {self.artefact.name} needs {planned}"

    @cached_property
    def _plans(self) -> list[Plan]:
        """A plan for every combination of labels, with the first seed."""
        everything = {axis.name: [str(value) for value in axis.known] for axis in self.axes}
        return self.artefact.plans(self.scale, seeds=1, only=everything)

    @cached_property
    def _identities(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {home: {} for home in self.homes}
        for position, plan in enumerate(self._plans):
            found[plan.artefact][plan.identity] = position
        return found


def _copies_used(records: Sequence[Record]) -> dict[str, Data]:
    """By data set, the copy of it that most runs were made on to their end; of equals the original pictures."""
    counts: dict[str, dict[str, int]] = {}
    copies: dict[str, Data] = {}
    for record in records:
        data = record.config.data
        count = counts.setdefault(original(data.name), {})
        count[data.digest] = count.get(data.digest, 0) + (record.state != "unfinished")
        copies.setdefault(data.digest, data)
    best = {
        name: min(count, key=lambda digest: (-count[digest], copies[digest].name != name, digest))
        for name, count in counts.items()
    }
    return {name: copies[digest] for name, digest in best.items()}


def _named(data: Data) -> str:
    return f"{data.name} ({data.digest[:8]})"


def _without_seed(plan: Plan) -> Labels:
    return {name: value for name, value in plan.labels.items() if name != "seed"}
