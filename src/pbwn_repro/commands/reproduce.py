"""`pbwn reproduce`: run the experiments of a table or figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from pbwn_repro.commands import (
    CacheDir,
    Cluster,
    DataDir,
    Devices,
    Jobs,
    Out,
    Preview,
    Retry,
    SummaryOnly,
    announce,
    format_estimate,
    note,
    option,
    print_plain,
)
from pbwn_repro.commands.names import artefacts as artefact_names
from pbwn_repro.commands.names import check_artefact, completing

if TYPE_CHECKING:
    from pbwn_repro.catalog import Artefact
    from pbwn_repro.planning import Best, Item, Request
    from pbwn_repro.runs.jobs import Job
    from pbwn_repro.runs.pools import Slots
    from pbwn_repro.runs.sweep import Pool, Sweep


def reproduce(
    artefact: Annotated[
        list[str],
        typer.Argument(
            metavar="ARTEFACT...",
            help="Tables and figures listed by `pbwn list`, or all.",
            autocompletion=completing("all", also=artefact_names),
        ),
    ],
    scale: Annotated[
        Literal["smoke", "short", "paper"],
        option("smoke (default): seconds, no download; short: fewer epochs; paper: the published protocol."),
    ] = "smoke",
    seeds: Annotated[
        int | None, option("Runs of each setting (default: as many as the scale defines).", metavar="N")
    ] = None,
    only: Annotated[
        list[str] | None,
        option(
            "Only these runs, such as method=pbwn,depth=20; repeat a name to allow several values.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    jobs: Jobs = None,
    out: Out = Path("runs"),
    data: Annotated[
        list[str] | None,
        option("Use this copy of a data set, such as cifar10=hf:FOLDER; may be repeated.", metavar="[NAME=]SOURCE"),
    ] = None,
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    device: Devices = "auto",
    cluster: Cluster = None,
    retry: Retry = False,
    quiet: SummaryOnly = False,
    dry_run: Preview = False,
) -> None:
    """Run everything that a table or figure needs: finished runs are kept, interrupted ones resumed.

    If an experiment repeats the best setting of a search with more seeds, those runs follow the search. Run the same
    command to resume; `pbwn report` then shows the result.
    """
    for name in artefact:
        if name != "all":
            check_artefact(name)
    if not quiet:
        announce(f"Planning the runs of {', '.join(artefact)} at the scale {scale} ...")
    from pbwn_repro.data.download import Quiet, Terminal
    from pbwn_repro.exit_codes import sweep_code
    from pbwn_repro.planning import Request, parse_only, plan_jobs, preview
    from pbwn_repro.runs.estimates import Speeds
    from pbwn_repro.runs.pools import slots
    from pbwn_repro.runs.resolution import Sources, parse_sources
    from pbwn_repro.runs.sweep import sweep
    from pbwn_repro.runs.view import view_for

    console = Console(stderr=True)
    request = Request(_artefacts(artefact), scale, seeds)
    request = replace(request, only=parse_only(only or (), request))
    for sentence in request.skipped():
        print_plain(console, sentence)
    copies = parse_sources(data or (), request.sets())
    data_dir, cache_dir = (None if folder is None else folder.resolve() for folder in (data_dir, cache_dir))
    sources = Sources(copies, data_dir, cache_dir, Quiet() if quiet else Terminal(console))
    available = slots(10**9, jobs=jobs, device=device if cluster is None else "auto")
    speeds = Speeds(out, cache_dir, available.devices[0])
    if not quiet:
        speeds.report = note
    request = replace(request, best=_best(request, out))
    if dry_run:
        show_preview(preview(request, out, sources, speeds), available, f"at the scale {scale} in {out}")
        return

    def run(planned: list[Job]) -> Sweep:
        return sweep(planned, pool_for(planned, cluster, jobs, device), view_for(console, quiet=quiet), retry=retry)

    first = plan_jobs(request, out.resolve(), sources, speeds)
    result = run(first)
    if not result.stopping and (best := _best(request, out)) != request.best:
        known = {job.path for job in first}
        planned = plan_jobs(replace(request, best=best), out.resolve(), sources, speeds)
        more = run([job for job in planned if job.path not in known])
        more.ended = [*result.ended, *more.ended]
        result = more
    summarise(result, out)
    raise typer.Exit(sweep_code(result))


def _best(request: Request, out: Path) -> Best:
    """Return the best settings found so far, for artefacts that repeat them with more seeds."""
    from pbwn_repro.catalog import TrainedArtefact

    searching = [each for each in request.artefacts if isinstance(each, TrainedArtefact) and each.seeds_at_best]
    if request.seeds is not None or not searching or not out.exists():
        return {}
    from pbwn_repro.report.cells import best_settings, labelled
    from pbwn_repro.report.runs import read_runs

    runs, _ = read_runs(out)
    scale = request.scale
    return {each.name: best_settings(each, scale, labelled(each, scale, runs)[0]) for each in searching}


def pool_for(planned: Sequence[Job], cluster: str | None, jobs: int | None, device: str) -> Pool:
    """Return the pool that runs the jobs: processes on this machine, or a Ray cluster."""
    from pbwn_repro.runs.pools import LocalPool, RayPool, slots

    if cluster is not None:
        return RayPool(cluster, device=device, jobs=jobs)
    missing = sum(job.state != "done" and not job.alone for job in planned)
    return LocalPool(slots(missing, jobs=jobs, device=device))


def show_preview(items: Sequence[Item], available: Slots, where: str) -> None:
    """Print what a sweep would do: each run with its state, time and size on disk."""
    from pbwn_repro.engine.reporting import duration
    from pbwn_repro.runs.pools import wall_seconds

    table = Table("run", "state", "time", "on disk", box=None, pad_edge=False)
    table.columns[2].justify = table.columns[3].justify = "right"
    for item in items:
        size = f"{item.bytes / 1e6:,.0f} MB" if item.bytes else ""
        table.add_row(item.title, item.state, format_estimate(item.seconds / available.speedup), size)
    console = Console()
    console.print(table)
    remaining = [item for item in items if item.state not in ("done", "diverged")]
    each = [item.seconds for item in remaining]
    seconds = wall_seconds(sum(each), max(each, default=0), available)
    time = f"about {duration(seconds)} with {available.count} at a time, " if seconds >= 1 else ""
    megabytes = sum(item.bytes for item in remaining) / 1e6
    print_plain(
        console,
        f"\n{len(remaining)} of {len(items)} runs left to do {where}: {time}{megabytes:,.0f} MB on disk. "
        "Nothing was written.",
    )


def _artefacts(names: list[str]) -> list[Artefact]:
    from pbwn_repro import catalog

    named = [catalog.find(name) for name in dict.fromkeys(names) if name != "all"]
    return list(catalog.ARTEFACTS.values()) if "all" in names else named


def summarise(result: Sweep, out: Path) -> None:
    """Print which runs failed or diverged, and how many are done."""
    from pbwn_repro.runs.jobs import LOG
    from pbwn_repro.runs.view import described

    for job, ending in result.having("diverged", "failed", "killed", "busy"):
        log = job.path / LOG
        where = f" (log: {log})" if ending.kind != "diverged" and log.exists() else ""
        print(f"{job.title}: {described(ending)}{where}")
    advice = [ending.message.partition(". ")[2].rpartition(". ")[2] for _, ending in result.having("diverged")]
    changes = [ending.message for _, ending in result.having("existing")]
    for sentence in filter(None, dict.fromkeys([*advice, *changes])):
        print(sentence)
    before, now = len(result.having("existing")), len(result.having("done"))
    total = len(result.ended) + len(result.waiting)
    runs = "run" if total == 1 else "runs"
    print(f"{before + now} of {total} {runs} done{f' ({before} from before)' if before else ''}, in {out}")
    if result.stopping:
        print("stopped on request; run the same command to resume")
