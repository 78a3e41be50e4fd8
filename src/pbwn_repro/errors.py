"""Errors that a user can act on: wrong usage, and data that are missing or damaged. Any other exception is a bug.

Messages about data state what is concerned, what was expected, what was found and what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class UsageError(ValueError):
    """Wrong usage; the message says what to change. Any other ValueError is a bug."""


class DataError(ValueError):
    """Data that are missing, unreadable or not what they should be."""

    @classmethod
    def about(cls, thing: object, *, expected: str, found: str, remedy: str) -> Self:
        """Create the error with a message composed of its four parts."""
        return cls(f"{thing}: expected {expected}, found {found}. {remedy}")


class UnknownSetError(DataError):
    """An unknown data set name."""


class MissingFileError(DataError):
    """A required file or folder that does not exist."""


class DamagedFileError(DataError):
    """A file that exists but does not have the expected content."""


class DownloadError(DataError):
    """No source of a file could be reached, or none delivered the expected bytes."""


def suggest(name: str, choices: Iterable[str]) -> str:
    """Return the choices as text, preceded by the one closest to an unknown name.

    >>> suggest("mnsit", ["mnist", "svhn"])
    "did you mean 'mnist'? Choose from mnist, svhn"
    """
    choices = list(choices)
    if not choices:
        return "there is nothing to choose from"
    closest = difflib.get_close_matches(name, choices, n=1)
    prefix = f"did you mean {closest[0]!r}? Choose" if closest else "choose"
    return f"{prefix} from {', '.join(choices)}"


_REPLACEMENTS = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "Field required": "required field is missing",
}


def plain_message(message: str) -> str:
    """Rephrase a validation message of pydantic in plainer words.

    >>> plain_message("Input should be greater than or equal to 1")
    'must be at least 1'
    >>> plain_message("Input should be a valid integer, unable to parse string as an integer")
    'must be an integer'
    """
    message = message.removeprefix("Value error, ")
    for phrase, replacement in _REPLACEMENTS.items():
        message = message.replace(phrase, replacement)
    return re.sub(
        r"\ba valid (\w+)(, .*)?", lambda match: f"{'an' if match[1][0] in 'aeiou' else 'a'} {match[1]}", message
    )


def require_word(argument: str, value: object, words: tuple[str, ...]) -> None:
    """Raise ValueError unless the value of an argument is one of the allowed words."""
    if value not in words:
        raise ValueError(f"{argument} must be {' or '.join(map(repr, words))}, not {value!r}")
