"""A table as Markdown, CSV and LaTeX: ours as mean ± standard deviation (runs), beside the paper's."""

from __future__ import annotations

import csv
import io
import math

from pbwn_repro.paper import Number
from pbwn_repro.report.model import Cell, Summary, Table

_HEADER = (
    *("row", "column", "ours", "deviation", "runs", "diverged", "chosen"),
    *("paper", "paper_spread", "paper_seeds"),
)


def ours_text(summary: Summary | None, decimals: int = 2) -> str:
    """Ours as in `7.94 ± 0.16 (5)`; a dash where nothing was run."""
    if summary is None:
        return "-"
    lost = f"{summary.diverged} diverged" if summary.diverged else ""
    if not summary.values:
        return lost
    counted = ", ".join(part for part in (str(summary.count), lost) if part)
    return f"{_with_spread(summary.mean, summary.deviation, decimals)} ({counted})"


def paper_text(number: Number | None) -> str:
    """The paper's as it prints it; a dash where it has none."""
    return "-" if number is None else number.text or _with_spread(number.value, number.spread, number.decimals)


def texts(cell: Cell) -> tuple[str, str]:
    """Ours and the paper's, with as many decimals as the paper prints."""
    return ours_text(cell.ours, cell.paper.decimals if cell.paper else 2), paper_text(cell.paper)


def chosen_text(summary: Summary | None) -> str:
    """The best of what was searched, as in `lr = 0.3`."""
    return ", ".join(f"{name} = {value:g}" for name, value in (summary.chosen if summary else {}).items())


def best_settings(table: Table) -> list[str]:
    """What was chosen for each row, and for each column where columns differ."""
    found = []
    for row in table.rows:
        chosen = {column: chosen_text(table.cells[row, column].ours) for column in table.columns}
        if len(set(filter(None, chosen.values()))) == 1:
            found.append(f"{row} {next(filter(None, chosen.values()))}")
        else:
            found += [f"{row}, {column}: {words}" for column, words in chosen.items() if words]
    return found


def markdown(table: Table) -> str:
    """One line a row: ours, then the paper's in italics."""
    lines = [["", *table.columns], ["---", *("---:" for _ in table.columns)]]
    for row in table.rows:
        lines.append([row, *(_markdown_cell(table.cells[row, column]) for column in table.columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def comma_separated(table: Table) -> str:
    """A line for each cell that holds anything, numbers in full."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_HEADER)
    for cell in table.cells.values():
        ours, paper = cell.ours, cell.paper
        if ours is None and paper is None:
            continue
        mine = (ours.mean, ours.deviation, ours.count, ours.diverged, chosen_text(ours)) if ours else (None,) * 5
        theirs = (paper.value, paper.spread, paper.seeds) if paper else (None,) * 3
        writer.writerow([cell.row, cell.column, *(_plain(value) for value in (*mine, *theirs))])
    return file.getvalue()


def latex(table: Table, caption: str) -> str:
    """A table for booktabs: below each row of ours, the paper's."""
    lines = [
        r"\begin{table}",
        rf"\caption{{{_escape(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(["", *(_escape(column) for column in table.columns)]) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [table.cells[row, column] for column in table.columns]
        if any(cell.ours for cell in cells):
            lines.append(_latex_row(_escape(row), [texts(cell)[0] for cell in cells]))
            if any(cell.paper for cell in cells):
                lines.append(_latex_row(r"\quad paper", [paper_text(cell.paper) for cell in cells]))
        else:
            lines.append(_latex_row(rf"{_escape(row)} (paper)", [paper_text(cell.paper) for cell in cells]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _markdown_cell(cell: Cell) -> str:
    ours, paper = texts(cell)
    return f"{ours} · *{paper}*" if cell.paper else ours


def _latex_row(title: str, cells: list[str]) -> str:
    return " & ".join([title, *(cell.replace("±", r"$\pm$") for cell in cells)]) + r" \\"


def _escape(words: str) -> str:
    return words.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")


def _with_spread(middle: float, spread: float | None, decimals: int) -> str:
    """Both with the same number of decimals, or as many as a small number needs."""
    size = abs(middle)
    if 0 < size < 0.1:
        decimals = max(decimals, min(12, 2 - math.floor(math.log10(size))))
    return f"{middle:.{decimals}f}" + ("" if spread is None else f" ± {spread:.{decimals}f}")


def _plain(value: object) -> object:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
