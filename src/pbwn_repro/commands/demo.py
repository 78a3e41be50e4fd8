"""`pbwn demo`: figure 2a of the paper in miniature, with a control, in about a minute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from pbwn_repro.commands import print_plain, program
from pbwn_repro.errors import UsageError

if TYPE_CHECKING:
    from pbwn_repro.catalog import Scale
    from pbwn_repro.report.model import Section
    from pbwn_repro.runs.jobs import Job

    Errors = Mapping[tuple[str, str, float], float]  # by method, network and learning rate: the mean over seeds

IMAGES = 360  # in the test set: one image is 0.28 points
NOISE = 2 * 100 / IMAGES  # points: two images


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the runs and the report.")] = Path(
        "runs/demo"
    ),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the tables.")] = False,
) -> None:
    """Train an MLP on handwritten digits with and without PBWN, over learning rates: about a minute, no download.

    Run the same command to resume after an interruption, or to show the result again.
    """
    compare(out, "short", quiet=quiet)


def compare(out: Path, scale: Scale, *, quiet: bool) -> None:
    """Do the demo's missing runs at a scale, and show the results of all of them."""
    console = Console(stderr=True)
    if not quiet:
        print_plain(
            console, "An MLP on 1,437 handwritten digits: normal training, PBWN, and unit norms at the start only."
        )
    from pbwn_repro.catalog import find
    from pbwn_repro.exit_codes import DONE, NON_FINITE, sweep_code
    from pbwn_repro.planning import Request, plan_jobs
    from pbwn_repro.report.page import write
    from pbwn_repro.report.sections import collect
    from pbwn_repro.runs.pools import LocalPool, slots
    from pbwn_repro.runs.resolution import Sources
    from pbwn_repro.runs.sweep import sweep
    from pbwn_repro.runs.view import described, view_for

    artefact = find("demo")
    jobs = [_titled(job) for job in plan_jobs(Request([artefact], scale), out.resolve(), Sources())]
    missing = sum(job.state != "done" for job in jobs)
    made = sweep(jobs, LocalPool(slots(missing)), view_for(console, quiet=quiet))
    code = sweep_code(made)
    for job, ending in made.having("failed", "killed", "busy"):
        print_plain(console, f"{job.title}: {described(ending)}")
    if code not in (DONE, NON_FINITE):  # that a learning rate is too high is a result
        print_plain(console, "The demo is not complete: run the same command again to resume.")
        raise typer.Exit(code)
    report = collect(out)
    for path, reason in report.left_out.items():
        print_plain(console, f"left out: {path}: {reason}")
    shown = [each for each in report.sections if each.artefact is artefact and each.scale == scale and each.table]
    if not shown:
        raise UsageError(f"{out} holds no runs that can be shown: remove it, or choose another folder with --out")
    errors = errors_of(shown[0])
    sentences = list(conclusions(errors))
    screen = Console()
    for title, table in _tables(errors):
        screen.print(f"\n{title}: test error (%) by learning rate", highlight=False)
        screen.print(table)
    for sentence in sentences:
        screen.print(f"\n{sentence.replace('pbwn reproduce', f'{program()} reproduce')}", highlight=False)
    screen.print()
    page = out / "report.html"
    remarks = out / artefact.name / scale / "remarks.md"
    text = "\n\n".join(sentences) + "\n"
    if made.having("done") or not page.exists() or not remarks.exists() or remarks.read_text() != text:
        remarks.write_text(text)
        with console.status("drawing the report ..."):
            write(collect(out))
    typer.echo(f"Report: {page}")


def _titled(job: Job) -> Job:
    """Return the job with a title that does not assume knowledge of the catalog's names."""
    from pbwn_repro.methods import title
    from pbwn_repro.runs.jobs import TrainingJob

    assert isinstance(job, TrainingJob)
    config = job.config
    network = "with batch norm" if config.model_options["normalisation"] == "batch" else "without batch norm"
    return replace(job, title=f"{title(config.method)} {network}, lr {config.optimizer.lr:g}, seed {config.seed}")


def errors_of(section: Section) -> Errors:
    """Return the mean test error of each setting, infinite if a run diverged."""
    errors = section.ended.test_error.where(section.ended.state == "done", float("inf"))
    means = section.ended.assign(error=errors).groupby(["method", "normalisation", "lr"]).error.mean()
    return {(str(method), str(network), float(rate)): float(error) for (method, network, rate), error in means.items()}


def conclusions(errors: Errors) -> Iterator[str]:
    """Yield the conclusions for each network, and then how far they can be trusted."""
    from pbwn_repro.catalog.demo import METHODS, NETWORKS

    for network, title in NETWORKS.items():
        best = {method: min(_by_rate(errors, method, network).values()) for method in METHODS}
        pbwn, start, normal = (_percent(best[method]) for method in ("pbwn", "unit-start", "normal"))
        yield (
            f"{title}, each at its best learning rate, PBWN reaches a test error of {pbwn}, the unit-norm start alone "
            f"{start} and normal training {normal}. {_conclusion(best)}"
        )
    yield (
        f"One of the {IMAGES} test images is {100 / IMAGES:.2f} points: differences of up to two images count as "
        "noise, and two seeds of one setting can differ by more. The paper's networks and data: "
        "pbwn reproduce figure-2a --scale paper."
    )


def _conclusion(best: Mapping[str, float]) -> str:
    """Whether PBWN gains at the best rate, and whether the start alone explains it."""

    def lower(one: str, other: str) -> bool:
        return best[one] < best[other] - NOISE

    if lower("normal", "pbwn"):
        return "PBWN is worse than normal training."
    if not lower("pbwn", "normal"):
        apart = lower("unit-start", "normal") or lower("normal", "unit-start")
        return "PBWN and normal training are equal within noise." if apart else "All three are equal within noise."
    if not lower("pbwn", "unit-start"):
        return "The start alone explains the gain, not the constraint."
    if lower("unit-start", "normal"):
        return "The start explains a part of the gain, the constraint the rest."
    return "The constraint explains the gain: the start alone does not produce it."


def _percent(error: float) -> str:
    return f"{error:.1f} %" if isfinite(error) else "none (it diverges at every rate)"


def _by_rate(errors: Errors, method: str, network: str) -> dict[float, float]:
    return {rate: error for (one, other, rate), error in errors.items() if (one, other) == (method, network)}


def _tables(errors: Errors) -> Iterator[tuple[str, Table]]:
    from pbwn_repro.catalog.demo import DEMO, METHODS, NETWORKS

    assert DEMO.table is not None
    for network, title in NETWORKS.items():
        table = Table()
        table.add_column("method")
        rates = sorted(_by_rate(errors, METHODS[0], network))
        for rate in rates:
            table.add_column(f"{rate:g}", justify="right")
        for method in METHODS:
            by_rate = _by_rate(errors, method, network)
            cells = ("diverged" if by_rate[rate] == float("inf") else f"{by_rate[rate]:.1f}" for rate in rates)
            table.add_row(DEMO.table.rows[method], *cells)
        yield title, table
