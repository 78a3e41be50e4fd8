"""What the page shows of a section: its place, its figures, its best cells, its runs as lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pbwn_repro.report.curves import of_plot
from pbwn_repro.report.dots import of_table
from pbwn_repro.report.drawing import Drawing
from pbwn_repro.report.forest import decided
from pbwn_repro.report.model import Cell, Section, Table
from pbwn_repro.report.palette import strokes
from pbwn_repro.report.surfaces import of_surfaces

Place = tuple[str, str]


def anchor(section: Section) -> str:
    """The section's address in the page, and the beginning of its files' names."""
    variant = [f"{name}-{value}" for name, value in section.variant.items()]
    return "-".join([section.artefact.name, section.scale, *variant])


def drawings(section: Section) -> tuple[list[Drawing], list[Drawing]]:
    """The section's figures: those that the reader came for, and those of how the runs went."""
    curves = {plot.name: of_plot(plot) for plot in section.plots}
    shown = []
    if section.landscapes:
        shown = of_surfaces(section.landscapes, anchor(section))
        curves.pop(f"{anchor(section)}-condition", None)  # drawn with the surfaces
    if section.artefact.name.startswith("figure"):
        wanted = ("training-loss", "largest-eigenvalue")
        shown += [drawing for name, drawing in curves.items() if name.endswith(wanted)]
    elif section.table is not None and any(cell.ours for cell in section.table.cells.values()):
        shown.append(of_table(section.table, f"{anchor(section)}-dots", paper=section.scale == "paper"))
    return shown, [drawing for drawing in curves.values() if drawing not in shown]


def view(section: Section) -> dict[str, Any]:
    """A section as its template reads it."""
    shown, inside = drawings(section)
    columns, lines = run_table(section)
    return {
        **vars(section),
        "anchor": anchor(section),
        "number": section.artefact.name.replace("-", " ").capitalize(),
        "setting": ", ".join(
            [f"{section.scale} scale", *(f"{name} = {value}" for name, value in section.variant.items())]
        ),
        "only": f" --only {','.join(f'{name}={value}' for name, value in section.variant.items())}"
        if section.variant
        else "",
        "claims": decided(section),
        "own_notes": [note for note in section.notes if note not in section.artefact.departures],
        "figures": shown,
        "inside": inside,
        "tones": {row: stroke.tone.name for row, stroke in strokes(section.table.rows).items()}
        if section.table
        else {},
        "digits": digits(section.table) if section.table else 2,
        "best_ours": best(section.table, lambda cell: cell.ours.mean if cell.ours else None),
        "run_columns": columns,
        "run_lines": lines,
    }


def best(table: Table | None, value: Callable[[Cell], float | None]) -> set[Place]:
    """The lowest value of each column, where the paper's table marks its best too and there is more than one."""
    if table is None or not any(cell.paper and cell.paper.bold for cell in table.cells.values()):
        return set()
    found: set[Place] = set()
    for column in table.columns:
        values = {place: value(cell) for place, cell in table.cells.items() if cell.column == column}
        known = {place: each for place, each in values.items() if each is not None}
        if len(known) > 1:
            found |= {place for place, each in known.items() if each == min(known.values())}
    return found


def digits(table: Table) -> int:
    """The decimals of the paper's numbers: two, or three where it gives them."""
    numbers = [cell.paper.value for cell in table.cells.values() if cell.paper]
    return max([2, *(len(str(value).partition(".")[2]) for value in numbers)])


def run_table(section: Section) -> tuple[list[str], list[list[str]]]:
    """The section's runs: what tells them apart, and what each gave."""
    names = list(dict.fromkeys(name for run in section.runs for name in run.labels))
    results = ("test_error", "best_test_error", "test_error_exported", "deviation", "steps")
    shown = [name for name in results if any(run.result.get(name) is not None for run in section.runs)]
    columns = [*names, *(name.replace("_", " ") for name in shown), "folder"]
    lines = [
        [
            *(_text(run.labels.get(name)) for name in names),
            *(_text(run.result.get(name)) for name in shown),
            run.path.name,
        ]
        for run in section.runs
    ]
    return columns, lines


def _text(value: Any) -> str:
    if value is None:
        return "\N{EN DASH}"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
