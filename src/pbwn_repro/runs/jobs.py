"""The jobs of a sweep, each with a folder of its own: how one is made in its process, how far it is, how it ends.

How far it is, it tells through its folder: whoever can see the disk can look, on this machine or another.
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
    """Where a run stands.

    first: the step that it started from, or went on from; `seconds` have passed since then.
    """

    step: int
    total: int
    first: int
    seconds: float
    loss: float | None = None
    shown: str = ""  # the metric that is shown of it, as people read it
    speed: str = ""

    @property
    def share(self) -> float:
        """How much of the run is done, from 0 to 1."""
        return self.step / max(1, self.total)

    @property
    def seconds_left(self) -> float | None:
        """How long it will take at the speed so far; None before there is one."""
        taken = self.step - self.first
        return self.seconds / taken * (self.total - self.step) if taken else None


class DiskReporter:
    """Writes `progress.json` into a run's folder, at most once a second; messages go to standard error."""

    def __init__(self, folder: Path) -> None:
        """Nothing is written before the run begins."""
        self._path = folder / "progress.json"
        self._written = float("-inf")

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Say where the run starts."""
        self._started, self._first, self._total, self._unit = time.monotonic(), step, total, unit
        self._shown = ""
        self._write(step)

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Say where the run is, if that was not just said."""
        if time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            self._write(step, loss if isfinite(loss) else None, f"{speed:,.0f} {self._unit}/s")

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Tell the value from now on."""
        self._shown = metric.shown(value)

    def message(self, text: str) -> None:
        """Print it: a sweep keeps what its processes print in the run's log."""
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave nothing behind."""
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
    """What a run has last said of itself; None if it says nothing."""
    try:
        return Progress(**json.loads((folder / "progress.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True, eq=False, kw_only=True)
class Job(ABC):
    """Something to make, in a process of its own and on whatever machine: it travels by pickle.

    title: for people, unique in a sweep.
    path: the folder that it fills; where a job stands is what is on the disk there.
    flops: how much work it is, so that a sweep knows how far it has come.
    alone: whether nothing may run beside it, as when something is timed.
    """

    title: str
    path: Path
    flops: float = 1.0
    alone: bool = False

    @property
    def state(self) -> State:
        """Where it stands on the disk."""
        return RunFolder(self.path).state

    @property
    def changed(self) -> str:
        """If it is done: what has changed since, in a sentence."""
        return ""

    @abstractmethod
    def make(self, device: torch.device, reporter: Reporter) -> None:
        """Do the work, or resume it, in this process."""


WORKERS = 4  # that decode images, of sets that do not fit into memory


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingJob(Job):
    """One training run.

    source: what `pbwn_repro.data.load` takes; the configuration holds the set's name and digest.
    modules: the folder that the user's own models and methods are imported from.
    """

    config: RunConfig
    source: str
    data_dir: Path | None = None
    cache_dir: Path | None = None
    modules: Path | None = None

    @property
    def state(self) -> State:
        """Where it stands on the disk; what has diverged can be resumed if steps are to be skipped from now on."""
        found = super().state
        if found == "diverged" and self.config.on_nonfinite == "skip":
            with suppress(OSError, ValueError):  # what cannot be read stays as it is
                return "started" if RunFolder(self.path).read_config().on_nonfinite == "stop" else found
        return found

    @property
    def changed(self) -> str:
        """If it is done: the user's model or method, if it is another now."""
        return changed_code(self.config, RunFolder(self.path))

    def make(self, device: torch.device, reporter: Reporter) -> None:
        """Load the data and train."""
        if self.modules is not None:
            import_from(self.modules)
        data = self.config.data
        splits = [*data.train, data.test]
        dataset = load(self.source, data_dir=self.data_dir, cache_dir=self.cache_dir, splits=splits)
        execute(self.config, dataset, RunFolder(self.path), Processes(device=device), reporter, workers=WORKERS)


@dataclass(frozen=True)
class Ending:
    """How a job ended, and a sentence on it where there is one to say.

    kind: "there" was done before; "diverged" has no result and would have none again; "failed" left its traceback in
        the log; "killed" died without a word; "busy" is in the works elsewhere; "stopped" was asked to, and has saved.
    earlier: whether it ended so before this sweep, and was not run again.
    """

    kind: Literal["there", "done", "diverged", "failed", "killed", "busy", "stopped"]
    message: str = ""
    earlier: bool = False


LOG = "log.txt"


def work(job: Job, device: str, threads: int) -> Ending:
    """Make a job in this process; whatever goes wrong is an ending, with its traceback in the job's log."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    try:
        job.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Ending("failed", f"{job.path} cannot be created: {error.strerror}")
    log = job.path / LOG
    with _printing_to(log):
        ending = _make(job, device)
    if ending.kind != "busy" and log.exists() and not log.stat().st_size:
        log.unlink()
    return ending


def _make(job: Job, device: str) -> Ending:
    try:
        job.make(torch.device(device), DiskReporter(job.path))
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
def _printing_to(log: Path) -> Iterator[None]:
    """Have all that the process prints, its libraries' warnings too, at the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = {number: os.dup(number) for number in (1, 2)}
    python = sys.stdout, sys.stderr
    with log.open("a") as file:
        for number in before:
            os.dup2(file.fileno(), number)
        sys.stdout = sys.stderr = file
        try:
            yield
        finally:
            file.flush()
            sys.stdout, sys.stderr = python
            for number, kept in before.items():
                os.dup2(kept, number)
                os.close(kept)
