"""The runs of a section by the cells that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pbwn_repro.paper import BestSetting, Column, claims_on
from pbwn_repro.paper.numbers import Measure
from pbwn_repro.report.collecting.choosing import Chosen, choose, values_of
from pbwn_repro.report.collecting.layout import Layout, layout
from pbwn_repro.report.collecting.matching import Labelled, Protocol
from pbwn_repro.report.collecting.measures import MEASURES, SEARCHED_BY
from pbwn_repro.report.collecting.series import SETTINGS
from pbwn_repro.report.model import Cell, Table
from pbwn_repro.report.verdicts.grid import Search

Place = tuple[str, str]  # the key of a row, the value of a column


@dataclass(frozen=True)
class Stated:
    """The paper's own setting in words, and the runs of each row there; none where it is the best of ours too."""

    value: str
    runs: Mapping[str, Chosen]


class Cells:
    """All runs, and those of the best setting, by the key of a row and the value of a column."""

    def __init__(self, protocol: Protocol, runs: Sequence[Labelled]) -> None:
        """Choose the best setting of each cell."""
        self.protocol = protocol
        self.searched = protocol.with_role("searched")
        self.measure = MEASURES[SEARCHED_BY[protocol.artefact.value]]
        [row], columns = protocol.with_role("row"), protocol.with_role("column")
        self.runs: dict[Place, list[Labelled]] = {}
        for run in runs:
            place = (str(run.labels[row.name]), str(run.labels[columns[0].name]) if columns else "")
            self.runs.setdefault(place, []).append(run)
        self.layout: Layout = layout(protocol, {row for row, _ in self.runs})
        best = {place: choose(found, self.searched, self.measure) for place, found in self.runs.items()}
        self.chosen: dict[Place, Chosen] = {place: found for place, found in best.items() if found is not None}
        self.stated = self._stated()
        self._all = self.chosen | {(row, self.stated.value): runs for row, runs in self.stated.runs.items()}

    def values(self, row: str, column: Column) -> dict[int, float]:
        """What the runs of a cell gave, by seed."""
        chosen = self._all.get((row, column.value))
        return chosen.values(MEASURES[column.measure]) if chosen else {}

    def columns(self, measure: Measure, *, at_one_setting: bool = False) -> tuple[Column, ...]:
        """Where a claim is looked at.

        In a table that is its columns, as far as the scale has them; in a figure the best settings, which may differ
        between rows, then the paper's own.
        """
        if self.layout.paper:
            made = {str(value) for axis in self.protocol.with_role("column") for value in axis.values}
            return tuple(column for column in self.layout.columns if column.value in made or not made)
        own = (Column(self.stated.value, self.stated.value, measure),) if self.stated.runs else ()
        return own if own and at_one_setting else (Column("", measure=measure), *own)

    def diverged(self, row: str, column: Column) -> int:
        """How many runs of a cell's setting diverged."""
        chosen = self._all.get((row, column.value))
        return chosen.diverged if chosen else 0

    def has_runs(self, row: str, column: Column) -> bool:
        """Whether a cell has runs that ended, finished or diverged."""
        return (row, column.value) in self._all

    def tried(self, row: str, column: Column) -> frozenset[tuple[Any, ...]]:
        """The settings that the runs of a cell were chosen from."""
        chosen = self._all.get((row, column.value))
        return chosen.tried if chosen else frozenset()

    def search(self, row: str, column: Column, name: str) -> Search | None:
        """What the search in a cell found."""
        place = (row, column.value)
        if place not in self.chosen:
            return None
        [axis] = [axis for axis in self.searched if axis.name == name]
        numbers = [value for value in axis.values if not isinstance(value, str)]
        runs = {value: [run for run in self.runs[place] if run.labels[name] == value] for value in numbers}
        values = {value: values_of(found, self.measure) for value, found in runs.items()}
        tried = {value: found for value, found in values.items() if found}
        left = tuple(value for value in numbers if value not in tried)
        return Search(self.chosen[place].setting[name], tried, left)

    def table(self) -> Table:
        """Ours beside the paper's."""
        shown = list(self.layout.columns)
        if self.stated.runs:
            at = self.stated.value
            shown += [Column(f"{column.title}, at {at}", at, column.measure) for column in self.layout.columns]
        cells = {}
        for row in self.layout.rows:
            for column in shown:
                chosen = self._all.get((row.key, column.value))
                ours = chosen.summary(MEASURES[column.measure]) if chosen else None
                number = self.layout.number(row, column)
                cells[row.title, column.title] = Cell(row.title, column.title, ours, number)
        rows, columns = (tuple(each.title for each in side) for side in (self.layout.rows, shown))
        return Table(rows, columns, cells, self.layout.unit)

    def _stated(self) -> Stated:
        """The runs at the setting that the paper states as the best, where it is not the best of ours for all rows."""
        for claim in claims_on(self.protocol.artefact.name):
            criterion = claim.criterion
            if isinstance(criterion, BestSetting):
                name, value = criterion.name, criterion.value
                if all(best.setting[name] == value for best in self.chosen.values()):
                    continue
                runs = {
                    row: [run for run in found if run.labels[name] == value] for (row, _), found in self.runs.items()
                }
                there = {row: choose(found, self.searched, self.measure) for row, found in runs.items()}
                words = f"{SETTINGS.get(name, name)} {value:g}"
                # The words say the setting: nothing was chosen.
                return Stated(words, {row: replace(found, setting={}) for row, found in there.items() if found})
        return Stated("", {})
