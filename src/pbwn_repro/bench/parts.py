"""Finished parts of a measurement, saved in a file each so that an interrupted measurement can resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pbwn_repro.runs.folder import to_json, write_atomically


class Progress(Protocol):
    """A callback for the progress of a measurement."""

    def __call__(self, done: int, total: int, doing: str) -> None:
        """Called when `done` of `total` pieces are finished; `doing` names the next one."""


class Parts:
    """The saved parts of a measurement; each is written atomically."""

    def __init__(self, folder: Path) -> None:
        """Set the folder; it is created with the first part."""
        self._folder = folder

    def load_or_make(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a saved part; if there is none, make and save it."""
        path = self._folder / f"{name}.json"
        with suppress(FileNotFoundError, ValueError):  # a damaged part is measured again
            saved: dict[str, Any] = json.loads(path.read_text())
            return saved
        part = make()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(part))
        return part
