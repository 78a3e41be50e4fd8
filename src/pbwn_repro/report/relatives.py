"""The table of the paper's relatives: what each does, its errors, its range of good learning rates, its step time."""

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
    """Add what each method does and, for each network, at how many learning rates it is good."""
    rows = tuple(replace(row, about=method("decay" if row.key in DECAYS else row.key).about) for row in table.rows)
    columns, found = list(table.columns), dict(table.cells)
    for network in cells.columns_for(TEST_ERROR.name):
        runs = {row.key: cells.at_settings(row.key, network, "lr") for row in rows}
        best = best_mean(runs, TEST_ERROR)
        count = max(len(by_rate) for by_rate in runs.values())
        column = Column(f"{network.title}, good rates of {count}", network.value, "good_rates")
        columns.append(column)
        for row in rows:
            summary = None
            if best is not None and any(runs[row.key].values()):
                good = len(good_settings(runs[row.key], TEST_ERROR, best, GOOD))
                summary = Summary((float(good),), good, None, is_count=True)
            found[row.key, column] = Cell(summary, None)
    unit = f"{table.unit}; number of learning rates with an error within {GOOD:g} points of the lowest in the column"
    return replace(table, rows=rows, columns=tuple(columns), cells=found, unit=unit, undrawn=frozenset({"good_rates"}))


def with_times(sections: Sequence[Section]) -> list[Section]:
    """Add the time of a step to the table of the relatives, from the measurement at the same scale."""
    timed = {section.scale: section.table for section in sections if section.artefact.name == RELATIVES_TIME.name}
    return [
        replace(section, table=_timed(section.table, table))
        if section.artefact.name == RELATIVES.name and section.table and (table := timed.get(section.scale))
        else section
        for section in sections
    ]


def _timed(table: Table, times: Table) -> Table:
    """Add the times of the network that both tables have."""
    [measured] = [column for column in times.columns if (column.metric, column.value) == ("relative", "mlp")]
    added = Column("MLP, time of a step over Normal's (%)", "mlp", "step_time")
    found = dict(table.cells)
    for row in table.rows:
        cell = times.cells.get((_timed_as(row.key), measured))
        found[row.key, added] = Cell(cell.ours if cell else None, None)
    unit, undrawn = f"{table.unit}; time of a step", table.undrawn | {"step_time"}
    return replace(table, columns=(*table.columns, added), cells=found, unit=unit, undrawn=undrawn)


def _timed_as(key: str) -> str:
    """Return the timed row whose step does the same work."""
    key = "decay" if key in DECAYS else "max-norm" if key.startswith("max-norm") else key
    return {"decay": "normal", "unit-start": "normal", "sgd-g-unclipped": "sgd-g"}.get(key, key)
