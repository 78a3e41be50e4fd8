"""How many runs share this machine, and what each of them gets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from pbwn_repro.errors import UsageError


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
