"""Every number and claim of the paper as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A number of the paper: its spread and number of seeds where the paper gives them."""

    value: float
    spread: float | None = None
    seeds: int | None = None


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, as the paper words it, with what decides it."""

    name: str
    artefact: str
    quote: str
