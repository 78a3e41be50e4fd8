"""Lines of JSON that are cut back on resume to what the checkpoint knows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class MetricsLog:
    """An append-only file with one JSON object a line, floats in full."""

    def __init__(self, path: Path, position: int = 0) -> None:
        """Go on after `position` bytes; whatever follows was written after the checkpoint and is cut off."""
        size = path.stat().st_size if path.exists() else 0
        if size < position:
            raise ValueError(f"{path} has {size} bytes, the checkpoint knows of {position}: it was truncated")
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(position)
        self._file.seek(position)

    def write(self, **values: Any) -> None:
        """Append one line, for whoever looks on: what no checkpoint knows of is cut off when the run resumes."""
        self._file.write(json.dumps(values, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def position(self) -> int:
        """Bring everything to the disk and return the number of bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Bring everything to the disk and close the file."""
        self.position()
        self._file.close()


class NoLog:
    """What the processes other than the first write to."""

    def write(self, **values: Any) -> None:
        """Drop the line."""

    def position(self) -> int:
        """Nothing is written."""
        return 0

    def close(self) -> None:
        """Nothing is open."""
