"""The error for what a user can correct, and the choices that its message names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """A mistake in what was asked for; the message says what to change. Any other ValueError is a bug."""


def listed(wanted: str, choices: Iterable[str]) -> str:
    """The choices, after the one that is nearest to what was wanted.

    >>> listed("mnsit", ["mnist", "svhn"])
    "did you mean 'mnist'? Choose from mnist, svhn"
    """
    choices = list(choices)
    if not choices:
        return "there is nothing to choose from"
    nearest = difflib.get_close_matches(wanted, choices, n=1)
    guess = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{guess}Choose from {', '.join(choices)}"
