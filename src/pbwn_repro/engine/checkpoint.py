"""Atomic checkpoints: a folder with a checkpoint's final name is always complete.

A checkpoint is written into a temporary folder, each file synced, with a manifest of sizes and sha256 sums, and then
renamed. Reading it detects any flipped bit or truncated file and falls back to the previous checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbwn_repro.errors import UsageError

MANIFEST = "manifest.json"
_PREFIX, _WRITING = "step-", ".writing-"


class DamagedCheckpointError(Exception):
    """A checkpoint whose content is not what was written."""


class ForeignCheckpointError(UsageError):
    """An intact checkpoint that belongs to another run."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its files and the step after which they were saved."""

    step: int
    files: Mapping[str, bytes]


class CheckpointStore:
    """The checkpoints of a run in a folder, of which the newest `keep` are kept."""

    def __init__(
        self, folder: Path, run: str, *, keep: int = 2, on_stage: Callable[[str], None] = lambda stage: None
    ) -> None:
        """`run` is the hash that identifies the run; `on_stage` is called after each stage of writing."""
        self._folder, self._run, self._keep, self._on_stage = folder, run, keep, on_stage

    def save(self, step: int, files: Mapping[str, bytes]) -> None:
        """Write a checkpoint, then delete the oldest; earlier ones stay intact until it is complete."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for partial in self._folder.glob(f"{_WRITING}*"):  # from a process that was killed while writing
            shutil.rmtree(partial)
        temporary, final = self._folder / f"{_WRITING}{step:09d}", self._path(step)
        temporary.mkdir()
        self._on_stage("folder made")
        for name, content in {**files, MANIFEST: _manifest(self._run, step, files)}.items():
            _write(temporary / name, content)
            self._on_stage(f"{name} written")
        _sync(temporary)
        if final.exists():
            shutil.rmtree(final)
            self._on_stage("old one removed")
        temporary.rename(final)
        self._on_stage("renamed")
        _sync(self._folder)
        self.prune(self._keep)
        self._on_stage("pruned")

    def prune(self, keep: int) -> None:
        """Delete all checkpoints but the newest `keep`."""
        for _, path in self._existing()[keep:]:
            shutil.rmtree(path)

    def newest(self, report: Callable[[str], None]) -> Checkpoint | None:
        """Read the newest intact checkpoint, if any; damaged ones are reported and deleted."""
        for step, path in self._existing():
            try:
                return Checkpoint(step, _read(path, self._run, step))
            except DamagedCheckpointError as damage:
                report(f"checkpoint {path.name} is damaged ({damage}); falling back to the previous one")
                shutil.rmtree(path)
        return None

    def discard(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint that cannot be used."""
        shutil.rmtree(self._path(checkpoint.step))

    def _path(self, step: int) -> Path:
        return self._folder / f"{_PREFIX}{step:09d}"

    def _existing(self) -> list[tuple[int, Path]]:
        """The steps and folders of all checkpoints, newest first."""
        paths = self._folder.glob(f"{_PREFIX}*") if self._folder.exists() else ()
        steps = {path: path.name.removeprefix(_PREFIX) for path in paths}
        return sorted(((int(step), path) for path, step in steps.items() if step.isdecimal()), reverse=True)


def _manifest(run: str, step: int, files: Mapping[str, bytes]) -> bytes:
    sums = {name: {"bytes": len(content), "sha256": _sha256(content)} for name, content in files.items()}
    return _sealed({"files": sums, "run": run, "step": step})


def _sealed(content: Mapping[str, Any]) -> bytes:
    """Serialise a manifest together with its own sha256."""
    body = json.dumps(content, sort_keys=True)
    return json.dumps({"body": body, "sha256": _sha256(body.encode())}).encode()


def _read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest and verify it against its own sha256."""
    raw = _content(path)
    try:
        outer = json.loads(raw)
        body: dict[str, Any] = json.loads(outer["body"])
        intact = json.dumps(outer).encode() == raw and _sha256(outer["body"].encode()) == outer["sha256"]
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise DamagedCheckpointError(f"{MANIFEST} is corrupt")
    return body


def renamed_manifests(folder: Path, before: str, now: str) -> dict[Path, bytes]:
    """The manifests of a run's checkpoints, rewritten for a new hash of the run; damaged ones are omitted."""
    manifests = {}
    for path in sorted(folder.glob(f"{_PREFIX}*/{MANIFEST}")):
        with suppress(DamagedCheckpointError):
            body = _read_manifest(path)
            if body["run"] == before:
                manifests[path] = _sealed({**body, "run": now})
    return manifests


def _read(path: Path, run: str, step: int) -> dict[str, bytes]:
    """Read all files of a checkpoint and verify them against its manifest."""
    body = _read_manifest(path / MANIFEST)
    if body["step"] != step:
        raise DamagedCheckpointError(f"{MANIFEST} is corrupt")
    if body["run"] != run:
        raise ForeignCheckpointError(
            f"{path} is a checkpoint of another run ({body['run'][:8]}, not {run[:8]}): move it away, or choose "
            "another folder with --out"
        )
    files = {}
    for name, expected in body["files"].items():
        content = files[name] = _content(path / name)
        if len(content) != expected["bytes"]:
            raise DamagedCheckpointError(f"{name} has {len(content):,} bytes instead of {expected['bytes']:,}")
        if _sha256(content) != expected["sha256"]:
            raise DamagedCheckpointError(f"the sha256 of {name} does not match")
    return files


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path.name} is missing") from None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
