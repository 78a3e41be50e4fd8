"""Execute one run in its folder: skip it if finished, resume it if interrupted, else start it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pbwn_repro.config import RunConfig
from pbwn_repro.engine.checkpoint import Checkpoint, CheckpointStore
from pbwn_repro.engine.finite import NonFiniteError
from pbwn_repro.engine.log import MetricsLog, NoLog
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.reporting import Reporter
from pbwn_repro.engine.signals import Interrupted
from pbwn_repro.engine.training import Progress, Training
from pbwn_repro.errors import UsageError
from pbwn_repro.runs.environment import differences, environment, own_code
from pbwn_repro.runs.folder import RunFolder, to_json, write_atomically
from pbwn_repro.tasks import AnySet, metric_of


def execute(
    config: RunConfig,
    dataset: AnySet,
    folder: RunFolder,
    processes: Processes,
    reporter: Reporter,
    *,
    workers: int = 0,
    monitor: int | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Train and return the result, or return the existing result of a finished run. Only the first process writes.

    `monitor` is the number of steps between records of the projection's monitor. `on_stage` is called between the
    stages of writing a checkpoint.
    """
    check_data(config, dataset)
    found = _existing_result(config, folder, reporter) if processes.is_first else None
    existing: dict[str, Any] | None = processes.broadcast(found)
    if existing is not None:
        return existing
    # Before the folder is created, so that a configuration that cannot be built leaves no files.
    training = Training(config, dataset, processes, workers=workers)
    with folder.locked() if processes.is_first else nullcontext():
        claimed = folder.claim(config, reporter.message) if processes.is_first else None
        config = training.config = processes.broadcast(claimed)
        if processes.is_first:
            folder.diverged.unlink(missing_ok=True)
            _record_environment(folder, environment(processes.device, dataset, config), reporter)
        store = CheckpointStore(folder.checkpoints, config.hash, on_stage=on_stage)
        checkpoint = processes.broadcast(_open_checkpoint(store, folder, reporter) if processes.is_first else None)
        position = 0 if checkpoint is None else Progress.read(checkpoint.files["progress.json"]).metrics_bytes
        metrics = MetricsLog(folder.metrics, position) if processes.is_first else NoLog()
        # Timings are always appended, whatever the checkpoint: they are not part of the result.
        timing = MetricsLog(folder.timing, _size(folder.timing)) if processes.is_first else NoLog()
        monitored = _monitor_log(folder, checkpoint) if monitor and processes.is_first else NoLog()
        try:
            if monitor:
                training.monitor(monitor, monitored)
            finished = training.run(store, metrics, timing, reporter, checkpoint)
        except NonFiniteError as error:
            if processes.is_first:
                folder.record_divergence(error.step, str(error))
            raise
        except Interrupted:
            raise Interrupted(f"stopped and saved in {folder.path}; run the same command to resume") from None
        finally:
            metrics.close()
            timing.close()
            monitored.close()
        if processes.is_first:
            write_atomically(folder.model, finished.model)
            store.prune(keep=1)
            write_atomically(folder.result, to_json(finished.result))  # last: where it is, the run is complete
        return finished.result


def _existing_result(config: RunConfig, folder: RunFolder, reporter: Reporter) -> dict[str, Any] | None:
    """Return the result of a finished run; None if the run is not finished."""
    if folder.state != "done":
        return None
    result = folder.read_result(metric_of(config).name)
    folder.reconcile(config, reporter.message)
    if changed := changed_code(config, folder):
        reporter.message(changed)
    return result


def changed_code(config: RunConfig, folder: RunFolder) -> str:
    """Return a message naming the user's own models and methods that changed after a finished run; "" if none did."""
    try:
        before = json.loads(folder.environment.read_text())["own"]
        changed = [name for name, digest in own_code(config).items() if before[name] != digest]
    except (OSError, ValueError, LookupError, TypeError):
        return ""  # nothing to compare with
    if not changed:
        return ""
    return f"{' and '.join(changed)} changed after the run finished: to run it again, choose another --out"


def check_data(config: RunConfig, dataset: AnySet) -> None:
    """Raise unless the data are those that the configuration names."""
    if (config.data.name, config.data.digest) != (dataset.name, dataset.digest):
        raise UsageError(
            f"the configuration names the data {config.data.name} ({config.data.digest[:8]}); found {dataset.name} "
            f"({dataset.digest[:8]}): pass the same --data and --data-dir as before"
        )


def _open_checkpoint(store: CheckpointStore, folder: RunFolder, reporter: Reporter) -> Checkpoint | None:
    """Return the newest intact checkpoint whose metrics are all still in the log; discard newer ones without them."""
    while True:
        checkpoint = store.newest(reporter.message)
        if checkpoint is None:
            return None
        written = Progress.read(checkpoint.files["progress.json"]).metrics_bytes
        size = _size(folder.metrics)
        if size >= written:
            return checkpoint
        reporter.message(
            f"discarding the checkpoint of step {checkpoint.step:,}: {folder.metrics.name} has {size:,} bytes, fewer "
            f"than the {written:,} that it had then"
        )
        store.discard(checkpoint)


def _record_environment(folder: RunFolder, now: dict[str, Any], reporter: Reporter) -> None:
    try:
        before = json.loads(folder.environment.read_text())
        changed = differences(before, now)
    except FileNotFoundError:
        write_atomically(folder.environment, to_json(now))
        return
    except (ValueError, AttributeError):
        reporter.message(f"{folder.environment.name} was damaged and has been rewritten: its earlier content is lost")
        write_atomically(folder.environment, to_json(now))
        return
    if changed:
        reporter.message(
            f"the environment has changed since this run was started: {'; '.join(changed)}. "
            "The result may differ in its last digits from that of an uninterrupted run."
        )


def _monitor_log(folder: RunFolder, checkpoint: Checkpoint | None) -> MetricsLog:
    """Open the monitor's log, truncated to its length at the checkpoint; it is not part of the result."""
    written = 0 if checkpoint is None else Progress.read(checkpoint.files["progress.json"]).monitor_bytes
    return MetricsLog(folder.monitor, min(written, _size(folder.monitor)))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
