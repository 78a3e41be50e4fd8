"""Checkpoints as transactions: a whole one is there under its name, or none is.

A checkpoint is written into a temporary folder, each file synced, with a manifest of sizes and sha256 sums, and then
renamed. Any flipped bit or cut file is noticed when it is opened, and the one before is used.
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
    """A checkpoint that is not what was written."""


class ForeignCheckpointError(UsageError):
    """A whole checkpoint, but of another run."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: the step after which it was taken, and its files."""

    step: int
    files: Mapping[str, bytes]


class CheckpointStore:
    """The checkpoints of one run in one folder; the newest `keep` stay."""

    def __init__(
        self, folder: Path, run: str, *, keep: int = 2, on_stage: Callable[[str], None] = lambda stage: None
    ) -> None:
        """`run` is what tells this run from others. `on_stage` is called between the stages of writing."""
        self._folder, self._run, self._keep, self._on_stage = folder, run, keep, on_stage

    def save(self, step: int, files: Mapping[str, bytes]) -> None:
        """Write a checkpoint, then forget the oldest; until the very end the ones before stay whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for rest in self._folder.glob(f"{_WRITING}*"):  # of a process that was killed while it wrote
            shutil.rmtree(rest)
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
        """Forget all but the newest `keep`."""
        for _, path in self._found()[keep:]:
            shutil.rmtree(path)

    def newest(self, report: Callable[[str], None]) -> Checkpoint | None:
        """Open the newest whole checkpoint. Damaged ones are reported and removed."""
        for step, path in self._found():
            try:
                return Checkpoint(step, _read(path, self._run, step))
            except DamagedCheckpointError as damage:
                report(f"checkpoint {path.name} is damaged ({damage}); going back to the one before")
                shutil.rmtree(path)
        return None

    def discard(self, checkpoint: Checkpoint) -> None:
        """Remove one that is whole but of no use."""
        shutil.rmtree(self._path(checkpoint.step))

    def _path(self, step: int) -> Path:
        return self._folder / f"{_PREFIX}{step:09d}"

    def _found(self) -> list[tuple[int, Path]]:
        paths = self._folder.glob(f"{_PREFIX}*") if self._folder.exists() else ()
        steps = {path: path.name.removeprefix(_PREFIX) for path in paths}
        return sorted(((int(step), path) for path, step in steps.items() if step.isdecimal()), reverse=True)


def _manifest(run: str, step: int, files: Mapping[str, bytes]) -> bytes:
    sums = {name: {"bytes": len(content), "sha256": _sha256(content)} for name, content in files.items()}
    return _sealed({"files": sums, "run": run, "step": step})


def _sealed(content: Mapping[str, Any]) -> bytes:
    """A manifest with its own sum."""
    body = json.dumps(content, sort_keys=True)
    return json.dumps({"body": body, "sha256": _sha256(body.encode())}).encode()


def _read_manifest(path: Path) -> dict[str, Any]:
    """What a manifest says, compared with its own sum."""
    raw = _content(path)
    try:
        outer = json.loads(raw)
        body: dict[str, Any] = json.loads(outer["body"])
        intact = json.dumps(outer).encode() == raw and _sha256(outer["body"].encode()) == outer["sha256"]
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise DamagedCheckpointError(f"{MANIFEST} is not what was written")
    return body


def renamed_manifests(folder: Path, before: str, now: str) -> dict[Path, bytes]:
    """The manifests of a run's checkpoints for the same run under another name; what is damaged is left out."""
    found = {}
    for path in sorted(folder.glob(f"{_PREFIX}*/{MANIFEST}")):
        with suppress(DamagedCheckpointError):
            body = _read_manifest(path)
            if body["run"] == before:
                found[path] = _sealed({**body, "run": now})
    return found


def _read(path: Path, run: str, step: int) -> dict[str, bytes]:
    """All files of a checkpoint, each compared with the manifest, and the manifest with its own sum."""
    body = _read_manifest(path / MANIFEST)
    if body["step"] != step:
        raise DamagedCheckpointError(f"{MANIFEST} is not what was written")
    if body["run"] != run:
        raise ForeignCheckpointError(
            f"{path} is a checkpoint of another run ({body['run'][:8]}, not {run[:8]}): move it away, or choose "
            "another folder with --out"
        )
    files = {}
    for name, expected in body["files"].items():
        content = files[name] = _content(path / name)
        if len(content) != expected["bytes"]:
            raise DamagedCheckpointError(f"{name} has {len(content):,} bytes, {expected['bytes']:,} were written")
        if _sha256(content) != expected["sha256"]:
            raise DamagedCheckpointError(f"the sha256 of {name} is not that of what was written")
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
