"""Whether this process was forked from one whose OpenMP threads it does not have.

Forks are watched from the moment that pbwn is imported; the compiled path, which asks, may be imported later.
"""

from __future__ import annotations

import os
import sys

_is_forked = False


def is_forked() -> bool:
    """Whether there was a fork since pbwn was imported, other than by a fork server."""
    return _is_forked


def _note_fork() -> None:
    """A fork server only imports before it forks: it has no threads that its processes could miss."""
    global _is_forked
    _is_forked |= sys._getframe(1).f_globals.get("__name__") != "multiprocessing.forkserver"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
