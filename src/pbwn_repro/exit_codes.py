"""The command's exit codes, and the errors that lead to them.

| code | meaning |
|---|---|
| 0 | done |
| 1 | a failure outside the command: missing or damaged data, a full disk, a run that is in use or was killed |
| 2 | wrong usage: an unknown name or option, or an invalid configuration |
| 3 | the loss or a gradient was not finite |
| 75 | stopped on request; the same command resumes |

The exit code of several runs is 75 if they were stopped, else 1 if any failed, else 3 if any diverged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbwn_repro.errors import DataError, UnknownSetError, UsageError

if TYPE_CHECKING:
    from pbwn_repro.runs.sweep import Sweep

DONE, FAILED, USAGE, NON_FINITE, INTERRUPTED = 0, 1, 2, 3, 75


def exit_code(error: Exception) -> int | None:
    """The exit code of an error that a user can act on; None for any other error, which is a bug."""
    if isinstance(error, (UsageError, UnknownSetError)):
        return USAGE
    if isinstance(error, (DataError, OSError)):
        return FAILED
    from pbwn_repro.engine.finite import NonFiniteError  # imports torch, too slow for a mistyped name
    from pbwn_repro.engine.signals import Interrupted
    from pbwn_repro.runs.folder import BusyError

    if isinstance(error, Interrupted):
        return INTERRUPTED
    if isinstance(error, NonFiniteError):
        return NON_FINITE
    return FAILED if isinstance(error, BusyError) else None


def sweep_code(sweep: Sweep) -> int:
    """The exit code of several runs."""
    if sweep.stopping:
        return INTERRUPTED
    if sweep.having("failed", "killed", "busy", "stopped"):
        return FAILED
    return NON_FINITE if sweep.having("diverged") else DONE
