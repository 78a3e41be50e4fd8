"""Claims with their comparisons: one outcome for each claim, and its differences as lines around zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from pbwn_repro.paper import Claim
from pbwn_repro.report.model import Outcome, Section, Verdict

_EDGE = 5.0  # percent of the width that stay free on each side


@dataclass(frozen=True)
class Line:
    """Where a comparison's limits and difference lie, in percent of the picture's width."""

    low: float
    middle: float
    high: float
    outcome: Outcome


@dataclass(frozen=True)
class Forest:
    """The differences of several comparisons on one scale."""

    zero: float
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Decided:
    """A claim with all its comparisons."""

    claim: Claim
    verdicts: tuple[Verdict, ...]

    @property
    def outcome(self) -> Outcome:
        """A claim holds if each comparison says so, and does not if one speaks against it."""
        found = {verdict.outcome for verdict in self.verdicts}
        if "does not hold" in found:
            return "does not hold"
        return "holds" if found == {"holds"} else "not enough runs"

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many comparisons came out how."""
        found = Counter(verdict.outcome for verdict in self.verdicts)
        return {outcome: found[outcome] for outcome in get_args(Outcome) if found[outcome]}


def plural(outcome: Outcome, count: int) -> str:
    """What so many claims or comparisons do.

    >>> plural("holds", 2), plural("does not hold", 1)
    ('hold', 'does not hold')
    """
    words = {"holds": "hold", "does not hold": "do not hold", "not enough runs": "undecided"}
    return words[outcome] if count > 1 or outcome == "not enough runs" else outcome


def decided(section: Section) -> list[Decided]:
    """The claims of a section in their order."""
    claims: dict[str, list[Verdict]] = {}
    for verdict in section.verdicts:
        claims.setdefault(verdict.claim.name, []).append(verdict)
    return [Decided(verdicts[0].claim, tuple(verdicts)) for verdicts in claims.values()]


def forest(verdicts: Sequence[Verdict]) -> Forest | None:
    """Lay out all differences that are known on one scale with zero in sight; None if none is known."""
    known = [
        (
            verdict.difference if verdict.low is None else verdict.low,
            verdict.difference,
            verdict.difference if verdict.high is None else verdict.high,
            verdict.outcome,
        )
        for verdict in verdicts
        if verdict.difference is not None
    ]
    if not known:
        return None
    start = min(0.0, *(min(line[:3]) for line in known))
    width = (max(0.0, *(max(line[:3]) for line in known)) - start) or 1.0

    def place(value: float) -> float:
        return round(_EDGE + (100 - 2 * _EDGE) * (value - start) / width, 1)

    lines = (Line(place(low), place(middle), place(high), outcome) for low, middle, high, outcome in known)
    return Forest(place(0.0), tuple(lines))
