"""The parts of a measurement that are done already, a file each."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pbwn_repro.runs.folder import to_json, write_atomically


class Progress(Protocol):
    """Who wants to know how a measurement is doing."""

    def __call__(self, done: int, total: int, doing: str) -> None:
        """So many of so many pieces are done; `doing` is what comes next."""


class Parts:
    """What a measurement has put aside; a part is there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        """Nothing is made or read yet."""
        self._folder = folder

    def kept(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A part that was put aside, or else a new one, which is put aside now."""
        path = self._folder / f"{name}.json"
        with suppress(FileNotFoundError, ValueError):  # a damaged part is measured again
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        part = make()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(part))
        return part
