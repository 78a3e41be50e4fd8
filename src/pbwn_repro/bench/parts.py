"""The parts of a measurement that are done already, a file each."""

from __future__ import annotations

import json
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

    def read(self, name: str) -> dict[str, Any] | None:
        """A part that was kept, or None."""
        try:
            found: dict[str, Any] = json.loads((self._folder / f"{name}.json").read_text())
        except (FileNotFoundError, ValueError):  # a damaged part is measured again
            return None
        return found

    def keep(self, name: str, part: dict[str, Any]) -> None:
        """Put a part aside."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / f"{name}.json", to_json(part))
