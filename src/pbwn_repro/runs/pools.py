"""Where jobs run: side by side on this machine, each in a process of its own and with its share of it, or on Ray.

On a cluster, run folders are on storage that all its machines share; CPUs and GPUs are resources.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path
from typing import Any

import torch

from pbwn_repro.errors import UsageError
from pbwn_repro.runs.jobs import Ending, Job, work

# Processes are forked from a server that has these loaded: importing them takes longer than many a short run.
# What is not installed is passed over.
_PRELOADED = [
    "torch",
    "torch._dynamo",
    "pbwn.paths.numba",
    "pbwn_repro.runs.jobs",
    "sklearn.datasets",
    "scipy",
]
_REQUESTS = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True)
class Slots:
    """Places for runs side by side: a device each, and so many threads."""

    devices: tuple[str, ...]
    threads: int

    @property
    def count(self) -> int:
        """How many runs there are at once."""
        return len(self.devices)

    @property
    def workers(self) -> int:
        """How many of them get on by themselves: runs on the same GPU share it."""
        return self.count if self._on_cpu else len(set(self.devices))

    @property
    def speedup(self) -> int:
        """How many times as fast as on one core, or on one GPU, a run is: a GPU has no use for threads."""
        return self.threads if self._on_cpu else 1

    @property
    def _on_cpu(self) -> bool:
        return self.devices[0] == "cpu"


def slots(runs: int, *, jobs: int | None = None, device: str = "auto") -> Slots:
    """Divide this machine among runs.

    On CPUs: runs with one thread each, as many as there are cores, because threads of one run wait for each other and
    runs do not; more threads each where there are fewer runs than cores. On GPUs: a run for each.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least 1 run at a time is needed")
    devices = _devices(device)
    on_gpus = devices[0] != "cpu"
    count = jobs or max(1, min(runs, len(devices) if on_gpus else cores()))
    return Slots(tuple(devices[index % len(devices)] for index in range(count)), max(1, cores() // count))


def wall_seconds(seconds: float, longest: float, places: Slots) -> float:
    """How long runs take together that take so many seconds on one core or GPU, the longest of them so many."""
    return max(seconds / places.workers, longest) / places.speedup


def cores() -> int:
    """The whole cores that this process may use, at least one."""
    return max(1, int(available_cores()))


def available_cores() -> float:
    """What this process may use: the cores of its affinity, and the quota of its container."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else min(cores, int(quota) / int(period))
    except (OSError, ValueError):
        return cores


def find_device(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU if there is one."""
    found = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if found else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise UsageError(f"--device {name!r}: choose from auto, cpu, cuda, cuda:<number>")
    if device.type == "cuda" and (device.index or 0) >= found:
        raise UsageError(f"--device {name}: this torch sees {found or 'no'} GPU{'s' if found > 1 else ''}")
    return device


def _devices(name: str) -> list[str]:
    device = find_device(name)
    if device.type == "cuda" and device.index is None:
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [str(device)]


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
        return Ending("stopped", "stopped at once; the same command resumes from the last checkpoint")
    word = f"killed by {signal.Signals(-code).name}" if code < 0 else f"gone with exit code {code}"
    return Ending("killed", f"the process was {word}; the same command resumes from its last checkpoint")


RETRIES = 3  # of a job whose process or machine dies: it resumes from its last checkpoint, in any free slot


class RayPool:
    """As many jobs at once as the cluster can run: a GPU each if it has any, else a core each."""

    def __init__(self, address: str, *, device: str = "auto", jobs: int | None = None) -> None:
        """Nothing is started yet; `address` is auto for the cluster that runs on this machine."""
        try:
            import ray
        except ModuleNotFoundError:
            raise UsageError("--cluster needs the package ray: pip install 'pbwn[cluster]'") from None
        self._ray, self._address, self._device, self._jobs = ray, address, device, jobs
        self._running: dict[Any, Job] = {}

    def __enter__(self) -> RayPool:
        """Join the cluster."""
        try:
            _knock(self._address)
            self._ray.init(self._address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConnectionError(
                f"--cluster {self._address}: no Ray cluster answers there ({reason}). `ray start --head` starts one"
            ) from None
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._cores = int(max(node.get("CPU", 1) for node in nodes))
        gpus = any(node.get("GPU", 0) for node in nodes)
        self._gpus = int(gpus) if self._device == "auto" else int(self._device != "cpu")
        self._remote = self._ray.remote(_work)
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the cluster."""
        self.stop()
        self._ray.shutdown()

    def has_room(self, job: Job) -> bool:
        """Whether the job may be handed to Ray, which waits for free resources itself."""
        alone = any(running.alone for running in self._running.values())
        full = self._jobs is not None and len(self._running) >= self._jobs
        return not self._running if job.alone else not alone and not full

    def start(self, job: Job) -> None:
        """Hand the job to Ray; one that has to run alone is timed on the CPU, and takes all cores of a machine."""
        cores, gpus = (self._cores, 0) if job.alone else (1, self._gpus)
        task = self._remote.options(num_cpus=cores, num_gpus=gpus, max_retries=RETRIES, name=job.title)
        self._running[task.remote(job, "cuda:0" if gpus else "cpu", cores)] = job

    def wait(self, seconds: float) -> list[tuple[Job, Ending]]:
        """The jobs that have ended, after so many seconds at the latest."""
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=seconds)
        return [(self._running.pop(task), self._ending(task)) for task in ready]

    def stop(self) -> None:
        """Ask every job to save and end: Ray interrupts those that run, and forgets those that wait."""
        for task in self._running:
            self._ray.cancel(task)

    def _ending(self, task: Any) -> Ending:
        errors = self._ray.exceptions
        try:
            ending: Ending = self._ray.get(task)
        except errors.TaskCancelledError:
            return Ending("stopped", "stopped before it had anything to save")
        except errors.RayTaskError as error:
            if isinstance(error.cause, KeyboardInterrupt):
                return Ending("stopped", "stopped before it had anything to save")
            return Ending("failed", str(error.cause))
        except errors.RayError as error:
            reason = str(error).strip().splitlines()[0]
            return Ending("killed", f"{reason} The same command resumes from its last checkpoint")
        return ending


def _knock(address: str) -> None:
    """Notice in seconds that nobody answers at an address; Ray itself takes minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _work(job: Job, device: str, threads: int) -> Ending:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded, where this process has not yet
    return work(job, device, threads)
