"""Filling one run folder: skip what is done, resume what was interrupted, start what is new."""

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
    place: Processes,
    reporter: Reporter,
    *,
    workers: int = 0,
    monitor: int | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Make the run's result, or return the one that is there. Only the first process writes.

    `monitor` has the projection's monitor record every so many steps. `on_stage` is called between the stages of
    writing a checkpoint.
    """
    check_data(config, dataset)
    done: dict[str, Any] | None = place.share(_found(config, folder, reporter) if place.is_first else None)
    if done is not None:
        return done
    training = Training(config, dataset, place, workers=workers)  # what cannot be built writes nothing
    with folder.locked() if place.is_first else nullcontext():
        config = training.config = place.share(folder.claim(config, reporter.message) if place.is_first else None)
        if place.is_first:
            folder.diverged.unlink(missing_ok=True)
            _note_environment(folder, environment(place.device, dataset, config), reporter)
        store = CheckpointStore(folder.checkpoints, config.hash, on_stage=on_stage)
        checkpoint = place.share(_open_checkpoint(store, folder, reporter) if place.is_first else None)
        position = 0 if checkpoint is None else Progress.read(checkpoint.files["progress.json"]).metrics_bytes
        metrics = MetricsLog(folder.metrics, position) if place.is_first else NoLog()
        # Clock values are kept as they come; they are no part of the result.
        timing = MetricsLog(folder.timing, _size(folder.timing)) if place.is_first else NoLog()
        monitored = _monitor_log(folder, checkpoint) if monitor and place.is_first else NoLog()
        try:
            if monitor:
                training.watch(monitor, monitored)
            finished = training.run(store, metrics, timing, reporter, checkpoint)
        except NonFiniteError as error:
            if place.is_first:
                folder.note_divergence(error.step, str(error))
            raise
        except Interrupted:
            raise Interrupted(f"stopped and saved in {folder.path}; run the same command to resume") from None
        finally:
            metrics.close()
            timing.close()
            monitored.close()
        if place.is_first:
            write_atomically(folder.model, finished.model)
            write_atomically(folder.result, to_json(finished.result))
            store.prune(keep=1)
        return finished.result


def _found(config: RunConfig, folder: RunFolder, reporter: Reporter) -> dict[str, Any] | None:
    """The result that is there already."""
    if folder.state != "done":
        return None
    result = folder.read_result(metric_of(config).name)
    folder.agreed(config, reporter.message)
    if changed := changed_code(config, folder):
        reporter.message(changed)
    return result


def changed_code(config: RunConfig, folder: RunFolder) -> str:
    """Say which models and methods of the user's are in other files than those that a finished run was made with."""
    try:
        before = json.loads(folder.environment.read_text())["own"]
        changed = [name for name, digest in own_code(config).items() if before[name] != digest]
    except (OSError, ValueError, LookupError, TypeError):
        return ""  # nothing is known of then
    if not changed:
        return ""
    return f"{' and '.join(changed)} changed after a run that is done: to run it again, choose another --out"


def check_data(config: RunConfig, dataset: AnySet) -> None:
    """Make sure that the data are those that the configuration names."""
    if (config.data.name, config.data.digest) != (dataset.name, dataset.digest):
        raise UsageError(
            f"the configuration names the data {config.data.name} ({config.data.digest[:8]}); found {dataset.name} "
            f"({dataset.digest[:8]}): pass the same --data and --data-dir as before"
        )


def _open_checkpoint(store: CheckpointStore, folder: RunFolder, reporter: Reporter) -> Checkpoint | None:
    """The newest checkpoint that is whole and whose metrics are still there."""
    while True:
        checkpoint = store.newest(reporter.message)
        if checkpoint is None:
            return None
        known = Progress.read(checkpoint.files["progress.json"]).metrics_bytes
        held = _size(folder.metrics)
        if held >= known:
            return checkpoint
        reporter.message(
            f"{folder.metrics.name} has {held:,} bytes, {known:,} were written at step {checkpoint.step:,}"
        )
        store.discard(checkpoint)


def _note_environment(folder: RunFolder, now: dict[str, Any], reporter: Reporter) -> None:
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
    """The monitor's records, as far as the checkpoint knows of them; it is no part of the result."""
    known = 0 if checkpoint is None else Progress.read(checkpoint.files["progress.json"]).monitor_bytes
    return MetricsLog(folder.monitor, min(known, _size(folder.monitor)))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
