"""`pbwn demo`: the five methods on handwritten digits, in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from pbwn_repro.errors import UsageError

if TYPE_CHECKING:
    from pbwn_repro.catalog import Scale
    from pbwn_repro.report.model import Section


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the runs and the report go.")] = Path("runs/demo"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the table alone.")] = False,
) -> None:
    """Compare the five methods on handwritten digits: three seeds, about a minute, no download.

    Called again, it shows what is there; cut off, it goes on.
    """
    compare(out, "short", quiet=quiet)


def compare(out: Path, scale: Scale, *, quiet: bool) -> None:
    """Make the demo's runs that are missing at a scale, and show all of them."""
    from pbwn_repro.catalog import find
    from pbwn_repro.exit_codes import DONE, sweep_code
    from pbwn_repro.planning import plan_jobs
    from pbwn_repro.report.page import write
    from pbwn_repro.report.sections import collect
    from pbwn_repro.runs.packing import slots
    from pbwn_repro.runs.pools import LocalPool
    from pbwn_repro.runs.resolution import Sources
    from pbwn_repro.runs.sweep import sweep
    from pbwn_repro.runs.view import described, view_for

    console = Console(stderr=True)
    artefact = find("demo")
    jobs = plan_jobs([artefact], scale, out.resolve(), Sources())
    missing = sum(job.state != "done" for job in jobs)
    made = sweep(jobs, LocalPool(slots(missing)), view_for(console, quiet=quiet))
    code = sweep_code(made)
    for job, ending in made.having("diverged", "failed", "killed", "busy"):
        console.print(f"{job.title}: {described(ending)}", markup=False, highlight=False, soft_wrap=True)
    if code != DONE:
        console.print("the demo is not complete; the same command goes on", highlight=False)
        raise typer.Exit(code)
    report = collect(out)
    for path, reason in report.left_out.items():
        console.print(f"left out: {path}: {reason}", markup=False, highlight=False, soft_wrap=True)
    shown = [each for each in report.sections if each.artefact is artefact and each.scale == scale and each.table]
    if not shown:
        raise UsageError(f"{out} holds no run that can be shown: remove it, or choose another folder with --out")
    Console().print(_table(shown[0]))
    page = out / "report.html"
    if made.having("done") or not page.exists():  # drawing takes longer than looking at what is there
        with console.status("drawing the report ..."):
            write(report)
    typer.echo(f"Report: {page}")


def _table(section: Section) -> Table:
    from pbwn_repro.report.markdown import ours_text

    found = section.table
    assert found is not None
    table = Table(title=f"{section.artefact.title}, mean ± deviation (runs)", title_justify="left")
    table.add_column("method")
    for column in found.columns:
        table.add_column(column.title, justify="right")
    for row in found.rows:
        table.add_row(row.title, *(ours_text(found.cells[row.key, column].ours) for column in found.columns))
    return table
