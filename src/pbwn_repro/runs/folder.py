"""The folder of one run: its names, its state, and the lock that keeps two processes apart.

<out>/<artefact>/<scale>/<name>-<hash8>/
config.json  environment.json  metrics.jsonl  timing.jsonl  monitor.jsonl  checkpoints/  model.safetensors  result.json
diverged.json instead of a result; progress.json while a sweep works on it; log.txt if there was anything to say;
.lock, and .holder while a process holds it
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
    """Where one run is kept. What gives the same result has the same folder."""

    def __init__(self, path: Path) -> None:
        """Nothing is made or read yet."""
        self.path = path
        self.config = path / "config.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.timing = path / "timing.jsonl"
        self.monitor = path / "monitor.jsonl"  # where it was asked for
        self.checkpoints = path / "checkpoints"
        self.model = path / "model.safetensors"
        self.result = path / "result.json"
        self.diverged = path / "diverged.json"
        self.lock = path / ".lock"

    @classmethod
    def of(cls, config: RunConfig, out: Path, artefact: str = "train", scale: str | None = None) -> RunFolder:
        """The folder that a configuration has below `out`."""
        return cls(out / artefact / scale / config.run_name if scale else out / artefact / config.run_name)

    @property
    def state(self) -> State:
        """What is on the disk: a result, the note that there is none, a configuration, or nothing."""
        if self.result.exists():
            return "done"
        return "diverged" if self.diverged.exists() else "started" if self.config.exists() else "not started"

    def read_fields(self) -> dict[str, Any]:
        """What config.json holds, of whatever version, and also that of a measurement."""
        try:
            fields = json.loads(self.config.read_text())
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self.config} cannot be read ({error}): move the folder away") from None
        if not isinstance(fields, dict):
            raise ConfigError(f"{self.config} holds no JSON object: move the folder away")
        return fields

    def read_config(self) -> RunConfig:
        """The configuration that the folder holds."""
        fields = self.read_fields()
        if is_version_1(fields):
            raise OutdatedError(f"{self.path} was written by an earlier version: run `pbwn migrate {self.path}`")
        try:
            return read_config(fields)
        except ConfigError as error:
            raise ConfigError(
                f"{self.config}: {error}. Use a newer pbwn if one wrote it, or else move the folder away"
            ) from None

    def claim(self, config: RunConfig, report: Callable[[str], None]) -> RunConfig:
        """Write the configuration into a new folder, or make sure that the folder holds the same run.

        Returns the configuration to run with, which is also what config.json holds from now on.
        """
        kept = self.agreed(config, report) if self.config.exists() else config
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config, to_json(kept.document))
        return kept

    def agreed(self, config: RunConfig, report: Callable[[str], None]) -> RunConfig:
        """What the folder and a command agree on, if it is about the same run.

        The loss is logged and the model evaluated as often as the folder says, because a resumed run has to end like an
        uninterrupted one. Checkpoints are saved as often as the command says. Steps that are not finite are skipped
        once a command has said so.
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
                    f"{name} stays at {before}, as this run was started, instead of {now}: for another, choose another "
                    "folder with --out"
                )
        if (found.on_nonfinite, config.on_nonfinite) == ("skip", "stop"):
            report("steps that are not finite are skipped, as this run was told before")
        handling = "skip" if "skip" in (found.on_nonfinite, config.on_nonfinite) else "stop"
        return found.model_copy(update={"checkpoint_every": config.checkpoint_every, "on_nonfinite": handling})

    def refuse_outdated(self, config: RunConfig) -> None:
        """Make sure that an earlier version has not kept this run under another name: it would be made twice."""
        if self.config.exists():
            return
        stem = self.path.name.rpartition("-")[0]
        for path in sorted(self.path.parent.glob(f"{stem}-*/config.json")):
            try:
                fields = RunFolder(path.parent).read_fields()
                is_same = is_version_1(fields) and read_config(fields).hash == config.hash
            except (OSError, ValueError):
                continue  # what cannot be read is not this run
            if is_same:
                raise OutdatedError(
                    f"{path.parent} holds this run as an earlier version has written it: run "
                    f"`pbwn migrate {self.path.parent}`"
                )

    def read_result(self, *needed: str) -> dict[str, Any]:
        """What a finished run has found, with the numbers that are needed of it."""
        try:
            found = json.loads(self.result.read_text())
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found or not all(_is_number(found.get(name)) for name in needed):
            raise OSError(f"{self.result} is damaged: remove it, and the run resumes")
        return found

    def note_divergence(self, step: int, message: str) -> None:
        """Leave word that the loss or a gradient was not finite at a step: the same would happen again."""
        write_atomically(self.diverged, to_json({"step": step, "message": message}))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process alone; the lock goes with the process, however it ends."""
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
        """Whether another process holds the folder."""
        if not self.lock.exists():
            return False
        try:
            with FileLock(self.lock, blocking=False):
                return False
        except Timeout:
            return True


class BusyError(Exception):
    """Another process works on this run."""


class OutdatedError(ConfigError):
    """A run folder in the format of an earlier version."""


def is_version_1(fields: object) -> bool:
    """Whether this is the content of a run's config.json as the first format had it: without a schema version."""
    return isinstance(fields, dict) and "schema" not in fields and {"model", "method", "data"} <= fields.keys()


def run_folders(root: Path) -> list[RunFolder]:
    """All folders below `root`, and itself, that hold a configuration; hidden ones are left out."""
    paths = (path.parent for path in root.rglob("config.json"))
    return [
        RunFolder(path)
        for path in sorted(paths)
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]


def to_json(value: Any) -> bytes:
    """JSON for people, in one fixed form."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def _interval(steps: int | None) -> str:
    return "each epoch" if steps is None else f"{steps:,} steps"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def write_atomically(path: Path, content: bytes) -> None:
    """Have a file there whole, or not at all."""
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


# The last of them makes the run a finished one: it is copied last.
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
    """What was done: folders newly kept, those that were there, those that are not finished, and the bytes of all."""

    new: int = 0
    known: int = 0
    unfinished: int = 0
    bytes: int = 0


def archive(runs: Path, target: Path) -> Archived:
    """Copy the small files of every finished run below `runs` to the same place below `target`.

    A run that is there already has to be the same one: another result for the same configuration is an error, because
    one of the two is wrong, or they come from different machines and do not belong into one folder.
    """
    if not runs.is_dir():
        raise FileNotFoundError(f"{runs}: no such folder")
    done = Archived()
    is_inside = runs.resolve() in target.resolve().parents
    for source in run_folders(runs):
        if is_inside and target.resolve() in source.config.resolve().parents:
            continue  # what was kept before is no run
        if source.state not in ("done", "diverged"):
            done.unfinished += 1
            continue
        kept = RunFolder(target / source.path.relative_to(runs))
        if kept.state in ("done", "diverged"):
            _compare(source, kept)
            done.known += 1
        else:
            kept.path.mkdir(parents=True, exist_ok=True)
            for name in KEPT:
                if (source.path / name).exists():
                    write_atomically(kept.path / name, (source.path / name).read_bytes())
            done.new += 1
    done.bytes = sum(path.stat().st_size for name in KEPT for path in target.rglob(name))  # a report may be there too
    return done


def _compare(source: RunFolder, kept: RunFolder) -> None:
    for path in (source.result, source.diverged):
        copy = kept.path / path.name
        if path.exists() != copy.exists() or (path.exists() and path.read_bytes() != copy.read_bytes()):
            raise UsageError(f"{kept.path} holds another {path.name} than {source.path}: keep one of the two runs")
