"""`pbwn report`: turn run folders into a page, tables and figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pbwn_repro.errors import UsageError

if TYPE_CHECKING:
    from pbwn_repro.report.model import Section


def report(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="Folder with the run folders.")] = Path("runs"),
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for the report (default: that of the runs).", show_default=False),
    ] = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write the figures as PDF.")] = False,
) -> None:
    """Write report.html, report.md, tables (Markdown, CSV, LaTeX) and figures (SVG) from run folders.

    Runs of `pbwn train` are included, grouped by model and data set. Damaged runs are listed and left out.
    """
    status = Console(stderr=True).status("reading runs ...")
    with status:
        from pbwn_repro.report.page import write_files
        from pbwn_repro.report.sections import collect

        collected = collect(runs)
        if not collected.sections and not collected.left_out and (runs / "runs").is_dir():
            raise UsageError(f"{runs} holds no runs: did you mean {runs / 'runs'}?")
        files = write_files(collected, out, progress=lambda name: status.update(f"writing {name} ..."), pdf=pdf)
    console = Console(highlight=False, soft_wrap=True)
    for section in collected.sections:
        console.print(_summary(section), markup=False)
    for path, reason in collected.left_out.items():
        console.print(f"left out: {path.relative_to(runs)}: {reason}", markup=False)
    kinds = Counter(f"{file.parent.name}/*{file.suffix}" for file in files[2:])
    console.print(
        "\nWritten:", *(f"  {(out or runs) / kind} ({count})" for kind, count in kinds.items()), sep="\n", markup=False
    )
    console.print(*(f"  {file}" for file in reversed(files[:2])), sep="\n", markup=False)


def _summary(section: Section) -> str:
    """Summarise the runs and claims of a section in one line."""
    from pbwn_repro.report.model import in_words

    runs = "measured" if section.measurement else f"{len(section.runs)} {'run' if len(section.runs) == 1 else 'runs'}"
    missing = f", {len(section.missing)} missing" if section.missing else ""
    outcomes = Counter(in_words(claim.outcome, preliminary=claim.preliminary) for claim in section.claims)
    claims = "; ".join(f"{outcome}: {count}" for outcome, count in outcomes.items())
    name = section.title if section.is_own else section.anchor
    return f"{name}: {runs}{missing}" + (f" (claims: {claims})" if claims else "")
