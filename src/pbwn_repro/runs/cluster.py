"""Jobs on a Ray cluster: run folders on storage that all its machines share, CPUs and GPUs as resources."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from pbwn_repro.errors import UsageError
from pbwn_repro.runs.jobs import Ending, Job
from pbwn_repro.runs.worker import work

RETRIES = 3  # of a job whose process or machine dies: it goes on from its last checkpoint, wherever there is room


class RayPool:
    """As many jobs at once as the cluster has room for: a GPU each if it has any, else a core each."""

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
            return Ending("killed", f"{reason} The same command goes on from its last checkpoint")
        return ending


def _knock(address: str) -> None:
    """Notice in seconds that nobody answers at an address; Ray itself takes minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _work(job: Job, device: str, threads: int) -> Ending:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded, where this process has not yet
    return work(job, device, threads)
