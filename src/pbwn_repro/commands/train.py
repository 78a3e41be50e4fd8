"""`pbwn train`: start or resume one run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pbwn_repro.commands import (
    MODEL,
    RESOURCES,
    SETTINGS,
    CacheDir,
    ConfigFile,
    Data,
    DataDir,
    Fields,
    Out,
    announce,
    note,
    option,
)
from pbwn_repro.commands.names import check_data_set, completing, methods


def train(
    model: Annotated[str | None, MODEL] = None,
    data: Data = None,
    method: Annotated[
        str | None,
        option(
            "pbwn (default), pbwn-t<k>, pbwn-epoch, pbwn-riem, pbwn-tangent, pbwn-angle, normal, unit-start, wn, "
            "max-norm-<c> and others (an unknown name lists them all), or MODULE:CLASS for your own.",
            metavar="NAME",
            completion=completing(also=methods),
        ),
    ] = None,
    epochs: Annotated[
        int | None, option("Length of the run; required for your own model, unless --steps is given.", metavar="N")
    ] = None,
    steps: Annotated[int | None, option("Length of the run in steps instead of epochs.", metavar="N")] = None,
    batch_size: Annotated[int | None, option("Batch size, over all processes.", metavar="N")] = None,
    lr: Annotated[float | None, option("Initial learning rate.", metavar="X")] = None,
    weight_decay: Annotated[float | None, option("Weight decay.", metavar="X")] = None,
    seed: Annotated[int | None, option("Random seed (default: 1).", metavar="N")] = None,
    accumulation: Annotated[
        int | None, option("Number of parts that each batch is split into.", metavar="N", panel=SETTINGS)
    ] = None,
    labels: Annotated[
        int | None, option("Number of labelled examples, for the Ladder network.", metavar="N", panel=SETTINGS)
    ] = None,
    init: Annotated[
        Literal["paper", "authors", "lecun"] | None,
        option("Initialisation: paper (default), authors (as in their code) or lecun.", metavar="NAME", panel=SETTINGS),
    ] = None,
    scope: Annotated[
        Literal["paper", "authors"] | None,
        option("Constrained layers: paper (default) or authors (as in their code).", metavar="NAME", panel=SETTINGS),
    ] = None,
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        option("float32 (default), or mixed precision: bfloat16, float16.", metavar="DTYPE", panel=SETTINGS),
    ] = None,
    compile: Annotated[bool | None, option("Compile the model.", "--compile", panel=SETTINGS)] = None,
    evaluate_every: Annotated[
        int | None, option("Steps between evaluations (default: an epoch).", metavar="N", panel=SETTINGS)
    ] = None,
    checkpoint_every: Annotated[
        int | None, option("Steps between checkpoints (default: an epoch).", metavar="N", panel=SETTINGS)
    ] = None,
    log_every: Annotated[
        int | None, option("Steps between lines in metrics.jsonl.", metavar="N", panel=SETTINGS)
    ] = None,
    on_nonfinite: Annotated[
        Literal["stop", "skip"] | None,
        option(
            "If the loss or a gradient is not finite: stop (default) or skip the step.", metavar="WHAT", panel=SETTINGS
        ),
    ] = None,
    shard: Annotated[
        bool | None, option("Shard the weights over processes (FSDP2).", "--shard", panel=SETTINGS)
    ] = None,
    config: ConfigFile = None,
    set_: Fields = None,
    out: Out = Path("runs"),
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    device: Annotated[
        str, option("cpu, cuda or cuda:1 (default: a GPU, if there is one).", metavar="DEVICE", panel=RESOURCES)
    ] = "auto",
    threads: Annotated[
        int | None,
        option("CPU threads; use 1 if several runs share the machine.", metavar="N", minimum=1, panel=RESOURCES),
    ] = None,
    workers: Annotated[
        int,
        option(
            "Processes that decode images of data sets that do not fit into memory (default: 4).",
            metavar="N",
            minimum=0,
            panel=RESOURCES,
        ),
    ] = 4,
    tensorboard: Annotated[
        bool, option("Write TensorBoard event files into the run folder.", "--tensorboard", panel=SETTINGS)
    ] = False,
    monitor: Annotated[
        int | None,
        option(
            "Record what the projection does every N steps, in monitor.jsonl.",
            metavar="N",
            minimum=1,
            panel=SETTINGS,
        ),
    ] = None,
    quiet: Annotated[bool, option("Print only the result.", "--quiet", "-q")] = False,
    dry_run: Annotated[
        bool, option("Show the configuration, constrained weights and an estimate, without training.", "--dry-run")
    ] = False,
) -> None:
    """Train one model, the paper's or your own.

    Run the same command to resume an interrupted run; a finished one is not run again.
    Options that are not given come from the paper's recipe for the model. To train with several processes:
    torchrun --nproc-per-node 2 -m pbwn_repro train ...
    """
    chosen = {name: value for name, value in locals().items() if name not in _NOT_FIELDS and value is not None}
    if data is not None:
        check_data_set(data)
    if not quiet:
        announce("Preparing the run ...")
    from pbwn_repro.runs.resolution import read_overrides, resolve, validate

    overrides = read_overrides(config, set_ or [], chosen)
    overrides.pop("processes", None)
    validate(overrides)  # before the slow imports, so that a mistyped setting is reported at once
    import torch

    from pbwn_repro.engine.processes import join_processes, keep_freed_memory
    from pbwn_repro.runs.estimates import Speeds
    from pbwn_repro.runs.execution import execute
    from pbwn_repro.runs.folder import RunFolder
    from pbwn_repro.runs.pools import find_device
    from pbwn_repro.tasks import metric_of

    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    with join_processes(find_device(device)) as group:
        resolved, dataset = resolve(overrides, data_dir=data_dir, cache_dir=cache_dir, processes=group.count)
        folder = RunFolder.of(resolved, out)
        folder.refuse_outdated(resolved)
        if dry_run:
            _show(resolved, dataset, folder, group, Speeds(out, cache_dir, str(group.device), report=note))
            return
        if group.is_first and not quiet:
            warn(resolved)
        reporter = _reporter(folder, quiet=quiet or not group.is_first, tensorboard=tensorboard and group.is_first)
        result = execute(resolved, dataset, folder, group, reporter, workers=workers, monitor=monitor)
        if group.is_first:
            metric = metric_of(resolved)
            print(f"{resolved.run_name}: {metric.words} {metric.format(result[metric.name])}  ({folder.path})")


# Options that set how and where a run is executed; the others are fields of its configuration.
_NOT_FIELDS = (
    *("config", "set_", "out", "data_dir", "cache_dir", "device", "threads", "workers", "tensorboard", "monitor"),
    *("quiet", "dry_run"),
)


def warn(config: Any) -> None:
    """Warn about settings that are probably unintended."""
    drops = getattr(config.schedule, "drops", ())
    late = [drop for drop in drops if config.epochs is not None and drop > config.epochs]
    if late:
        epochs = ", ".join(map(str, late))
        print(f"the learning rate drops in epoch {epochs}, after the run ends: see schedule.drops", file=sys.stderr)


def _reporter(folder: Any, *, quiet: bool, tensorboard: bool) -> Any:
    from pbwn_repro.engine.reporting import Bar, Lines, MultiReporter, Quiet, TensorBoard

    first = Quiet() if quiet else Bar() if sys.stderr.isatty() else Lines()
    return MultiReporter(first, TensorBoard(folder.path / "tensorboard")) if tensorboard else first


def _show(config: Any, dataset: Any, folder: Any, group: Any, speeds: Any) -> None:
    from pbwn_repro.engine.reporting import duration
    from pbwn_repro.engine.training import Training
    from pbwn_repro.runs.folder import to_json

    training = Training(config, dataset, group).prepared()
    estimate = speeds.estimate(config, dataset)
    print(to_json(config.document).decode())
    print(training.projection or "no weight is constrained by a projection")
    print(
        f"\n{training.total_steps:,} steps, about {duration(estimate.seconds)} on one core or GPU of this machine; "
        f"{estimate.bytes / 1e6:,.0f} MB on disk\n{folder.path} ({folder.state})"
    )
