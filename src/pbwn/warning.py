"""Warnings that point to the line of the user's program that caused them."""

from __future__ import annotations

import inspect
import warnings


def warn(message: str) -> None:
    """Warn with the location of the first caller outside this package."""
    depth, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("pbwn."):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, stacklevel=depth + 1)
