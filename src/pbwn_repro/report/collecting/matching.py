"""Which cell of which artefact a run belongs to: decided by its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pbwn_repro.catalog import Plan, Scale, TrainedArtefact
from pbwn_repro.catalog.artefact import Axis, identity
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

    def label(self, records: Mapping[str, Sequence[Record]]) -> list[Labelled]:
        """The runs that belong here, of those that are kept in each home, in the order of plans and seeds."""
        found = []
        for home in self.homes:
            for record in records.get(home, ()):
                position = self._identities[home].get(identity(record.config))
                if position is not None:
                    found.append((position, record))
        found.sort(key=lambda item: (item[0], item[1].seed, item[1].path))
        return [Labelled(record, _without_seed(self._plans[position])) for position, record in found]

    @cached_property
    def _plans(self) -> list[Plan]:
        """A plan for every combination of labels, with the first seed."""
        variants = {axis.name: [str(value) for value in axis.values] for axis in self.with_role("variant")}
        return self.artefact.plans(self.scale, seeds=1, only=variants)

    @cached_property
    def _identities(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {home: {} for home in self.homes}
        for position, plan in enumerate(self._plans):
            found[plan.artefact][plan.identity] = position
        return found


def _without_seed(plan: Plan) -> Labels:
    return {name: value for name, value in plan.labels.items() if name != "seed"}
