"""Run many jobs: skip what is finished, resume what was interrupted; a failing job does not stop the others."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pbwn_repro.engine.signals import StopRequest
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.runs.jobs import Ending, Job

POLL_SECONDS = 0.25


class Pool(Protocol):
    """Executes jobs, several at a time."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> None: ...

    def has_room(self, job: Job) -> bool:
        """Whether the job can start immediately."""

    def start(self, job: Job) -> None:
        """Start the job."""

    def wait(self, seconds: float) -> list[tuple[Job, Ending]]:
        """Wait up to `seconds` for jobs to end; return those that have ended."""

    def stop(self) -> None:
        """Ask all running jobs to save and end."""


@dataclass
class Sweep:
    """The state of a sweep; each job is waiting, running or ended."""

    waiting: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    ended: list[tuple[Job, Ending]] = field(default_factory=list)
    stopping: bool = False

    def having(self, *kinds: str) -> list[tuple[Job, Ending]]:
        """Return the jobs whose ending is of one of these kinds."""
        return [(job, ending) for job, ending in self.ended if ending.kind in kinds]


class View:
    """Displays a sweep while it runs; this base class shows nothing."""

    def __enter__(self) -> None:
        """Called when the sweep begins."""

    def __exit__(self, *error: object) -> None:
        """Called when the sweep has ended."""

    def show(self, sweep: Sweep) -> None:
        """Called regularly, whether or not the sweep has changed."""


def sweep(jobs: Sequence[Job], pool: Pool, view: View | None = None, *, retry: bool = False) -> Sweep:
    """Run all jobs. On a stop request, the running jobs save and end, and no other job is started.

    retry: whether to run jobs again that diverged before.
    """
    view = view or View()
    state = Sweep()
    for job in sorted(jobs, key=lambda job: job.alone):
        _enqueue(job, state, retry)
    with pool, view, StopRequest() as stop:
        while state.waiting or state.running:
            while state.waiting and not stop.requested and pool.has_room(state.waiting[0]):
                job = state.waiting.popleft()
                pool.start(job)
                state.running.append(job)
            if stop.requested and not state.stopping:
                state.stopping = True
                pool.stop()
            if state.stopping and not state.running:
                break
            view.show(state)
            for job, ending in pool.wait(POLL_SECONDS):
                state.running.remove(job)
                state.ended.append((job, ending))
        view.show(state)
    return state


def _enqueue(job: Job, state: Sweep, retry: bool) -> None:
    job_state = job.state
    if job_state == "done":
        state.ended.append((job, Ending("existing", job.changed, earlier=True)))
    elif job_state == "diverged" and not retry:
        state.ended.append((job, _divergence(RunFolder(job.path).diverged)))
    else:
        state.waiting.append(job)


def _divergence(record: Path) -> Ending:
    """Read from diverged.json how an earlier attempt ended."""
    try:
        return Ending("diverged", str(json.loads(record.read_text())["message"]), earlier=True)
    except (ValueError, TypeError, LookupError):
        return Ending("failed", f"{record} is damaged: remove it to repeat the run")
