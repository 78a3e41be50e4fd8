"""The jobs of a sweep, each with its own folder: running one in its own process, its progress, and how it ends.

Progress is reported through the folder, so that any process that shares the disk can read it, on any machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

import torch

from pbwn_repro.config import RunConfig
from pbwn_repro.data import load
from pbwn_repro.engine.finite import NonFiniteError
from pbwn_repro.engine.processes import Processes, keep_freed_memory
from pbwn_repro.engine.reporting import Reporter
from pbwn_repro.engine.signals import Interrupted
from pbwn_repro.importing import import_from
from pbwn_repro.metrics import Metric
from pbwn_repro.runs.execution import changed_code, execute
from pbwn_repro.runs.folder import BusyError, RunFolder, State

SECONDS_BETWEEN_WRITES = 1.0


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    first: the step at which it started or resumed.
    seconds: the time since then.
    shown: the formatted value of the main metric.
    """

    step: int
    total: int
    first: int
    seconds: float
    loss: float | None = None
    shown: str = ""
    speed: str = ""

    @property
    def share(self) -> float:
        """The fraction of the run that is done, from 0 to 1."""
        return self.step / max(1, self.total)

    @property
    def seconds_left(self) -> float | None:
        """The remaining time at the average speed so far; None before the first step."""
        steps = self.step - self.first
        return self.seconds / steps * (self.total - self.step) if steps else None


class DiskReporter:
    """Writes `progress.json` into a run's folder, at most once a second; messages go to standard error."""

    def __init__(self, folder: Path) -> None:
        """Nothing is written before `begin`."""
        self._path = folder / "progress.json"
        self._written = float("-inf")

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Record the first step."""
        self._started, self._first, self._total, self._unit = time.monotonic(), step, total, unit
        self._shown = ""
        self._write(step)

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Record the step, unless one was recorded less than a second ago."""
        if time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            self._write(step, loss if isfinite(loss) else None, f"{speed:,.0f} {self._unit}/s")

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Include the value in the progress from the next write on."""
        self._shown = metric.format(value)

    def message(self, text: str) -> None:
        """Print the message; in a sweep, the output of each process goes to the run's log."""
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)

    def _write(self, step: int, loss: float | None = None, speed: str = "") -> None:
        self._written = time.monotonic()
        seconds = self._written - self._started
        progress = Progress(step, self._total, self._first, seconds, loss, self._shown, speed)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{self._path.name}.writing")
        temporary.write_text(json.dumps(asdict(progress)))
        temporary.replace(self._path)


def read_progress(folder: Path) -> Progress | None:
    """Read the progress of a run; None if it does not report any."""
    try:
        return Progress(**json.loads((folder / "progress.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True, eq=False, kw_only=True)
class Job(ABC):
    """A unit of work that runs in its own process, on any machine; jobs are sent by pickle.

    title: shown to users; unique in a sweep.
    path: the folder that it fills, whose files determine its state.
    flops: its amount of work, for the progress of a sweep.
    alone: whether nothing else may run at the same time, as for timings.
    """

    title: str
    path: Path
    flops: float = 1.0
    alone: bool = False

    @property
    def state(self) -> State:
        """The state on disk."""
        return RunFolder(self.path).state

    @property
    def changed(self) -> str:
        """What has changed since a finished job ran, as a sentence; "" if nothing has."""
        return ""

    @abstractmethod
    def run(self, device: torch.device, reporter: Reporter) -> None:
        """Run or resume the job in this process."""


WORKERS = 4  # processes that decode images, for sets that do not fit into memory


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingJob(Job):
    """One training run.

    source: the data source, as `pbwn_repro.data.load` takes it; the configuration has the set's name and digest.
    modules: the folder from which the user's own models and methods are imported.
    """

    config: RunConfig
    source: str
    data_dir: Path | None = None
    cache_dir: Path | None = None
    modules: Path | None = None

    @property
    def state(self) -> State:
        """The state on disk; a diverged run counts as started if this job skips non-finite steps and it did not."""
        state = super().state
        if state == "diverged" and self.config.on_nonfinite == "skip":
            with suppress(OSError, ValueError):  # an unreadable configuration
                return "started" if RunFolder(self.path).read_config().on_nonfinite == "stop" else state
        return state

    @property
    def changed(self) -> str:
        """A sentence naming the user's own model or method if its file changed after the run finished."""
        return changed_code(self.config, RunFolder(self.path))

    def run(self, device: torch.device, reporter: Reporter) -> None:
        """Load the data and train."""
        if self.modules is not None:
            import_from(self.modules)
        data = self.config.data
        splits = [*data.train, data.test]
        dataset = load(self.source, data_dir=self.data_dir, cache_dir=self.cache_dir, splits=splits)
        execute(self.config, dataset, RunFolder(self.path), Processes(device=device), reporter, workers=WORKERS)


@dataclass(frozen=True)
class Ending:
    """How a job ended, with an optional message.

    kind: "existing" was done before; "diverged" has no result, and would diverge again; "failed" left its traceback in
        the log; "killed" is a process that died; "busy" is being run by another process; "stopped" has saved its state
        on request.
    earlier: whether it ended this way before this sweep, and was not run again.
    """

    kind: Literal["existing", "done", "diverged", "failed", "killed", "busy", "stopped"]
    message: str = ""
    earlier: bool = False


LOG = "log.txt"


def run_job(job: Job, device: str, threads: int) -> Ending:
    """Run a job in this process; an error becomes an ending, with its traceback in the job's log."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    try:
        job.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Ending("failed", f"{job.path} cannot be created: {error.strerror}")
    log = job.path / LOG
    with _output_to(log):
        ending = _run(job, device)
    if ending.kind != "busy" and log.exists() and not log.stat().st_size:
        log.unlink()
    return ending


def _run(job: Job, device: str) -> Ending:
    try:
        job.run(torch.device(device), DiskReporter(job.path))
    except Interrupted as stop:
        return Ending("stopped", str(stop))
    except BusyError as busy:
        return Ending("busy", str(busy))
    except NonFiniteError as error:
        print(error, file=sys.stderr, flush=True)
        return Ending("diverged", str(error))
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        return Ending("failed", f"{type(error).__name__}: {error}")
    return Ending("done")


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Append everything that the process prints to a file, including the output of libraries in C."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    streams = sys.stdout, sys.stderr
    with log.open("a") as file:
        for number in saved:
            os.dup2(file.fileno(), number)
        sys.stdout = sys.stderr = file
        try:
            yield
        finally:
            file.flush()
            sys.stdout, sys.stderr = streams
            for number, duplicate in saved.items():
                os.dup2(duplicate, number)
                os.close(duplicate)
