"""Arguments that are words."""

from __future__ import annotations


def require_word(argument: str, value: object, words: tuple[str, ...]) -> None:
    """Raise unless the value is one of the words."""
    if value not in words:
        raise ValueError(f"{argument} must be {' or '.join(map(repr, words))}, not {value!r}")
