"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the examination.

    Args:
        level: "warn" is worth knowing, "fail" has to be mended.
        topic: what was looked at.
        detail: what was found.
        remedy: what to do about it; empty where there is nothing to do.
    """

    level: Level
    topic: str
    detail: str
    remedy: str = ""
