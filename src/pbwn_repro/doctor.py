"""Check the machine and the installation for problems; each finding comes with a remedy."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import torch
from packaging.requirements import Requirement

from pbwn.paths.batch import missing
from pbwn_repro.data.cache import cache_root
from pbwn_repro.data.loading import ABSENT, DAMAGED, inventory
from pbwn_repro.data.published import KNOWN_SETS
from pbwn_repro.runs.environment import processor, version_of
from pbwn_repro.runs.pools import available_cores

Level = Literal["ok", "info", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        level: "info" for something optional that is missing, "warn" for a possible problem, "fail" for one that has to
            be fixed.
        topic: what was checked.
        detail: what was found.
        remedy: what to do about it; empty if there is nothing to do.
    """

    level: Level
    topic: str
    detail: str
    remedy: str = ""


IMPORT_TIMEOUT = 60  # seconds


@dataclass(frozen=True)
class Import:
    """The import of a package in another process."""

    package: str
    _process: subprocess.Popen[str]

    @classmethod
    def begin(cls, package: str) -> Import | None:
        """Start importing a package with this process's search path; None if it is not installed."""
        if importlib.util.find_spec(package) is None:
            return None
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-W", "ignore", "-c", f"import {package}"]
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        return cls(package, subprocess.Popen(command, env=environment, text=True, stdout=null, stderr=pipe))

    def problem(self) -> str | None:
        """Wait for the import to end; return what went wrong in one line, or None."""
        try:
            _, errors = self._process.communicate(timeout=IMPORT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return f"the import took longer than {IMPORT_TIMEOUT} seconds"
        code = self._process.returncode
        if code == 0:
            return None
        lines = [line for line in errors.splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"the import ended with exit code {code}"


REQUIRED = ("", "repro")  # the requirements of the library and of the suite
OPTIONAL = {
    "fast": "a compiled projection on the CPU",
    "hf": "data sets from Hugging Face",
    "tensorboard": "event files of runs",
    "lightning": "the callback for Lightning",
    "transformers": "the callback for Transformers",
    "accelerate": "the projection under Accelerate",
    "cluster": "sweeps on a Ray cluster",
}


def installed(distribution: str = "pbwn") -> Iterator[Finding]:
    """Check Python, this package, its requirements, and those of its extras."""
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    try:
        declared = [Requirement(line) for line in requires(distribution) or []]
    except PackageNotFoundError:
        yield Finding("warn", distribution, "imported from a folder, not installed", "pip install -e '.[repro]'")
        return
    yield Finding("ok", distribution, version(distribution))
    for extra in REQUIRED:
        yield from (_required(requirement) for requirement in declared if _belongs(requirement, extra))
    for extra, purpose in OPTIONAL.items():
        requirements = [requirement for requirement in declared if _belongs(requirement, extra)]
        if requirements:
            yield _optional(extra, purpose, requirements)


def torchvision(importing: Import) -> Finding:
    """Check that torchvision can be imported, which fails if it was built for another version of torch."""
    found = f"{version_of('torchvision') or 'of unknown version'} with torch {version_of('torch')}"
    problem = importing.problem()
    if problem is None:
        return Finding("ok", "torchvision", found)
    return Finding(
        "fail",
        "torchvision",
        f"{found} cannot be imported: {problem}",
        "pbwn does not need it, but Lightning and Transformers import it if it is installed: install the build for "
        "this version of torch, or `pip uninstall torchvision`",
    )


def _required(requirement: Requirement) -> Finding:
    found = version_of(requirement.name)
    if found is None:
        return Finding("fail", requirement.name, "not installed", "pip install 'pbwn[repro]'")
    if not requirement.specifier.contains(found, prereleases=True):
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        return Finding("fail", requirement.name, f"{found}, but {requirement.specifier} is required", remedy)
    return Finding("ok", requirement.name, found)


def _optional(extra: str, purpose: str, requirements: list[Requirement]) -> Finding:
    versions = {requirement.name: version_of(requirement.name) for requirement in requirements}
    topic, remedy = f"extra {extra}", f"pip install 'pbwn[{extra}]'"
    absent = [name for name, installed in versions.items() if installed is None]
    if absent:
        return Finding("info", topic, f"not installed ({purpose}): {', '.join(absent)}", remedy)
    for requirement in requirements:
        if not requirement.specifier.contains(str(versions[requirement.name]), prereleases=True):
            detail = f"{requirement.name} {versions[requirement.name]}, but {requirement.specifier} is required"
            return Finding("warn", topic, detail, remedy)
    return Finding("ok", topic, ", ".join(f"{name} {installed}" for name, installed in versions.items()))


def _belongs(requirement: Requirement, extra: str) -> bool:
    """Whether a requirement applies on this machine with an extra but not without it; "" stands for no extra."""
    if requirement.name == "pbwn":
        return False
    if requirement.marker is None:
        return extra == ""
    without = requirement.marker.evaluate({"extra": ""})
    return without if extra == "" else requirement.marker.evaluate({"extra": extra}) and not without


LOW_MEMORY = 2e9  # bytes


def threads() -> Iterator[Finding]:
    """Check the number of torch's threads, their wait policy, and the load of the machine."""
    cores, count = available_cores(), torch.get_num_threads()
    detail = f"torch uses {count} on {cores:g} cores ({processor()})"
    if count > cores:
        yield Finding("warn", "threads", f"{detail}: they compete for the cores", f"--threads {int(cores) or 1}")
    else:
        yield Finding("ok", "threads", detail)
    yield _wait_policy(os.environ.get("OMP_WAIT_POLICY", "").lower())
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    detail = f"load average {load:.1f} on {cores:g} cores"
    if load > 0.75 * cores:
        yield Finding("warn", "load", detail, "timings are unreliable, and runs take longer")
    else:
        yield Finding("ok", "load", detail)


def compiled_projection() -> Iterator[Finding]:
    """Check whether the projection is compiled."""
    reason = missing("numba")
    if version_of("numba") is None:
        yield Finding("ok", "projection", "not compiled; on the CPU, the extra fast makes it faster")
    elif reason is not None:
        yield Finding("warn", "projection", f"not compiled: {reason}", "it works without numba, but slower on the CPU")
    else:
        yield Finding("ok", "projection", "compiled, on its own threads, not numba's")


def memory() -> Finding:
    """Check the free memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        free, total = sizes["MemAvailable"], sizes["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        return Finding("ok", "memory", "unknown on this system")
    detail = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    if free < LOW_MEMORY:
        return Finding("warn", "memory", detail, "close other programs, or use a smaller --batch-size or fewer --jobs")
    return Finding("ok", "memory", detail)


def accelerator() -> Finding:
    """List the GPUs that torch finds."""
    if not torch.cuda.is_available():
        return Finding("ok", "GPU", "torch finds none: runs use the CPU")
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return Finding("ok", "GPU", ", ".join(names))


def _wait_policy(policy: str) -> Finding:
    if policy == "passive":
        return Finding("ok", "OMP_WAIT_POLICY", "passive: threads sleep while they wait")
    remedy = "export OMP_WAIT_POLICY=passive"
    if policy:
        return Finding("warn", "OMP_WAIT_POLICY", f"{policy}: waiting threads keep the cores from other runs", remedy)
    return Finding("ok", "OMP_WAIT_POLICY", "not set (fine for a single run)", f"for several runs at a time, {remedy}")


LOW_DISK, FULL_DISK = 5e9, 2e8  # bytes


def output(out: Path) -> Iterator[Finding]:
    """Check that the output folder can be written and that its disk has space."""
    yield _writable("output folder", out, "choose another one with --out")
    yield _disk_space("disk for runs", out, "choose another disk with --out, or remove old checkpoints")


def data_sets(cache_dir: Path | None) -> Iterator[Finding]:
    """Check that the data cache can be written and has space, and list the state of each known set."""
    root = cache_root(cache_dir)
    yield _writable("data cache", root, "choose another one with --cache-dir or PBWN_CACHE")
    yield _disk_space("disk for data", root, "choose another disk with --cache-dir or PBWN_CACHE")
    for entry in inventory(cache_dir):
        if entry.name in KNOWN_SETS:
            damaged, absent = entry.state == DAMAGED, entry.state == ABSENT
            detail = entry.state if damaged else f"{entry.state}, {entry.origin}"
            remedy = f"pbwn data check {entry.name}" if damaged else f"pbwn data get {entry.name}" if absent else ""
            yield Finding("fail" if damaged else "info" if absent else "ok", f"data {entry.name}", detail, remedy)


def _writable(topic: str, folder: Path, remedy: str) -> Finding:
    """Check that a folder can be written to, or created if it does not exist; nothing is left behind."""
    nearest = _nearest(folder)
    if folder.exists() and not folder.is_dir():
        return Finding("fail", topic, f"{folder} is a file", remedy)
    try:
        if nearest != folder.absolute():
            if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
                raise PermissionError(f"nothing can be created in {nearest}")
            return Finding("ok", topic, f"{folder} (will be created)")
        with tempfile.TemporaryFile(dir=folder):
            return Finding("ok", topic, str(folder))
    except OSError as error:
        return Finding("fail", topic, f"{folder} cannot be written: {error.strerror or error}", remedy)


def _disk_space(topic: str, folder: Path, remedy: str) -> Finding:
    free = shutil.disk_usage(_nearest(folder)).free
    level: Level = "fail" if free < FULL_DISK else "warn" if free < LOW_DISK else "ok"
    return Finding(level, topic, f"{free / 1e9:,.1f} GB free", "" if level == "ok" else remedy)


def _nearest(folder: Path) -> Path:
    """Return the folder, or its nearest ancestor that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def examine(out: Path, cache_dir: Path | None = None) -> Iterator[Finding]:
    """Check packages, machine and storage; `out` is the folder for runs.

    Torchvision, whose import may crash, is imported by another process while the other checks run.
    """
    importing = Import.begin("torchvision")
    yield from installed()
    yield from threads()
    yield from compiled_projection()
    yield memory()
    yield accelerator()
    yield from output(out)
    yield from data_sets(cache_dir)
    if importing is not None:
        yield torchvision(importing)
