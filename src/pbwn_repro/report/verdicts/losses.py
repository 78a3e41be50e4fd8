"""Runs that diverged: no mean and no interval knows of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pbwn_repro.paper import Column
from pbwn_repro.report.model import Outcome
from pbwn_repro.report.verdicts.grid import Grid


def with_losses(
    outcome: Outcome, cells: Sequence[tuple[str, Column]], spoken_for: Collection[str], grid: Grid
) -> tuple[Outcome, str]:
    """The outcome in the light of what diverged, and what to add to its sentence.

    A claim that speaks for a row does not hold where that diverges: it takes two runs in all to say so, as anything.
    """
    words = ""
    for key, column in cells:
        if lost := grid.diverged(key, column):
            place = f"{grid.layout.title(key)}{f' at {column.title}' if column.title else ''}"
            words += f" Not in it: {lost} {'run' if lost == 1 else 'runs'} of {place} that diverged."
            if key in spoken_for and lost + len(grid.values(key, column)) >= 2:
                outcome = "does not hold"
    return outcome, words
