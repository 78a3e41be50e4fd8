"""The folder of one run: its layout, its state, and the lock that keeps other processes out.

<out>/<artefact>/<scale>/<name>-<hash8>/
config.json  environment.json  metrics.jsonl  timing.jsonl  monitor.jsonl  checkpoints/  model.safetensors  result.json
diverged.json instead of a result; progress.json while a sweep runs it; log.txt if anything was printed;
.lock, and .holder while a process holds the lock
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from pbwn_repro.config import OBSERVATION, ConfigError, RunConfig, read_config
from pbwn_repro.errors import UsageError

State = Literal["done", "diverged", "started", "not started"]


class RunFolder:
    """The folder of one run. Configurations that give the same result share a folder."""

    def __init__(self, path: Path) -> None:
        """Derive the paths; nothing is created or read."""
        self.path = path
        self.config = path / "config.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.timing = path / "timing.jsonl"
        self.monitor = path / "monitor.jsonl"  # with --monitor only
        self.checkpoints = path / "checkpoints"
        self.model = path / "model.safetensors"
        self.result = path / "result.json"
        self.diverged = path / "diverged.json"
        self.lock = path / ".lock"

    @classmethod
    def of(cls, config: RunConfig, out: Path, artefact: str = "train", scale: str | None = None) -> RunFolder:
        """Return the folder of a configuration below `out`."""
        return cls(out / artefact / scale / config.run_name if scale else out / artefact / config.run_name)

    @property
    def state(self) -> State:
        """The state on disk, from the files that exist: result.json, diverged.json, config.json, or none of them."""
        if self.result.exists():
            return "done"
        return "diverged" if self.diverged.exists() else "started" if self.config.exists() else "not started"

    def read_fields(self) -> dict[str, Any]:
        """Return the content of config.json, in whatever version, and for measurements too."""
        try:
            fields = json.loads(self.config.read_text())
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self.config} cannot be read ({error}): move the folder away") from None
        if not isinstance(fields, dict):
            raise ConfigError(f"{self.config} holds no JSON object: move the folder away")
        return fields

    def read_config(self) -> RunConfig:
        """Return the configuration of the run, which has to be in the current format."""
        fields = self.read_fields()
        if is_version_1(fields):
            raise OutdatedError(f"{self.path} was written by an earlier version: run `pbwn migrate {self.path}`")
        try:
            return read_config(fields)
        except ConfigError as error:
            raise ConfigError(
                f"{self.config}: {error}. If a newer pbwn wrote it, use that version; otherwise move the folder away"
            ) from None

    def claim(self, config: RunConfig, report: Callable[[str], None]) -> RunConfig:
        """Write the configuration into a new folder, or check that the folder holds the same run.

        Returns the configuration to run with, which is also the one written to config.json.
        """
        kept = self.reconcile(config, report) if self.config.exists() else config
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config, to_json(kept.document))
        return kept

    def reconcile(self, config: RunConfig, report: Callable[[str], None]) -> RunConfig:
        """Merge the folder's configuration with a command's; raise if they are not the same run.

        Logging and evaluation intervals come from the folder, because a resumed run has to end like an uninterrupted
        one; the checkpoint interval comes from the command. Non-finite steps are skipped if either asks for it.
        """
        found = self.read_config()
        if found.hash != config.hash:
            raise ConfigError(
                f"{self.path} holds another configuration ({found.hash[:8]}, not {config.hash[:8]}): move it away, or "
                "choose another folder with --out"
            )
        for name in sorted(OBSERVATION - {"checkpoint_every"}):
            before, now = (_interval(getattr(each, name)) for each in (found, config))
            if before != now:
                report(
                    f"{name} stays at {before}, as when this run was started, instead of {now}: to change it, choose "
                    "another folder with --out"
                )
        if (found.on_nonfinite, config.on_nonfinite) == ("skip", "stop"):
            report("non-finite steps are skipped, as an earlier command for this run requested")
        handling = "skip" if "skip" in (found.on_nonfinite, config.on_nonfinite) else "stop"
        return found.model_copy(update={"checkpoint_every": config.checkpoint_every, "on_nonfinite": handling})

    def refuse_outdated(self, config: RunConfig) -> None:
        """Raise if an earlier version keeps this run under another name: it would be trained a second time."""
        if self.config.exists():
            return
        stem = self.path.name.rpartition("-")[0]
        for path in sorted(self.path.parent.glob(f"{stem}-*/config.json")):
            try:
                fields = RunFolder(path.parent).read_fields()
                is_same = is_version_1(fields) and read_config(fields).hash == config.hash
            except (OSError, ValueError):
                continue  # an unreadable folder is not this run
            if is_same:
                raise OutdatedError(
                    f"{path.parent} holds this run in the format of an earlier version: run "
                    f"`pbwn migrate {self.path.parent}`"
                )

    def read_result(self, *required: str) -> dict[str, Any]:
        """Return the result of a finished run; raise if one of the required entries is not a number."""
        try:
            result = json.loads(self.result.read_text())
        except ValueError:
            result = None
        if not isinstance(result, dict) or not result or not all(_is_number(result.get(name)) for name in required):
            raise OSError(f"{self.result} is damaged: remove it to resume the run")
        return result

    def record_divergence(self, step: int, message: str) -> None:
        """Record that the loss or a gradient was not finite at a step, so that the run is not repeated in vain."""
        write_atomically(self.diverged, to_json({"step": step, "message": message}))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process; the lock is released when the process ends, however it ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock, holder = FileLock(self.lock), self.lock.with_name(".holder")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            name = holder.read_text() if holder.exists() else "unknown"
            raise BusyError(
                f"{self.path} is in use by another process ({name}): wait for it, or choose another folder with --out"
            ) from None
        try:
            holder.write_text(f"{os.getpid()} on {socket.gethostname()}")
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()

    @property
    def is_busy(self) -> bool:
        """Whether another process has locked the folder."""
        if not self.lock.exists():
            return False
        try:
            with FileLock(self.lock, blocking=False):
                return False
        except Timeout:
            return True


class BusyError(Exception):
    """The run folder is locked by another process."""


class OutdatedError(ConfigError):
    """A run folder in the format of an earlier version."""


def is_version_1(fields: object) -> bool:
    """Whether this is the content of a run's config.json in the first format, which has no schema version."""
    return isinstance(fields, dict) and "schema" not in fields and {"model", "method", "data"} <= fields.keys()


def run_folders(root: Path) -> list[RunFolder]:
    """Return `root` and all folders below it that hold a config.json, except in hidden folders."""
    paths = (path.parent for path in root.rglob("config.json"))
    return [
        RunFolder(path)
        for path in sorted(paths)
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]


def to_json(value: Any) -> bytes:
    """Serialise to human-readable JSON in a canonical form."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def _interval(steps: int | None) -> str:
    return "each epoch" if steps is None else f"{steps:,} steps"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it exists with its full content or not at all."""
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


# In the order of copying: result.json marks a run as finished, so it comes last.
KEPT = (
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "timing.jsonl",
    "monitor.jsonl",
    "diverged.json",
    "result.json",
)


@dataclass
class Archived:
    """Counts of runs copied, runs archived before and unfinished runs, and the total size of the archive in bytes."""

    new: int = 0
    existing: int = 0
    unfinished: int = 0
    bytes: int = 0


def archive(runs: Path, target: Path) -> Archived:
    """Copy the small files of every finished run below `runs` to the same relative path below `target`.

    If the target already has a run, its result has to be identical: a different result for the same configuration is an
    error, because one of the two is wrong, or they come from different machines and must not be mixed.
    """
    if not runs.is_dir():
        raise FileNotFoundError(f"{runs}: no such folder")
    counts = Archived()
    target_is_inside = runs.resolve() in target.resolve().parents
    for source in run_folders(runs):
        if target_is_inside and target.resolve() in source.config.resolve().parents:
            continue  # part of the archive itself
        if source.state not in ("done", "diverged"):
            counts.unfinished += 1
            continue
        kept = RunFolder(target / source.path.relative_to(runs))
        if kept.state in ("done", "diverged"):
            _compare(source, kept)
            counts.existing += 1
        else:
            kept.path.mkdir(parents=True, exist_ok=True)
            for name in KEPT:
                if (source.path / name).exists():
                    write_atomically(kept.path / name, (source.path / name).read_bytes())
            counts.new += 1
    # Only the copied files: the target may also hold a report.
    counts.bytes = sum(path.stat().st_size for name in KEPT for path in target.rglob(name))
    return counts


def _compare(source: RunFolder, kept: RunFolder) -> None:
    """Raise unless an archived run has the same result as its source."""
    for path in (source.result, source.diverged):
        copy = kept.path / path.name
        if path.exists() != copy.exists() or (path.exists() and path.read_bytes() != copy.read_bytes()):
            raise UsageError(f"{copy} differs from {path}: keep one of the two runs")
