"""One job in the process that makes it: threads, log, and how it ends in words."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pbwn_repro.engine.finite import NonFiniteError
from pbwn_repro.engine.memory import keep_freed_memory
from pbwn_repro.engine.signals import Interrupted
from pbwn_repro.runs.folder import BusyError
from pbwn_repro.runs.jobs import Ending, Job
from pbwn_repro.runs.progress import DiskReporter

LOG = "log.txt"


def work(job: Job, device: str, threads: int) -> Ending:
    """Make a job in this process; whatever goes wrong is an ending, with its traceback in the job's log."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    try:
        job.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Ending("failed", f"{job.path} cannot be made: {error.strerror}")
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
