"""Writing a report into the folder that its runs are in."""

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
    """Write the report; returns the path of its page."""
    return write_files(report)[0]


def write_files(report: Report, tell: Callable[[str], None] = lambda doing: None) -> list[Path]:
    """Write page, Markdown, tables and figures; returns the files, the page first. `tell` hears what is being made."""
    if not finished(report):
        found = "".join(f"\n  {path.relative_to(report.root)}: {reason}" for path, reason in report.left_out.items())
        unusable = f" These were found and cannot be used:{found}" if found else ""
        raise ValueError(
            f"{report.root} holds no finished runs of a table or figure: make some with pbwn reproduce.{unusable}"
        )
    tell("report.html")
    files = [_written(report.root / "report.html", page(report)), _written(report.root / "report.md", whole(report))]
    for section in finished(report):
        tell(f"tables and figures of {anchor(section)}")
        if section.table is not None:
            place = report.root / "tables" / anchor(section)
            files.append(_written(place.with_name(f"{place.name}.md"), markdown(section.table)))
            files.append(_written(place.with_name(f"{place.name}.csv"), comma_separated(section.table)))
            files.append(_written(place.with_name(f"{place.name}.tex"), latex(section.table, title(section))))
        for drawing in chain(*drawings(section)):
            files += drawing.write(report.root / "figures")
    return files


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
