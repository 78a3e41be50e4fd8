"""Bringing run folders of earlier formats to the present one; earlier formats are read for good.

Version 1, which config.json does not name, hashed all values of the configuration. This hash names the folder, and
stands in result.json, in the manifests of checkpoints and in the metadata of model.safetensors. Nothing else has
changed: a migrated folder is, byte for byte, what the present version would have written.
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
    """What became of one folder.

    kind: "migrated" has the new name now; "known" was there under its new name already, whole, and the old copy is
        gone; "current" has the present format; "other" is no training run, such as a measurement, whose format has not
        changed; "left" could not be migrated.
    detail: the new name, or why the folder was left.
    """

    path: Path
    kind: Literal["migrated", "known", "current", "other", "left"]
    detail: str = ""


class _CannotMigrateError(Exception):
    """Why a folder has to be left as it is."""


def migrate(root: Path, *, dry_run: bool = False) -> Iterator[Outcome]:
    """Bring all run folders below `root`, or `root` itself, to the present format.

    Each folder is replaced as a whole: a process that is killed leaves the old one or the new one, or both of them
    whole, and calling this again finishes the work. A folder that cannot be migrated stops no other.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    for folder in run_folders(root):
        try:
            yield _migrate(folder, dry_run=dry_run)
        except (_CannotMigrateError, OSError, ValueError) as error:
            yield Outcome(folder.path, "left", str(error))
        except BusyError:
            yield Outcome(folder.path, "left", "in use by another process: migrate it when that has ended")


def _migrate(folder: RunFolder, *, dry_run: bool) -> Outcome:
    fields = folder.read_fields()
    if not is_version_1(fields):
        if fields.get("schema", SCHEMA) != SCHEMA:
            raise _CannotMigrateError(f"config.json has schema {fields['schema']!r}, not {SCHEMA}: use a newer pbwn")
        return Outcome(folder.path, "current" if "schema" in fields else "other")
    with _held(folder, dry_run=dry_run):
        config, before = read_config(fields), _version_1_hash(fields)
        _check_name(folder, config, before)
        target = folder.path.with_name(config.run_name)
        changed = _changed_files(folder, config, before)
        is_known = target.exists()
        if is_known and not _holds_everything(target, folder.path, changed):
            raise _CannotMigrateError(f"{target} exists and is another one: move one of the two away")
        if not dry_run:
            if not is_known:
                _write(folder.path, target, changed)
            _remove(folder.path)
    return Outcome(folder.path, "known" if is_known else "migrated", target.name)


def _version_1_hash(fields: Mapping[str, Any]) -> str:
    """The sha256 of all that config.json holds, in the fixed form that version 1 had."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _check_name(folder: RunFolder, config: RunConfig, before: str) -> None:
    """Make sure that the configuration is the one that the folder was made for."""
    name = f"{config.model}-{config.method}-seed{config.seed}-{before[:8]}"
    if folder.path.name != name:
        raise _CannotMigrateError(f"config.json is not that of this folder: its run would be called {name}")


def _changed_files(folder: RunFolder, config: RunConfig, before: str) -> dict[Path, bytes]:
    """The files that name the schema or the run, as they have to be, by their place in the folder."""
    changed = {folder.config: to_json(config.document)}
    if folder.result.exists():
        result = folder.read_result()
        if result.get("run") != before:
            raise _CannotMigrateError(f"result.json belongs to the run {str(result.get('run'))[:8]}, not {before[:8]}")
        changed[folder.result] = to_json({**result, "run": config.hash})
    if folder.model.exists():
        changed[folder.model] = _renamed_model(folder.model.read_bytes(), before, config.hash)
    changed |= renamed_manifests(folder.checkpoints, before, config.hash)
    return {path.relative_to(folder.path): content for path, content in changed.items()}


def _renamed_model(content: bytes, before: str, now: str) -> bytes:
    """A safetensors file with another run in its header, which begins with its length; hashes are equally long."""
    end = 8 + int.from_bytes(content[:8], "little")
    return content[:end].replace(before.encode(), now.encode()) + content[end:]


def _holds_everything(target: Path, source: Path, changed: Mapping[Path, bytes]) -> bool:
    """Whether the target has every file of the source as it would be after migration."""
    for path in source.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            name = path.relative_to(source)
            expected = changed[name] if name in changed else path.read_bytes()
            if not (target / name).is_file() or (target / name).read_bytes() != expected:
                return False
    return True


def _write(source: Path, target: Path, changed: Mapping[Path, bytes]) -> None:
    """Have the migrated folder there whole, or not at all. Files that stay the same are linked, not copied."""
    temporary = target.with_name(f".migrating-{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    try:
        shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(".*"), copy_function=_link)
        for name, content in changed.items():
            write_atomically(temporary / name, content)  # which replaces a link, and leaves the source as it is
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def _remove(folder: Path) -> None:
    """Remove a folder, its configuration last: until then it is found again if this is interrupted."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "config.json":
            path.unlink()
    shutil.rmtree(folder)


@contextmanager
def _held(folder: RunFolder, *, dry_run: bool) -> Iterator[None]:
    """Hold a folder, or in a dry run check that nobody does; a folder that stays is left as it was found."""
    if dry_run:
        if folder.is_busy:
            raise BusyError
        yield
        return
    was_there = folder.lock.exists()
    with folder.locked():
        try:
            yield
        finally:
            if not was_there:
                folder.lock.unlink(missing_ok=True)
