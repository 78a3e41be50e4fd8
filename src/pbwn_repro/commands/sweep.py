"""`pbwn sweep`: a grid of methods, learning rates and weight decays, for any model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pbwn_repro.commands import (
    MODEL,
    CacheDir,
    Cluster,
    ConfigFile,
    Data,
    DataDir,
    Devices,
    Fields,
    Jobs,
    Out,
    Preview,
    Retry,
    SummaryOnly,
    announce,
    note,
    option,
)
from pbwn_repro.commands.names import check_data_set
from pbwn_repro.commands.reproduce import pool_for, show_preview, summarise
from pbwn_repro.commands.train import warn
from pbwn_repro.errors import UsageError


def sweep(
    model: Annotated[str, MODEL],
    data: Data = None,
    methods: Annotated[
        str, option("Methods, as pbwn train takes them (default normal,pbwn).", metavar="NAMES")
    ] = "normal,pbwn",
    rates: Annotated[str | None, option("Learning rates; the recipe's own if not given.", metavar="X,X")] = None,
    decays: Annotated[str | None, option("Weight decays; the recipe's own if not given.", metavar="X,X")] = None,
    seeds: Annotated[int, option("Runs of each setting (default 1).", metavar="N", least=1)] = 1,
    epochs: Annotated[
        int | None, option("Length of each run; your own model needs this or --steps.", metavar="N")
    ] = None,
    steps: Annotated[int | None, option("Length of each run in steps, instead of epochs.", metavar="N")] = None,
    batch_size: Annotated[int | None, option("Batch size.", metavar="N")] = None,
    config: ConfigFile = None,
    set_: Fields = None,
    jobs: Jobs = None,
    out: Out = Path("runs"),
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    device: Devices = "auto",
    cluster: Cluster = None,
    retry: Retry = False,
    quiet: SummaryOnly = False,
    dry_run: Preview = False,
) -> None:
    """Train every combination of methods, learning rates, weight decays and seeds: the same search for each method.

    The runs are those of `pbwn train`, in the same folders. Run the same command to resume. `pbwn report`
    then shows the best setting of each method and how strongly each depends on the learning rate.
    """
    if data is not None:
        check_data_set(data)
    if not quiet:
        announce("Planning the runs ...")
    from pbwn_repro.exit_codes import sweep_code
    from pbwn_repro.planning import Grid, Item, grid_jobs
    from pbwn_repro.runs.estimates import Speeds
    from pbwn_repro.runs.pools import slots
    from pbwn_repro.runs.resolution import read_wishes
    from pbwn_repro.runs.sweep import sweep as run_all
    from pbwn_repro.runs.view import view_for

    _refuse_axes(set_ or [], rates=rates, decays=decays)
    given = {"model": model, "data": data, "epochs": epochs, "steps": steps, "batch_size": batch_size}
    chosen = {name: value for name, value in given.items() if value is not None}
    grid = Grid(
        read_wishes(config, set_ or [], chosen),
        _listed("--methods", methods, str),
        _listed("--rates", rates, float),
        _listed("--decays", decays, float),
        seeds,
    )
    data_dir, cache_dir = (None if folder is None else folder.resolve() for folder in (data_dir, cache_dir))
    places = slots(10**9, jobs=jobs, device=device if cluster is None else "auto")
    speeds = Speeds(out, cache_dir, places.devices[0])
    if not quiet:
        speeds.tell = note
    made, estimate = grid_jobs(grid, out.resolve(), speeds, data_dir=data_dir, cache_dir=cache_dir)
    if dry_run:
        items = [Item(job.title, job.state, estimate.seconds, estimate.bytes, job.path) for job in made]
        show_preview(items, places, f"in {out}")
        return
    if not quiet:
        warn(made[0].config)
    view = view_for(Console(stderr=True), quiet=quiet)
    result = run_all(made, pool_for(made, cluster, jobs, device), view, retry=retry)
    summarise(result, out)
    if not quiet and result.having("there", "done"):
        typer.echo(f"`pbwn report {out}` shows them")
    raise typer.Exit(sweep_code(result))


def _refuse_axes(assignments: list[str], **given: str | None) -> None:
    """Refuse a field by --set that the grid sets too."""
    options = {"seed": "--seeds", "method": "--methods"}
    options |= {"optimizer.lr": "--rates", "lr": "--rates"} if given["rates"] else {}
    options |= {"optimizer.weight_decay": "--decays", "weight_decay": "--decays"} if given["decays"] else {}
    for assignment in assignments:
        field = assignment.partition("=")[0]
        if field in options:
            raise UsageError(f"--set {assignment}: {options[field]} decides on {field}; leave one of the two out")


def _listed(name: str, text: str | None, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """What an option lists, separated by commas, each once."""
    try:
        found = tuple(dict.fromkeys(kind(word.strip()) for word in (text or "").split(",") if word.strip()))
    except ValueError:
        raise UsageError(f"{name} {text!r}: write numbers with commas between them, such as 0.1,0.3,1") from None
    if text is not None and not found:
        raise UsageError(f"{name} {text!r}: nothing is listed")
    return found
