"""What stands in the way of training here: a list of findings, each with what to do."""

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
    """One line of the examination.

    Args:
        level: "info" is about what is optional and not here, "warn" is worth knowing, "fail" has to be fixed.
        topic: what was checked.
        detail: what was found.
        remedy: what to do about it; empty where there is nothing to do.
    """

    level: Level
    topic: str
    detail: str
    remedy: str = ""


SECONDS = 60


@dataclass(frozen=True)
class Import:
    """A package that another process is importing."""

    package: str
    _process: subprocess.Popen[str]

    @classmethod
    def begin(cls, package: str) -> Import | None:
        """Start importing a package, as this process would; None if it is not installed."""
        if importlib.util.find_spec(package) is None:
            return None
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        words = [sys.executable, "-W", "ignore", "-c", f"import {package}"]
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        return cls(package, subprocess.Popen(words, env=environment, text=True, stdout=null, stderr=pipe))

    def problem(self) -> str | None:
        """Wait for it: what went wrong in one line, or None."""
        try:
            _, said = self._process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return f"the import took longer than {SECONDS} seconds"
        code = self._process.returncode
        if code == 0:
            return None
        lines = [line for line in said.splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"the import ended with exit code {code}"


NEEDED = ("", "repro")  # the library's own requirements, and the suite's
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
    """Python, this package, what it needs, and what its extras need."""
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    try:
        declared = [Requirement(line) for line in requires(distribution) or []]
    except PackageNotFoundError:
        yield Finding("warn", distribution, "runs from a folder, not installed", "pip install -e '.[repro]'")
        return
    yield Finding("ok", distribution, version(distribution))
    for extra in NEEDED:
        yield from (_needed(requirement) for requirement in declared if _belongs(requirement, extra))
    for extra, purpose in OPTIONAL.items():
        belonging = [requirement for requirement in declared if _belongs(requirement, extra)]
        if belonging:
            yield _optional(extra, purpose, belonging)


def torchvision(importing: Import) -> Finding:
    """Whether torchvision can be imported beside this torch: it fails if it was built for another one."""
    found = f"{version_of('torchvision') or 'of unknown version'} beside torch {version_of('torch')}"
    problem = importing.problem()
    if problem is None:
        return Finding("ok", "torchvision", found)
    return Finding(
        "fail",
        "torchvision",
        f"{found} cannot be imported: {problem}",
        "nothing here needs it, but Lightning and Transformers import it where it is there: install the build that "
        "belongs to this torch, or `pip uninstall torchvision`",
    )


def _needed(requirement: Requirement) -> Finding:
    found = version_of(requirement.name)
    if found is None:
        return Finding("fail", requirement.name, "not installed", "pip install 'pbwn[repro]'")
    if not requirement.specifier.contains(found, prereleases=True):
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        return Finding("fail", requirement.name, f"{found}, but {requirement.specifier} is needed", remedy)
    return Finding("ok", requirement.name, found)


def _optional(extra: str, purpose: str, belonging: list[Requirement]) -> Finding:
    found = {requirement.name: version_of(requirement.name) for requirement in belonging}
    topic, remedy = f"extra {extra}", f"pip install 'pbwn[{extra}]'"
    missing = [name for name, here in found.items() if here is None]
    if missing:
        return Finding("info", topic, f"not installed ({purpose}): {', '.join(missing)}", remedy)
    for requirement in belonging:
        if not requirement.specifier.contains(str(found[requirement.name]), prereleases=True):
            detail = f"{requirement.name} {found[requirement.name]}, but {requirement.specifier} is needed"
            return Finding("warn", topic, detail, remedy)
    return Finding("ok", topic, ", ".join(f"{name} {here}" for name, here in found.items()))


def _belongs(requirement: Requirement, extra: str) -> bool:
    """Whether a requirement comes with an extra, here."""
    if requirement.name == "pbwn":
        return False
    if requirement.marker is None:
        return extra == ""
    without = requirement.marker.evaluate({"extra": ""})
    return without if extra == "" else requirement.marker.evaluate({"extra": extra}) and not without


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
        remedy = "timings are unreliable now, and runs take longer"
        yield Finding("warn", "load", f"load average {load:.1f} on {cores:g} cores", remedy)
    else:
        yield Finding("ok", "load", f"load average {load:.1f} on {cores:g} cores")


def compiled_projection() -> Iterator[Finding]:
    """Whether the projection is compiled, and on whose threads it runs."""
    lack = missing("numba")
    if version_of("numba") is None:
        yield Finding("ok", "projection", "not compiled; on the CPU, the extra fast makes it faster")
    elif lack is not None:
        yield Finding("warn", "projection", f"not compiled: {lack}", "it works without, slower on the CPU")
    else:
        yield Finding("ok", "projection", "compiled, on threads of its own, not numba's")


def memory() -> Finding:
    """What is free."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        held = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        free, total = held["MemAvailable"], held["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        return Finding("ok", "memory", "unknown on this system")
    detail = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    if free < LITTLE_MEMORY:
        return Finding("warn", "memory", detail, "end other programs, or choose a smaller --batch-size or fewer --jobs")
    return Finding("ok", "memory", detail)


def accelerator() -> Finding:
    """The GPUs that torch sees."""
    if not torch.cuda.is_available():
        return Finding("ok", "GPU", "none that torch sees: runs use the CPU")
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return Finding("ok", "GPU", ", ".join(names))


def _wait_policy(policy: str) -> Finding:
    if policy == "passive":
        return Finding("ok", "OMP_WAIT_POLICY", "passive: threads sleep while they wait")
    remedy = "export OMP_WAIT_POLICY=passive"
    if policy:
        return Finding("warn", "OMP_WAIT_POLICY", f"{policy}: waiting threads take the cores from other runs", remedy)
    return Finding("ok", "OMP_WAIT_POLICY", "not set (fine for a single run)", f"for several at a time, {remedy}")


LITTLE_ROOM, NO_ROOM = 5e9, 2e8


def output(out: Path) -> Iterator[Finding]:
    """Whether runs can be written, and how many."""
    yield _writable("output folder", out, "choose another one with --out")
    yield _room("disk for runs", out, "choose another disk with --out, or remove old checkpoints")


def data_sets(cache_dir: Path | None) -> Iterator[Finding]:
    """Whether sets can be fetched, and which are here already."""
    root = cache_root(cache_dir)
    yield _writable("data cache", root, "choose another one with --cache-dir or PBWN_CACHE")
    yield _room("disk for data", root, "choose another disk with --cache-dir or PBWN_CACHE")
    for entry in inventory(cache_dir):
        if entry.name in KNOWN_SETS:
            damaged, absent = entry.state == DAMAGED, entry.state == ABSENT
            detail = entry.state if damaged else f"{entry.state}, {entry.origin}"
            remedy = f"pbwn data check {entry.name}" if damaged else f"pbwn data get {entry.name}" if absent else ""
            yield Finding("fail" if damaged else "info" if absent else "ok", f"data {entry.name}", detail, remedy)


def _writable(topic: str, folder: Path, remedy: str) -> Finding:
    """Write a file into a folder that is there; of one that is not, see whether it could be made."""
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


def _room(topic: str, folder: Path, remedy: str) -> Finding:
    free = shutil.disk_usage(_nearest(folder)).free
    level: Level = "fail" if free < NO_ROOM else "warn" if free < LITTLE_ROOM else "ok"
    return Finding(level, topic, f"{free / 1e9:,.1f} GB free", "" if level == "ok" else remedy)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())


def examine(out: Path, cache_dir: Path | None = None) -> Iterator[Finding]:
    """Look at packages, machine and storage; `out` is the folder that runs are to be kept in.

    What may crash is imported by another process, which works while the rest is looked at.
    """
    imported = Import.begin("torchvision")
    yield from installed()
    yield from threads()
    yield from compiled_projection()
    yield memory()
    yield accelerator()
    yield from output(out)
    yield from data_sets(cache_dir)
    if imported is not None:
        yield torchvision(imported)
