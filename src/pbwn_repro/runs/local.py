"""Jobs side by side on this machine, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any

from pbwn_repro.runs.jobs import Ending, Job
from pbwn_repro.runs.packing import Slots, cores
from pbwn_repro.runs.worker import work

# Processes are forked from a server that has these loaded: importing them takes longer than many a short run.
# What is not installed is passed over.
_PRELOADED = [
    "torch",
    "torch._dynamo",
    "pbwn.paths.numba",
    "pbwn_repro.runs.worker",
    "sklearn.datasets",
    "scipy",
]
_REQUESTS = {signal.SIGINT, signal.SIGTERM}


class LocalPool:
    """As many jobs at once as there are slots; one that has to run alone waits until nothing else runs."""

    def __init__(self, slots: Slots) -> None:
        """No process is started yet."""
        self._free = list(reversed(slots.devices))
        self._count, self._threads = slots.count, slots.threads
        self._running: dict[Any, tuple[Job, Any, Any, str]] = {}  # by the process's sentinel
        self._context = multiprocessing.get_context("forkserver")

    def __enter__(self) -> LocalPool:
        """Nothing has to be made ready before the first job."""
        return self

    def __exit__(self, *error: object) -> None:
        """Let no process outlive the sweep, however that ends."""
        self.stop()
        for _, process, _, _ in self._running.values():
            process.join()

    def has_room(self, job: Job) -> bool:
        """Whether the job could start now."""
        alone = any(running.alone for running, *_ in self._running.values())
        return not self._running if job.alone else bool(self._free) and not alone

    def start(self, job: Job) -> None:
        """Start a process for the job."""
        _start_server()
        device = self._free.pop()
        ours, theirs = self._context.Pipe(duplex=False)
        threads = cores() if job.alone else self._threads
        process = self._context.Process(target=_main, args=(job, device, threads, theirs))
        process.start()
        theirs.close()
        self._running[process.sentinel] = (job, process, ours, device)

    def wait(self, seconds: float) -> list[tuple[Job, Ending]]:
        """The jobs that have ended, after so many seconds at the latest."""
        ended = []
        for sentinel in connection.wait(list(self._running), seconds):
            job, process, pipe, device = self._running.pop(sentinel)
            process.join()
            ended.append((job, _ending(process.exitcode, pipe)))
            self._free.append(device)
        return ended

    def stop(self) -> None:
        """Ask every process to save and end."""
        for _, process, _, _ in self._running.values():
            process.terminate()


def _start_server() -> None:
    """Start the server that processes are forked from, unless it runs."""
    # OpenMP reads this once, when the server loads torch: threads that wait have to leave the cores to other runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    multiprocessing.set_forkserver_preload(_PRELOADED)
    # A signal to the whole group must not end the server before its processes have saved: it is blocked there. The
    # tracker comes first because starting it unblocks signals.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _REQUESTS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _main(job: Job, device: str, threads: int, pipe: Any) -> None:
    os.setpgid(0, 0)  # a signal to the group, as a terminal's Ctrl-C, reaches the sweep alone, which asks once
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _REQUESTS)
    threading.Thread(target=_follow_parent, daemon=True).start()
    ending = work(job, device, threads)
    with suppress(BrokenPipeError):  # the sweep may be gone
        pipe.send(ending)


def _follow_parent() -> None:
    """Save and end where the sweep itself has been killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _ending(code: int, pipe: Any) -> Ending:
    try:
        if pipe.poll():
            ending: Ending = pipe.recv()
            return ending
    except EOFError:
        pass
    finally:
        pipe.close()
    if code in (-signal.SIGTERM, 128 + signal.SIGTERM):
        return Ending("stopped", "stopped at once; the same command goes on from the last checkpoint")
    word = f"killed by {signal.Signals(-code).name}" if code < 0 else f"gone with exit code {code}"
    return Ending("killed", f"the process was {word}; the same command goes on from its last checkpoint")
