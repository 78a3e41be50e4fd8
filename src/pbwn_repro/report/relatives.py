"""The one table of the paper's relatives: what each does, its errors, the time of its step, its range of good rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pbwn_repro.catalog import Column
from pbwn_repro.catalog.relatives import DECAYS, GOOD, RELATIVES, RELATIVES_TIME
from pbwn_repro.methods import method
from pbwn_repro.metrics import TEST_ERROR
from pbwn_repro.report.absolute import at_settings, best_mean, good_settings
from pbwn_repro.report.cells import Cells
from pbwn_repro.report.model import Cell, Row, Section, Summary, Table

TIMED_AS = {"decay": "normal", "unit-start": "normal", "sgd-g-unclipped": "sgd-g"}  # the same work in a step
NETWORKS = {"mlp": "mlp"}  # which timed network stands for which column


def with_ranges(table: Table, cells: Cells) -> Table:
    """The table with what each row does, and for each network the number of learning rates at which it is good."""
    rows = tuple(replace(row, about=about(row.key)) for row in table.rows)
    columns, found = list(table.columns), dict(table.cells)
    for shown in cells.columns_for(TEST_ERROR.name):
        runs = {row.key: at_settings(cells, row.key, shown, "lr") for row in rows}
        best = best_mean(runs, TEST_ERROR)
        number = max(len(tried) for tried in runs.values())
        column = Column(f"{shown.title}, good rates of {number}", shown.value, "good_rates")
        columns.append(column)
        for row in rows:
            tried = any(runs[row.key].values())
            good = good_settings(runs[row.key], TEST_ERROR, best, GOOD) if best is not None and tried else None
            found[row.key, column] = Cell(None if good is None else Summary((float(len(good)),), len(good), None), None)
    unit = (
        f"{table.unit}, and the number of learning rates with an error within {GOOD:g} points of the lowest of all rows"
    )
    return replace(table, rows=rows, columns=tuple(columns), cells=found, unit=unit, undrawn=frozenset({"good_rates"}))


def about(key: str) -> str:
    """What a row's method does."""
    return method("decay" if key in DECAYS else key).about


def with_times(sections: Sequence[Section]) -> list[Section]:
    """The sections, the relatives' table with the time of a step from the measurement at the same scale beside it."""
    timed = {section.scale: section.table for section in sections if section.artefact.name == RELATIVES_TIME.name}
    return [
        replace(section, table=_timed(section.table, table))
        if section.artefact.name == RELATIVES.name and section.table and (table := timed.get(section.scale))
        else section
        for section in sections
    ]


def _timed(table: Table, times: Table) -> Table:
    columns, found = list(table.columns), dict(table.cells)
    for column in times.columns:
        if column.metric == "relative" and column.value in NETWORKS:
            added = Column("MLP, time of a step over Normal's (%)", column.value, "step_time")
            columns.append(added)
            for row in table.rows:
                cell = _cell(row, column, times.cells)
                ours = cell.ours if cell else None
                found[row.key, added] = Cell(ours, None)
    return replace(
        table, columns=tuple(columns), cells=found, undrawn=table.undrawn | {"step_time"}, unit=f"{table.unit}; times"
    )


def _cell(row: Row, column: Column, cells: Mapping[tuple[str, Column], Cell]) -> Cell | None:
    """The time of a row, or of one whose step does the same."""
    key = "decay" if row.key in DECAYS else "max-norm" if row.key.startswith("max-norm") else row.key
    return cells.get((TIMED_AS.get(key, key), column))
