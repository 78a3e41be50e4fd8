"""The rows and columns of an artefact's table, by what the catalog and the paper call them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pbwn_repro import methods
from pbwn_repro.catalog.artefact import Axis
from pbwn_repro.paper import TABLES, Column, Number, PaperTable
from pbwn_repro.report.collecting.matching import Protocol

_LOSS_COLUMNS = (
    Column("training loss, last epoch", measure="final_training_loss"),
    Column("test error (%)"),
)


@dataclass(frozen=True)
class Row:
    """A row: its key in the catalog or in the paper's table, and its title."""

    key: str
    title: str


@dataclass(frozen=True)
class Layout:
    """Rows and columns, with the paper's numbers where there is a table."""

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    unit: str
    paper: PaperTable | None

    def number(self, row: Row, column: Column) -> Number | None:
        """The paper's number in a cell."""
        return self.paper.numbers.get((row.key, column.title)) if self.paper else None

    def title(self, key: str) -> str:
        """The title of a row."""
        return next((row.title for row in self.rows if row.key == key), key)


def layout(protocol: Protocol, with_runs: Collection[str]) -> Layout:
    """The layout of a trained artefact: that of the paper's table, or its curves with loss and error at the end.

    Below them stand the controls that have runs.
    """
    [axis] = protocol.with_role("row")
    controls = tuple(Row(each.name, each.title) for each in axis.controls if each.name in with_runs)
    paper = TABLES.get(protocol.artefact.name)
    if paper:
        theirs = (Row(key, title) for key, title in paper.rows.items())
        return Layout((*theirs, *controls), paper.columns, paper.unit, paper)
    rows = (*(Row(str(value), row_title(axis, value)) for value in axis.values), *controls)
    return Layout(rows, _LOSS_COLUMNS, "training loss and test error (%)", None)


def row_title(axis: Axis, value: object) -> str:
    """What the paper calls a row that has no table."""
    for control in axis.controls:
        if control.name == value:
            return control.title
    return f"T = {value}" if axis.name == "interval" else methods.method(str(value)).title
