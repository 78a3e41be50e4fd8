"""What the command's exit code says, and which error ends in which.

| code | meaning |
|---|---|
| 0 | done |
| 1 | something outside the command went wrong: data that cannot be had, a full disk, a run in use or killed |
| 2 | wrong usage: an unknown name or option, or a configuration that cannot be run |
| 3 | the loss or a gradient was not finite |
| 75 | stopped on request; the same command resumes |

Of several runs, 75 if they were stopped, else 1 if any ended in such a way, else 3 if any has diverged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbwn_repro.errors import DataError, UnknownSetError, UsageError

if TYPE_CHECKING:
    from pbwn_repro.runs.sweep import Sweep

DONE, FAILED, USAGE, NON_FINITE, INTERRUPTED = 0, 1, 2, 3, 75


def exit_code(error: Exception) -> int | None:
    """The exit code of an error that a user can do something about; None for all others, which are bugs."""
    if isinstance(error, (UsageError, UnknownSetError)):
        return USAGE
    if isinstance(error, (DataError, OSError)):
        return FAILED
    from pbwn_repro.engine.finite import NonFiniteError  # imports torch, which a mistyped name need not wait for
    from pbwn_repro.engine.signals import Interrupted
    from pbwn_repro.runs.folder import BusyError

    if isinstance(error, Interrupted):
        return INTERRUPTED
    if isinstance(error, NonFiniteError):
        return NON_FINITE
    return FAILED if isinstance(error, BusyError) else None


def sweep_code(sweep: Sweep) -> int:
    """The exit code of several runs together."""
    if sweep.stopping:
        return INTERRUPTED
    if sweep.having("failed", "killed", "busy", "stopped"):
        return FAILED
    return NON_FINITE if sweep.having("diverged") else DONE
