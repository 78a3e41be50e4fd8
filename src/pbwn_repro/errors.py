"""The errors that a user can do something about: what was asked for, and data. Any other exception is a bug.

A message on data names the thing, what was expected, what was found and what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class UsageError(ValueError):
    """A mistake in what was asked for; the message says what to change. Any other ValueError is a bug."""


class DataError(ValueError):
    """Data that cannot be had, read or trusted."""

    @classmethod
    def about(cls, thing: object, *, expected: str, found: str, remedy: str) -> Self:
        """Put the four parts of a message together."""
        return cls(f"{thing}: expected {expected}, found {found}. {remedy}")


class UnknownSetError(DataError):
    """A name that stands for no data set."""


class MissingFileError(DataError):
    """A file or folder that should be there and is not."""


class DamagedFileError(DataError):
    """A file that is there, but is not what it should be."""


class DownloadError(DataError):
    """No source of a file could be reached, or none gave the right bytes."""


def listed(wanted: str, choices: Iterable[str]) -> str:
    """The choices, after the one that is nearest to what was wanted.

    >>> listed("mnsit", ["mnist", "svhn"])
    "did you mean 'mnist'? Choose from mnist, svhn"
    """
    choices = list(choices)
    if not choices:
        return "there is nothing to choose from"
    nearest = difflib.get_close_matches(wanted, choices, n=1)
    guess = f"did you mean {nearest[0]!r}? Choose" if nearest else "choose"
    return f"{guess} from {', '.join(choices)}"


_PLAINER = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "Field required": "it is missing",
}


def plain(message: str) -> str:
    """What pydantic says of a value, in plain words.

    >>> plain("Input should be greater than or equal to 1")
    'must be at least 1'
    >>> plain("Input should be a valid integer, unable to parse string as an integer")
    'must be an integer'
    """
    message = message.removeprefix("Value error, ")
    for words, plainer in _PLAINER.items():
        message = message.replace(words, plainer)
    return re.sub(
        r"\ba valid (\w+)(, .*)?", lambda found: f"{'an' if found[1][0] in 'aeiou' else 'a'} {found[1]}", message
    )


def require_word(argument: str, value: object, words: tuple[str, ...]) -> None:
    """Raise unless an argument's value is one of the words that it may be."""
    if value not in words:
        raise ValueError(f"{argument} must be {' or '.join(map(repr, words))}, not {value!r}")
