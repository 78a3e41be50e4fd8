"""What a sweep is made of: jobs, each with a folder of its own, and how a job ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from pbwn_repro.config import RunConfig
from pbwn_repro.data import load
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.reporting import Reporter
from pbwn_repro.importing import import_from
from pbwn_repro.runs.execution import execute
from pbwn_repro.runs.folder import RunFolder, State


class Job(Protocol):
    """Something to make, in a process of its own and on whatever machine: it travels by pickle.

    title: for people, unique in a sweep.
    path: the folder that it fills; where a job stands is what is on the disk there.
    flops: how much work it is, so that a sweep knows how far it has come.
    alone: whether nothing may run beside it, as when something is timed.
    """

    @property
    def title(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def flops(self) -> float: ...

    @property
    def alone(self) -> bool: ...

    @property
    def state(self) -> State: ...

    def make(self, device: torch.device, reporter: Reporter) -> None:
        """Do the work, or go on with it, in this process."""


WORKERS = 4  # that decode pictures, of sets that do not fit into memory


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """One training run.

    source: what `pbwn_repro.data.load` takes; the configuration holds the set's name and digest.
    modules: the folder that the user's own models and methods are imported from.
    """

    title: str
    path: Path
    config: RunConfig
    source: str
    data_dir: Path | None = None
    cache_dir: Path | None = None
    flops: float = 1.0
    alone: bool = False
    modules: Path | None = None

    @property
    def state(self) -> State:
        """Where the run stands on the disk."""
        return RunFolder(self.path).state

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
    """

    kind: Literal["there", "done", "diverged", "failed", "killed", "busy", "stopped"]
    message: str = ""
