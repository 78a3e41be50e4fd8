"""Where runs and data are kept: room, the right to write, and which sets are here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pbwn_repro.data.cache import cache_root
from pbwn_repro.data.loading import inventory
from pbwn_repro.data.published import KNOWN_SETS
from pbwn_repro.doctor.finding import Finding, Level

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
            damaged, absent = entry.state == "damaged", entry.state == "not here"
            detail = entry.state if damaged else f"{entry.state}, {entry.origin}"
            remedy = f"pbwn data check {entry.name}" if damaged else f"pbwn data get {entry.name}" if absent else ""
            yield Finding("fail" if damaged else "ok", f"data {entry.name}", detail, remedy)


def _writable(topic: str, folder: Path, remedy: str) -> Finding:
    """Write a file into a folder that is there; of one that is not, see whether it could be made."""
    nearest = _nearest(folder)
    if folder.exists() and not folder.is_dir():
        return Finding("fail", topic, f"{folder} is a file", remedy)
    try:
        if nearest != folder.absolute():
            if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
                raise PermissionError(f"nothing can be made in {nearest}")
            return Finding("ok", topic, f"{folder} (will be made)")
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
