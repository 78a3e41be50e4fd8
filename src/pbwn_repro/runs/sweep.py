"""Many jobs: run what is missing, skip what is done, resume what was interrupted; one that fails stops no other."""

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

SECONDS_BETWEEN_LOOKS = 0.25


class Pool(Protocol):
    """Where jobs run."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> None: ...

    def has_room(self, job: Job) -> bool:
        """Whether the job could start now."""

    def start(self, job: Job) -> None:
        """Start it."""

    def wait(self, seconds: float) -> list[tuple[Job, Ending]]:
        """The jobs that have ended, after so many seconds at the latest."""

    def stop(self) -> None:
        """Ask all to save and end."""


@dataclass
class Sweep:
    """Where a sweep stands; each job is in one of the three."""

    waiting: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    ended: list[tuple[Job, Ending]] = field(default_factory=list)
    stopping: bool = False

    def having(self, *kinds: str) -> list[tuple[Job, Ending]]:
        """The jobs that ended in one of these ways."""
        return [(job, ending) for job, ending in self.ended if ending.kind in kinds]


class View:
    """Who looks on: nobody, unless another one says more."""

    def __enter__(self) -> None:
        """The sweep begins."""

    def __exit__(self, *error: object) -> None:
        """The sweep has ended."""

    def show(self, sweep: Sweep) -> None:
        """Something may have changed."""


def sweep(jobs: Sequence[Job], pool: Pool, view: View | None = None, *, retry: bool = False) -> Sweep:
    """Run all jobs to their ends. Asked to stop, it has those that run save, and starts no other.

    retry: whether to try again what has diverged before.
    """
    view = view or View()
    state = Sweep()
    for job in sorted(jobs, key=lambda job: job.alone):
        _sort_in(job, state, retry)
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
            for job, ending in pool.wait(SECONDS_BETWEEN_LOOKS):
                state.running.remove(job)
                state.ended.append((job, ending))
        view.show(state)
    return state


def _sort_in(job: Job, state: Sweep, retry: bool) -> None:
    found = job.state
    if found == "done":
        state.ended.append((job, Ending("there", job.changed, earlier=True)))
    elif found == "diverged" and not retry:
        state.ended.append((job, _divergence(RunFolder(job.path).diverged)))
    else:
        state.waiting.append(job)


def _divergence(note: Path) -> Ending:
    try:
        return Ending("diverged", str(json.loads(note.read_text())["message"]), earlier=True)
    except (ValueError, TypeError, LookupError):
        return Ending("failed", f"{note} is damaged: remove it to run it again")
