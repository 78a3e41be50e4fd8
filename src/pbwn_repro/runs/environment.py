"""The environment of a run: versions, threads, machine and code."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import pbwn
import pbwn_repro
from pbwn_repro.config import RunConfig
from pbwn_repro.importing import is_own, source_digest
from pbwn_repro.tasks import AnySet

_PACKAGES = ("torch", "numpy", "safetensors", "pydantic", "scikit-learn", "numba", "triton")


def environment(device: torch.device, dataset: AnySet | None = None, config: RunConfig | None = None) -> dict[str, Any]:
    """Return everything that the bytes of a run may depend on besides its configuration."""
    data = {"name": dataset.name, "sha256": dataset.digest, "origin": dataset.origin} if dataset else None
    own = own_code(config) if config else {}
    return {
        **({"data": data} if data else {}),
        **({"own": own} if own else {}),
        "code": {"pbwn": pbwn.__version__, "sha256": code_digest()},
        "packages": {name: found for name in _PACKAGES if (found := version_of(name)) is not None},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def own_code(config: RunConfig) -> dict[str, str | None]:
    """Return the sha256 of the file of the model and of the method, where these are the user's own."""
    return {name: source_digest(name) for name in (config.model, config.method) if is_own(name)}


def differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Describe each entry that differs between two environments, in one phrase per entry."""
    found = []
    for key in sorted(before.keys() | now.keys()):
        old, new, name = before.get(key), now.get(key), f"{prefix}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{name}.")
        elif old != new:
            found.append(f"{name} was {_short(old)}, is {_short(new)}")
    return found


@cache
def code_digest() -> str:
    """Return the sha256 of the source files of both packages."""
    digest = hashlib.sha256()
    for package in (pbwn, pbwn_repro):
        root = Path(package.__file__ or "").parent
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root.parent)).encode() + path.read_bytes())
    return digest.hexdigest()


def processor() -> str:
    """Return the name of the processor, or its architecture where the system does not provide a name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _short(value: Any) -> str:
    return repr(value) if len(repr(value)) < 40 else f"{repr(value)[:16]}...'"
