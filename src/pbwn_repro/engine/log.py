"""JSON-lines logs that are truncated on resume to what the checkpoint covers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class MetricsLog:
    """An append-only file with one JSON object per line, floats in full precision."""

    def __init__(self, path: Path, position: int = 0) -> None:
        """Continue after `position` bytes; anything beyond was written after the checkpoint and is removed."""
        size = path.stat().st_size if path.exists() else 0
        if size < position:
            raise ValueError(f"{path} has {size} bytes, but the checkpoint covers {position}: it was truncated")
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(position)
        self._file.seek(position)

    def write(self, **values: Any) -> None:
        """Append one line and flush it, so that a live run can be followed."""
        self._file.write(json.dumps(values, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def position(self) -> int:
        """Sync the file to disk and return its size in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Sync the file to disk and close it."""
        self.position()
        self._file.close()


class NoLog:
    """The log of all processes but the first: discards everything."""

    def write(self, **values: Any) -> None:
        """Discard the line."""

    def position(self) -> int:
        """Return 0."""
        return 0

    def close(self) -> None:
        """Do nothing."""
