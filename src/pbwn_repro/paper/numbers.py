"""The numbers of a table of the paper, read from a text that looks like the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ErrorMeasure = Literal["test_error", "best_test_error", "top5_error"]
Measure = ErrorMeasure | Literal["final_training_loss", "mean_training_loss", "early_jump", "cost"]
_CELL = re.compile(r"(\*\*)?([\d.]+)(?: ± ([\d.]+))?(\*\*)?")


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
    """A column: its title, the value that the catalog's column axis has there ('' without one), and what is counted."""

    title: str
    value: str = ""
    measure: Measure = "test_error"


@dataclass(frozen=True)
class PaperTable:
    """A table as the paper prints it.

    Args:
        rows: the titles of rows by their keys; the key of a row of ours is its method's name.
        columns: in the order of the paper.
        numbers: by the key of the row and the title of the column; what the paper leaves open is not there.
        others: the keys of rows that stand for other people's systems, quoted by the paper.
    """

    artefact: str
    unit: str
    rows: Mapping[str, str]
    columns: tuple[Column, ...]
    numbers: Mapping[tuple[str, str], Number]
    others: frozenset[str] = field(default_factory=frozenset)

    def column(self, title: str) -> Column:
        """A column by its title."""
        return next(column for column in self.columns if column.title == title)


def read_table(
    artefact: str,
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
    return PaperTable(artefact, unit, rows, columns, numbers, frozenset(others))


def _number(cell: str, seeds: int | None) -> Number:
    found = _CELL.fullmatch(cell)
    if found is None:
        raise ValueError(f"{cell!r} is not a number of a table: write 6.27 ± 0.34 or **6.27 ± 0.34**")
    bold, value, spread, _ = found.groups()
    return Number(float(value), float(spread) if spread else None, seeds, bold is not None, cell.strip("*"))
