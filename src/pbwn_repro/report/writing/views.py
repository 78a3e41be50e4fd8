"""What the page shows of a section: its place, its figures, its best cells, its runs as lines."""

from __future__ import annotations

from typing import Any

from pbwn_repro.report.drawing.curves import of_plot
from pbwn_repro.report.drawing.dots import of_table
from pbwn_repro.report.drawing.figure import Drawing
from pbwn_repro.report.drawing.palette import own_stroke
from pbwn_repro.report.drawing.surfaces import of_surfaces
from pbwn_repro.report.model import Report, Section, Table
from pbwn_repro.report.writing.forest import decided
from pbwn_repro.report.writing.markdown import heading, protocol
from pbwn_repro.report.writing.missing import command
from pbwn_repro.report.writing.tables import best_settings

Place = tuple[str, str]


def anchor(section: Section) -> str:
    """The section's address in the page, and the beginning of its files' names."""
    variant = [f"{name}-{value}" for name, value in section.variant.items()]
    return "-".join([section.artefact.name, section.scale, *variant])


def finished(report: Report) -> list[Section]:
    """The sections that have something to show; of the others, no run is finished yet."""
    return [section for section in report.sections if section.runs or section.measurement or section.diverged]


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
    rows = section.table.rows if section.table else ()
    return {
        **vars(section),
        "anchor": anchor(section),
        "number": heading(section.artefact.name),
        "setting": ", ".join(
            [f"{section.scale} scale", *(f"{name} = {value}" for name, value in section.variant.items())]
        ),
        "protocol": protocol(section),
        "claims": decided(section),
        "own_notes": [note for note in section.notes if note not in section.artefact.departures],
        "figures": shown,
        "inside": inside,
        "tones": {row: stroke.tone.name for row in rows if (stroke := own_stroke(row))},
        "best": best(section.table),
        "chosen": best_settings(section.table) if section.table else [],
        "command": command(section),
        "has_paper": section.table is not None and any(cell.paper for cell in section.table.cells.values()),
        "run_columns": columns,
        "run_lines": lines,
    }


def best(table: Table | None) -> set[Place]:
    """Our lowest value in each column, where the paper's table marks its best too and there is more than one."""
    if table is None or not any(cell.paper and cell.paper.bold for cell in table.cells.values()):
        return set()
    found: set[Place] = set()
    for column in table.columns:
        # Fewer runs that diverge are better than any mean.
        ranks = {
            place: (cell.ours.diverged / (cell.ours.diverged + cell.ours.count), cell.ours.mean)
            for place, cell in table.cells.items()
            if cell.column == column and cell.ours and cell.ours.values
        }
        if len(ranks) > 1:
            found |= {place for place, rank in ranks.items() if rank == min(ranks.values())}
    return found


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
