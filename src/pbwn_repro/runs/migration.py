"""Migrate run folders of earlier formats to the current one. Every earlier format stays readable.

Version 1, which has no version number in config.json, hashed all values of the configuration. This hash is part of the
folder's name, result.json, the manifests of checkpoints and the metadata of model.safetensors. Nothing else differs: a
migrated folder is, byte for byte, what the current version would have written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pbwn_repro.config import SCHEMA, RunConfig, read_config
from pbwn_repro.engine.checkpoint import renamed_manifests
from pbwn_repro.runs.folder import BusyError, RunFolder, is_version_1, run_folders, to_json, write_atomically


@dataclass(frozen=True)
class Outcome:
    """The outcome for one folder.

    kind: "migrated" was renamed; "existing" was already complete under its new name, and the old copy was removed;
        "current" has the current format; "other" is not a training run but, for example, a measurement, whose format
        has not changed; "skipped" could not be migrated.
    detail: the new name, or why the folder was skipped.
    """

    path: Path
    kind: Literal["migrated", "existing", "current", "other", "skipped"]
    detail: str = ""


class _CannotMigrateError(Exception):
    """A folder cannot be migrated; the message says why."""


def migrate(root: Path, *, dry_run: bool = False) -> Iterator[Outcome]:
    """Migrate all run folders below `root`, or `root` itself, to the current format.

    Each folder is replaced as a whole: a killed process leaves the old folder, the new one, or both of them complete,
    and calling this again finishes the migration. A folder that cannot be migrated is skipped.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    for folder in run_folders(root):
        try:
            yield _migrate(folder, dry_run=dry_run)
        except (_CannotMigrateError, OSError, ValueError) as error:
            yield Outcome(folder.path, "skipped", str(error))
        except BusyError:
            yield Outcome(folder.path, "skipped", "in use by another process: migrate it after that has ended")


def _migrate(folder: RunFolder, *, dry_run: bool) -> Outcome:
    fields = folder.read_fields()
    if not is_version_1(fields):
        if fields.get("schema", SCHEMA) != SCHEMA:
            raise _CannotMigrateError(f"config.json has schema {fields['schema']!r}, not {SCHEMA}: use a newer pbwn")
        return Outcome(folder.path, "current" if "schema" in fields else "other")
    with _locked(folder, dry_run=dry_run):
        config, old_hash = read_config(fields), _version_1_hash(fields)
        _check_name(folder, config, old_hash)
        target = folder.path.with_name(config.run_name)
        changed = _changed_files(folder, config, old_hash)
        exists = target.exists()
        if exists and not _is_complete(target, folder.path, changed):
            raise _CannotMigrateError(f"{target} exists with other content: move one of the two away")
        if not dry_run:
            if not exists:
                _write(folder.path, target, changed)
            _remove(folder.path)
    return Outcome(folder.path, "existing" if exists else "migrated", target.name)


def _version_1_hash(fields: Mapping[str, Any]) -> str:
    """Return the sha256 of the content of config.json in the canonical form of version 1."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _check_name(folder: RunFolder, config: RunConfig, old_hash: str) -> None:
    """Raise unless the folder's name is that of its configuration."""
    name = f"{config.model}-{config.method}-seed{config.seed}-{old_hash[:8]}"
    if folder.path.name != name:
        raise _CannotMigrateError(f"config.json does not belong to this folder: its run would be called {name}")


def _changed_files(folder: RunFolder, config: RunConfig, old_hash: str) -> dict[Path, bytes]:
    """Return the new content of the files that contain the schema version or the hash, by path within the folder."""
    changed = {folder.config: to_json(config.document)}
    if folder.result.exists():
        result = folder.read_result()
        if result.get("run") != old_hash:
            found = str(result.get("run"))[:8]
            raise _CannotMigrateError(f"result.json belongs to the run {found}, not {old_hash[:8]}")
        changed[folder.result] = to_json({**result, "run": config.hash})
    if folder.model.exists():
        changed[folder.model] = _rehashed_model(folder.model.read_bytes(), old_hash, config.hash)
    changed |= renamed_manifests(folder.checkpoints, old_hash, config.hash)
    return {path.relative_to(folder.path): content for path, content in changed.items()}


def _rehashed_model(content: bytes, old_hash: str, new_hash: str) -> bytes:
    """Replace the hash in the header of a safetensors file, whose length stays valid: both hashes are equally long."""
    end = 8 + int.from_bytes(content[:8], "little")
    return content[:end].replace(old_hash.encode(), new_hash.encode()) + content[end:]


def _is_complete(target: Path, source: Path, changed: Mapping[Path, bytes]) -> bool:
    """Whether the target has every file of the source with its content after migration."""
    for path in source.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            name = path.relative_to(source)
            expected = changed[name] if name in changed else path.read_bytes()
            if not (target / name).is_file() or (target / name).read_bytes() != expected:
                return False
    return True


def _write(source: Path, target: Path, changed: Mapping[Path, bytes]) -> None:
    """Create the migrated folder in one step, under its final name. Unchanged files are hard-linked, not copied."""
    temporary = target.with_name(f".migrating-{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    try:
        shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(".*"), copy_function=_link)
        for name, content in changed.items():
            write_atomically(temporary / name, content)  # replaces the link; the source keeps its content
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


def _remove(folder: Path) -> None:
    """Remove a folder, its configuration last, so that an interrupted removal is found and repeated."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "config.json":
            path.unlink()
    shutil.rmtree(folder)


@contextmanager
def _locked(folder: RunFolder, *, dry_run: bool) -> Iterator[None]:
    """Lock a folder, or in a dry run check that it is not locked; leave no new lock file in a folder that stays."""
    if dry_run:
        if folder.is_busy:
            raise BusyError
        yield
        return
    had_lock_file = folder.lock.exists()
    with folder.locked():
        try:
            yield
        finally:
            if not had_lock_file:
                folder.lock.unlink(missing_ok=True)
