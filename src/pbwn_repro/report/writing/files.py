"""Writing a report, by default into the folder that its runs are in."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

from pbwn_repro.report.model import Report
from pbwn_repro.report.writing.markdown import title, whole
from pbwn_repro.report.writing.page import page
from pbwn_repro.report.writing.tables import comma_separated, latex, markdown
from pbwn_repro.report.writing.views import anchor, drawings, finished


def write(report: Report) -> Path:
    """Write the report beside its runs; returns the path of its page."""
    return write_files(report)[0]


def write_files(
    report: Report, place: Path | None = None, tell: Callable[[str], None] = lambda doing: None
) -> list[Path]:
    """Write page, Markdown, tables and figures, beside the runs or elsewhere; returns the files, the page first.

    `tell` hears what is being made.
    """
    if not finished(report):
        found = "".join(f"\n  {path.relative_to(report.root)}: {reason}" for path, reason in report.left_out.items())
        unusable = f" These were found and cannot be used:{found}" if found else ""
        raise ValueError(
            f"{report.root} holds no finished runs of a table or figure: make some with pbwn reproduce.{unusable}"
        )
    place = place or report.root
    tell("report.html")
    files = [_written(place / "report.html", page(report)), _written(place / "report.md", whole(report))]
    for section in finished(report):
        tell(f"tables and figures of {anchor(section)}")
        if section.table is not None:
            tables, name = place / "tables", anchor(section)
            files.append(_written(tables / f"{name}.md", markdown(section.table)))
            files.append(_written(tables / f"{name}.csv", comma_separated(section.table)))
            files.append(_written(tables / f"{name}.tex", latex(section.table, title(section))))
        for drawing in chain(*drawings(section)):
            files += drawing.write(place / "figures")
    return files


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
