"""`pbwn sweep`: a grid of methods, learning rates and weight decays for any model."""

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
        str, option("Methods, as for pbwn train (default: normal,pbwn).", metavar="NAMES")
    ] = "normal,pbwn",
    rates: Annotated[str | None, option("Learning rates (default: that of the recipe).", metavar="X,X")] = None,
    decays: Annotated[str | None, option("Weight decays (default: that of the recipe).", metavar="X,X")] = None,
    seeds: Annotated[int, option("Runs of each setting (default: 1).", metavar="N", minimum=1)] = 1,
    epochs: Annotated[
        int | None, option("Length of each run; required for your own model, unless --steps is given.", metavar="N")
    ] = None,
    steps: Annotated[int | None, option("Length of each run in steps instead of epochs.", metavar="N")] = None,
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

    The runs are the same as those of `pbwn train`, in the same folders. Run the same command to resume. `pbwn report`
    then shows the best setting of each method and how strongly each method depends on the learning rate.
    """
    if data is not None:
        check_data_set(data)
    if not quiet:
        announce("Planning the runs ...")
    from pbwn_repro.exit_codes import sweep_code
    from pbwn_repro.planning import Grid, Item, grid_jobs
    from pbwn_repro.runs.estimates import Speeds
    from pbwn_repro.runs.pools import slots
    from pbwn_repro.runs.resolution import read_overrides
    from pbwn_repro.runs.sweep import sweep as run_all
    from pbwn_repro.runs.view import view_for

    _refuse_axes(set_ or [], rates=rates, decays=decays)
    given = {"model": model, "data": data, "epochs": epochs, "steps": steps, "batch_size": batch_size}
    chosen = {name: value for name, value in given.items() if value is not None}
    grid = Grid(
        read_overrides(config, set_ or [], chosen),
        _parse_list("--methods", methods, str),
        _parse_list("--rates", rates, float),
        _parse_list("--decays", decays, float),
        seeds,
    )
    data_dir, cache_dir = (None if folder is None else folder.resolve() for folder in (data_dir, cache_dir))
    available = slots(10**9, jobs=jobs, device=device if cluster is None else "auto")
    speeds = Speeds(out, cache_dir, available.devices[0])
    if not quiet:
        speeds.report = note
    planned, estimate = grid_jobs(grid, out.resolve(), speeds, data_dir=data_dir, cache_dir=cache_dir)
    if dry_run:
        items = [Item(job.title, job.state, estimate.seconds, estimate.bytes, job.path) for job in planned]
        show_preview(items, available, f"in {out}")
        return
    if not quiet:
        warn(planned[0].config)
    view = view_for(Console(stderr=True), quiet=quiet)
    result = run_all(planned, pool_for(planned, cluster, jobs, device), view, retry=retry)
    summarise(result, out)
    if not quiet and result.having("existing", "done"):
        typer.echo(f"Run `pbwn report {out}` to see the results")
    raise typer.Exit(sweep_code(result))


def _refuse_axes(assignments: list[str], **given: str | None) -> None:
    """Raise if --set assigns a field that the grid varies."""
    options = {"seed": "--seeds", "method": "--methods"}
    options |= {"optimizer.lr": "--rates", "lr": "--rates"} if given["rates"] else {}
    options |= {"optimizer.weight_decay": "--decays", "weight_decay": "--decays"} if given["decays"] else {}
    for assignment in assignments:
        field = assignment.partition("=")[0]
        if field in options:
            raise UsageError(f"--set {assignment}: {options[field]} also sets {field}; remove one of the two")


def _parse_list(name: str, text: str | None, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """Parse an option's comma-separated values, without duplicates."""
    try:
        values = tuple(dict.fromkeys(kind(word.strip()) for word in (text or "").split(",") if word.strip()))
    except ValueError:
        raise UsageError(f"{name} {text!r}: write comma-separated numbers, such as 0.1,0.3,1") from None
    if text is not None and not values:
        raise UsageError(f"{name} {text!r}: the list is empty")
    return values
