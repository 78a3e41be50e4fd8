"""The sub-commands of `pbwn`, one module each; heavy imports wait inside of the functions."""

from __future__ import annotations

import sys


def announce(words: str) -> None:
    """Say on a terminal what begins, before imports that take seconds; logs and pipes have the results alone."""
    if sys.stderr.isatty():
        print(words, file=sys.stderr, flush=True)
