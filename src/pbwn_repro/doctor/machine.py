"""Cores, threads, memory, and what the compiled projection finds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from pbwn.paths.batch import missing
from pbwn_repro.doctor.finding import Finding
from pbwn_repro.runs.environment import processor
from pbwn_repro.runs.packing import available_cores

LITTLE_MEMORY = 2e9


def threads() -> Iterator[Finding]:
    """How many threads torch uses, what they do while they wait, and whether the cores are free."""
    cores, count = available_cores(), torch.get_num_threads()
    detail = f"{count} of torch on {cores:g} cores ({processor()})"
    if count > cores:
        yield Finding(
            "warn", "threads", f"{detail}: they take the cores from each other", f"--threads {int(cores) or 1}"
        )
    else:
        yield Finding("ok", "threads", detail)
    yield _wait_policy(os.environ.get("OMP_WAIT_POLICY", "").lower())
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 0.75 * cores:
        remedy = "times that are measured now mean little; runs take longer"
        yield Finding("warn", "load", f"{load:.1f} processes want {cores:g} cores", remedy)
    else:
        yield Finding("ok", "load", f"{load:.1f} processes on {cores:g} cores")


def compiled_projection() -> Iterator[Finding]:
    """Whether the projection is compiled, and on whose threads it runs."""
    lack = missing("numba")
    if lack is not None:
        yield Finding(
            "warn", "projection", f"not compiled: {lack}", "pip install 'pbwn[fast]'; it works without, slower"
        )
        return
    yield Finding("ok", "projection", "compiled, on torch's own threads; numba's threading layer is not used")


def memory() -> Finding:
    """What is free."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        held = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        free, total = held["MemAvailable"], held["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        return Finding("ok", "memory", "the system does not tell")
    detail = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    if free < LITTLE_MEMORY:
        return Finding("warn", "memory", detail, "end other programs, or choose a smaller --batch-size or fewer --jobs")
    return Finding("ok", "memory", detail)


def accelerator() -> Finding:
    """The GPUs that torch sees."""
    if not torch.cuda.is_available():
        return Finding("ok", "GPU", "none that torch sees: runs use the processor")
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return Finding("ok", "GPU", ", ".join(names))


def _wait_policy(policy: str) -> Finding:
    if policy == "passive":
        return Finding("ok", "wait policy", "passive: threads sleep while they wait")
    remedy = "export OMP_WAIT_POLICY=passive"
    if policy:
        return Finding("warn", "wait policy", f"{policy}: waiting threads take the cores from other runs", remedy)
    detail = "not set: right for one run; `pbwn reproduce` and torchrun set it to passive"
    return Finding("ok", "wait policy", detail, f"for several runs that you start yourself, {remedy}")
