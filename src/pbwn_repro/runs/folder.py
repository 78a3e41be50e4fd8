"""The folder of one run: its names, its state, and the lock that keeps two processes apart.

<out>/<artefact>/<scale>/<name>-<hash8>/
config.json  environment.json  metrics.jsonl  timing.jsonl  checkpoints/  model.safetensors  result.json
diverged.json instead of a result; progress.json while a sweep works on it; log.txt if there was anything to say
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pbwn_repro.config import ConfigError, RunConfig, read_config

State = Literal["done", "diverged", "started", "empty"]


class RunFolder:
    """Where one run is kept. Same configuration, same folder."""

    def __init__(self, path: Path) -> None:
        """Nothing is made or read yet."""
        self.path = path
        self.config = path / "config.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.timing = path / "timing.jsonl"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model.safetensors"
        self.result = path / "result.json"
        self.diverged = path / "diverged.json"

    @classmethod
    def of(cls, config: RunConfig, out: Path, artefact: str = "train", scale: str | None = None) -> RunFolder:
        """The folder that a configuration has below `out`."""
        return cls(out / artefact / scale / config.run_name if scale else out / artefact / config.run_name)

    @property
    def state(self) -> State:
        """What is on the disk: a result, the note that there is none, a configuration, or nothing."""
        if self.result.exists():
            return "done"
        return "diverged" if self.diverged.exists() else "started" if self.config.exists() else "empty"

    def claim(self, config: RunConfig) -> None:
        """Write the configuration into a new folder, or make sure that the folder holds this very one."""
        if self.config.exists():
            try:
                found = read_config(json.loads(self.config.read_text()))
            except (ValueError, ConfigError) as error:
                raise ConfigError(f"{self.config} cannot be read ({error}): move the folder away") from None
            if found != config:
                raise ConfigError(
                    f"{self.path} holds another configuration ({found.hash[:8]}, not {config.hash[:8]}): move it away, "
                    "or choose another folder with --out"
                )
            return
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config, to_json(config.model_dump(mode="json")))

    def read_result(self) -> dict[str, Any]:
        """The numbers of a finished run."""
        try:
            found = json.loads(self.result.read_text())
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found:
            raise OSError(f"{self.result} is damaged: remove it, and the run goes on")
        return found

    def note_divergence(self, step: int, message: str) -> None:
        """Leave word that the loss or a gradient was not finite at a step: the same would happen again."""
        write_atomically(self.diverged, to_json({"step": step, "message": message}))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process alone; the lock goes with the process, however it ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise BusyError(
                    f"{self.path} is in use by another process ({holder}): wait for it, or choose another folder with "
                    "--out"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


class BusyError(Exception):
    """Another process works on this run."""


def to_json(value: Any) -> bytes:
    """JSON for people, in one fixed form."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def write_atomically(path: Path, content: bytes) -> None:
    """Have a file there whole, or not at all."""
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
