"""Where verdicts find their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pbwn_repro.paper import Column
from pbwn_repro.paper.numbers import Measure
from pbwn_repro.report.collecting.layout import Layout
from pbwn_repro.report.verdicts.comparing import Values


@dataclass(frozen=True)
class Search:
    """The best setting, what each that was tried gave (infinite where a run diverged), those that still have no run."""

    best: float
    tried: Mapping[float, Values]
    open: tuple[float, ...]


class Grid(Protocol):
    """Where values stand: by the key of a row and by column."""

    layout: Layout

    def columns(self, measure: Measure, *, at_one_setting: bool = False) -> tuple[Column, ...]:
        """Where a claim that counts this is looked at; `at_one_setting` only where rows have the same one."""

    def values(self, row: str, column: Column) -> Values:
        """What the runs of a cell gave, by seed."""

    def diverged(self, row: str, column: Column) -> int:
        """How many runs of a cell diverged."""

    def has_runs(self, row: str, column: Column) -> bool:
        """Whether a cell has runs that ended, finished or diverged."""

    def tried(self, row: str, column: Column) -> frozenset[tuple[Any, ...]]:
        """The settings that the runs of a cell were chosen from."""

    def search(self, row: str, column: Column, name: str) -> Search | None:
        """What a search in a cell found."""
