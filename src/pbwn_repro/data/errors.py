"""What can be wrong with data: each message names the thing, what was expected, what was found and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


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


def require_word(argument: str, value: object, words: tuple[str, ...]) -> None:
    """Raise unless an argument's value is one of the words that it may be."""
    if value not in words:
        raise ValueError(f"{argument} must be {' or '.join(map(repr, words))}, not {value!r}")
