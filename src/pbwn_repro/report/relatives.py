"""The one table of the paper's relatives: what each does, its errors, the time of its step, its range of good rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pbwn_repro.catalog import Column
from pbwn_repro.catalog.relatives import DECAYS, GOOD, RELATIVES, RELATIVES_TIME
from pbwn_repro.methods import method
from pbwn_repro.metrics import TEST_ERROR
from pbwn_repro.report.cells import Cells
from pbwn_repro.report.model import Cell, Section, Summary, Table
from pbwn_repro.report.verdicts import best_mean, good_settings


def with_ranges(table: Table, cells: Cells) -> Table:
    """The table with what each row does, and for each network the number of learning rates at which it is good."""
    rows = tuple(replace(row, about=method("decay" if row.key in DECAYS else row.key).about) for row in table.rows)
    columns, found = list(table.columns), dict(table.cells)
    for shown in cells.columns_for(TEST_ERROR.name):
        runs = {row.key: cells.at_settings(row.key, shown, "lr") for row in rows}
        best = best_mean(runs, TEST_ERROR)
        number = max(len(tried) for tried in runs.values())
        column = Column(f"{shown.title}, good rates of {number}", shown.value, "good_rates")
        columns.append(column)
        for row in rows:
            tried = any(runs[row.key].values())
            good = good_settings(runs[row.key], TEST_ERROR, best, GOOD) if best is not None and tried else None
            found[row.key, column] = Cell(
                None if good is None else Summary((float(len(good)),), len(good), None, is_count=True), None
            )
    unit = (
        f"{table.unit}, and the number of learning rates with an error within {GOOD:g} points of the lowest of all rows"
    )
    return replace(table, rows=rows, columns=tuple(columns), cells=found, unit=unit, undrawn=frozenset({"good_rates"}))


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
    """The table with the times of the network that both have."""
    [measured] = [column for column in times.columns if (column.metric, column.value) == ("relative", "mlp")]
    added = Column("MLP, time of a step over Normal's (%)", "mlp", "step_time")
    found = dict(table.cells)
    for row in table.rows:
        cell = times.cells.get((_timed_as(row.key), measured))
        found[row.key, added] = Cell(cell.ours if cell else None, None)
    undrawn = table.undrawn | {"step_time"}
    return replace(table, columns=(*table.columns, added), cells=found, undrawn=undrawn, unit=f"{table.unit}; times")


def _timed_as(key: str) -> str:
    """The row whose step does the same work."""
    key = "decay" if key in DECAYS else "max-norm" if key.startswith("max-norm") else key
    return {"decay": "normal", "unit-start": "normal", "sgd-g-unclipped": "sgd-g"}.get(key, key)
