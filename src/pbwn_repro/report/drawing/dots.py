"""A table as dots: ours with their spread, and the paper's beside them where the protocol is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbwn_repro.report.drawing.figure import Drawing, frame, number
from pbwn_repro.report.drawing.palette import INK, MUTED, strokes
from pbwn_repro.report.model import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 3  # panels side by side on a desk


def of_table(table: Table, name: str, *, paper: bool) -> Drawing:
    """The drawing of a table; `paper` says whether its numbers can be shown on the same axis."""
    shown = [(cell, cell.ours) for cell in table.cells.values() if cell.ours and cell.ours.values]
    seen = [f"{cell.row}, {cell.column}: {ours.mean:.3g}" for cell, ours in shown]
    beside = ", filled: these runs, hollow: the paper" if paper else ""
    spread = any(ours.deviation is not None for _, ours in shown)
    bars = "; bars are one standard deviation" if spread or paper else ""
    title = f"The table as dots{beside}{bars}"
    return Drawing(name, title, f"{table.unit}. {'; '.join(seen)}.", lambda narrow: draw(table, narrow, paper=paper))


def draw(table: Table, narrow: bool, *, paper: bool) -> Figure:
    """Draw one panel for each column of the table that has runs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    # Hours on another machine say nothing beside the paper's.
    columns = [
        column
        for column in table.columns
        if not column.endswith("hours") and any(_ours(table, row, column) for row in table.rows)
    ]
    rows = [row for row in table.rows if any(_ours(table, row, column) for column in columns)]
    across = 1 if narrow else min(_ACROSS, len(columns))
    down = -(-len(columns) // across)
    size = (3.4 if narrow else 7.4, 0.35 + down * (0.75 + 0.26 * len(rows)))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for panel, column in zip(panels, columns, strict=False):
        frame(panel, "", column)
        panel.set_title(column, loc="left", color=INK.light, weight="bold")
        panel.grid(axis="y", visible=False)
        _fill(panel, table, rows, column, paper=paper)
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.xaxis.set_major_formatter(FuncFormatter(number))
        panel.margins(x=0.08, y=0.12)
    panels[0].set_yticks(range(len(rows)), rows)
    panels[0].invert_yaxis()
    for panel in panels[len(columns) :]:
        panel.set_visible(False)
    figure.supxlabel(table.unit, color=MUTED.light, fontsize=9)
    return figure


def _fill(panel: Axes, table: Table, rows: list[str], column: str, *, paper: bool) -> None:
    styles = strokes(rows)
    for height, row in enumerate(rows):
        cell = table.cells.get((row, column))
        if cell is None:
            continue
        colour = styles[row].tone.light
        if cell.ours is not None and cell.ours.values:
            panel.errorbar(
                *(cell.ours.mean, height - 0.14 * paper),
                xerr=cell.ours.deviation or 0,
                fmt="o",
                color=colour,
                markersize=6,
                elinewidth=2,
                capsize=0,
            )
        if paper and cell.paper is not None:
            panel.errorbar(
                *(cell.paper.value, height + 0.18),
                xerr=cell.paper.spread or 0,
                fmt="D",
                color=MUTED.light,
                markersize=4.5,
                elinewidth=1,
                capsize=0,
                markerfacecolor="none",
            )


def _ours(table: Table, row: str, column: str) -> bool:
    cell = table.cells.get((row, column))
    return cell is not None and cell.ours is not None and bool(cell.ours.values)
