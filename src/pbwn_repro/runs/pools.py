"""Pools that run jobs: in parallel processes on this machine, each with its share of the cores, or on a Ray cluster.

On a cluster, the run folders have to be on storage that all machines share.
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
from pbwn_repro.runs.jobs import Ending, Job, run_job

# Processes are forked from a server that has imported these: importing them takes longer than many short runs.
# Packages that are not installed are skipped.
_PRELOADED = [
    "torch",
    "torch._dynamo",
    "pbwn.paths.numba",
    "pbwn_repro.runs.jobs",
    "sklearn.datasets",
    "scipy",
]
_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True)
class Slots:
    """The devices of runs in parallel, one per run, and the number of threads of each run."""

    devices: tuple[str, ...]
    threads: int

    @property
    def count(self) -> int:
        """The number of runs in parallel."""
        return len(self.devices)

    @property
    def workers(self) -> int:
        """The number of runs that do not slow each other down: runs on the same GPU share its speed."""
        return self.count if self._on_cpu else len(set(self.devices))

    @property
    def speedup(self) -> int:
        """The speed of a run relative to one core or one GPU: threads speed up runs on the CPU only."""
        return self.threads if self._on_cpu else 1

    @property
    def _on_cpu(self) -> bool:
        return self.devices[0] == "cpu"


def slots(runs: int, *, jobs: int | None = None, device: str = "auto") -> Slots:
    """Divide this machine among runs.

    On the CPU: one run with one thread per core, because the threads of a run wait for each other and separate runs do
    not; more threads per run if there are fewer runs than cores. On GPUs: one run per GPU.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: must be at least 1")
    devices = _devices(device)
    on_gpus = devices[0] != "cpu"
    count = jobs or max(1, min(runs, len(devices) if on_gpus else cores()))
    return Slots(tuple(devices[index % len(devices)] for index in range(count)), max(1, cores() // count))


def wall_seconds(seconds: float, longest: float, places: Slots) -> float:
    """Return how long runs take in parallel, given the total time and that of the longest run on one core or GPU."""
    return max(seconds / places.workers, longest) / places.speedup


def cores() -> int:
    """Return the number of whole cores that this process may use, at least one."""
    return max(1, int(available_cores()))


def available_cores() -> float:
    """Return the cores that this process may use: those of its affinity, limited by the quota of its container."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else min(cores, int(quota) / int(period))
    except (OSError, ValueError):
        return cores


def find_device(name: str) -> torch.device:
    """Return the device of this name; "auto" is a GPU if there is one."""
    gpus = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise UsageError(f"--device {name!r}: choose from auto, cpu, cuda, cuda:<number>")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UsageError(f"--device {name}: torch finds {gpus or 'no'} GPU{'s' if gpus > 1 else ''}")
    return device


def _devices(name: str) -> list[str]:
    device = find_device(name)
    if device.type == "cuda" and device.index is None:
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [str(device)]


class LocalPool:
    """Runs one job per slot in parallel; a job that has to run alone waits until nothing else runs."""

    def __init__(self, slots: Slots) -> None:
        """No process is started before the first job."""
        self._free = list(reversed(slots.devices))
        self._count, self._threads = slots.count, slots.threads
        self._running: dict[Any, tuple[Job, Any, Any, str]] = {}  # by sentinel
        self._context = multiprocessing.get_context("forkserver")

    def __enter__(self) -> LocalPool:
        """Nothing to prepare."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stop all processes and wait for them: none outlives the sweep, however it ends."""
        self.stop()
        for _, process, _, _ in self._running.values():
            process.join()

    def has_room(self, job: Job) -> bool:
        """Whether the job can start immediately."""
        alone = any(running.alone for running, *_ in self._running.values())
        return not self._running if job.alone else bool(self._free) and not alone

    def start(self, job: Job) -> None:
        """Start the job in a new process."""
        _start_server()
        device = self._free.pop()
        receiver, sender = self._context.Pipe(duplex=False)
        threads = cores() if job.alone else self._threads
        process = self._context.Process(target=_main, args=(job, device, threads, sender))
        process.start()
        sender.close()
        self._running[process.sentinel] = (job, process, receiver, device)

    def wait(self, seconds: float) -> list[tuple[Job, Ending]]:
        """Wait up to `seconds` for jobs to end; return those that have ended."""
        ended = []
        for sentinel in connection.wait(list(self._running), seconds):
            job, process, receiver, device = self._running.pop(sentinel)
            process.join()
            ended.append((job, _ending(process.exitcode, receiver)))
            self._free.append(device)
        return ended

    def stop(self) -> None:
        """Ask all processes to save and end."""
        for _, process, _, _ in self._running.values():
            process.terminate()


def _start_server() -> None:
    """Start the server from which processes are forked, unless it is running."""
    # OpenMP reads this once, when the server imports torch: waiting threads must not keep cores from other runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    multiprocessing.set_forkserver_preload(_PRELOADED)
    # A signal to the whole process group must not end the server before its processes have saved, so the server
    # inherits a mask that blocks it. The tracker is started first because starting it unblocks signals.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _main(job: Job, device: str, threads: int, sender: Any) -> None:
    # In its own process group, so that a terminal's Ctrl-C reaches only the sweep, which then stops each job once.
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
    threading.Thread(target=_follow_parent, daemon=True).start()
    ending = run_job(job, device, threads)
    with suppress(BrokenPipeError):  # the sweep may have died
        sender.send(ending)


def _follow_parent() -> None:
    """Have this process save and end if the sweep itself is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _ending(code: int, receiver: Any) -> Ending:
    """Return the ending that a process has sent, or else one that describes its exit code."""
    try:
        if receiver.poll():
            ending: Ending = receiver.recv()
            return ending
    except EOFError:
        pass
    finally:
        receiver.close()
    if code in (-signal.SIGTERM, 128 + signal.SIGTERM):
        return Ending("stopped", "stopped immediately; the same command resumes from the last checkpoint")
    reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return Ending("killed", f"the process {reason}; the same command resumes from the last checkpoint")


RETRIES = 3  # of a job whose process or machine dies: it resumes from its last checkpoint, wherever there is room


class RayPool:
    """Runs as many jobs in parallel as the cluster has GPUs or, without GPUs, cores."""

    def __init__(self, address: str, *, device: str = "auto", jobs: int | None = None) -> None:
        """Nothing is started yet; `address` is "auto" for the cluster that runs on this machine."""
        try:
            import ray
        except ModuleNotFoundError:
            raise UsageError("--cluster needs the package ray: pip install 'pbwn[cluster]'") from None
        self._ray, self._address, self._device, self._jobs = ray, address, device, jobs
        self._running: dict[Any, Job] = {}

    def __enter__(self) -> RayPool:
        """Connect to the cluster."""
        try:
            _check_reachable(self._address)
            self._ray.init(self._address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConnectionError(
                f"--cluster {self._address}: no Ray cluster at this address ({reason}). `ray start --head` starts one"
            ) from None
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._cores = int(max(node.get("CPU", 1) for node in nodes))
        gpus = any(node.get("GPU", 0) for node in nodes)
        self._gpus = int(gpus) if self._device == "auto" else int(self._device != "cpu")
        self._remote = self._ray.remote(_work)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop all jobs and disconnect from the cluster."""
        self.stop()
        self._ray.shutdown()

    def has_room(self, job: Job) -> bool:
        """Whether the job may be submitted; Ray itself waits for free resources."""
        alone = any(running.alone for running in self._running.values())
        full = self._jobs is not None and len(self._running) >= self._jobs
        return not self._running if job.alone else not alone and not full

    def start(self, job: Job) -> None:
        """Submit the job; one that has to run alone is a timing on the CPU, and gets all cores of a machine."""
        cores, gpus = (self._cores, 0) if job.alone else (1, self._gpus)
        task = self._remote.options(num_cpus=cores, num_gpus=gpus, max_retries=RETRIES, name=job.title)
        self._running[task.remote(job, "cuda:0" if gpus else "cpu", cores)] = job

    def wait(self, seconds: float) -> list[tuple[Job, Ending]]:
        """Wait up to `seconds` for jobs to end; return those that have ended."""
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=seconds)
        return [(self._running.pop(task), self._ending(task)) for task in ready]

    def stop(self) -> None:
        """Ask all jobs to save and end: Ray interrupts those that run, and drops those that wait."""
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
            return Ending("killed", f"{reason} The same command resumes from the last checkpoint")
        return ending


def _check_reachable(address: str) -> None:
    """Raise within seconds if an address cannot be reached; Ray itself takes minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _work(job: Job, device: str, threads: int) -> Ending:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # effective if torch is not imported yet
    return run_job(job, device, threads)
