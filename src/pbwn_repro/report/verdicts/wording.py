"""Verdicts in words."""

from __future__ import annotations

from pbwn_repro.paper import Alike, Better, Higher
from pbwn_repro.report.collecting.measures import UNITS, WORDS
from pbwn_repro.report.model import Outcome
from pbwn_repro.report.statistics import Interval
from pbwn_repro.report.verdicts.comparing import Compared, Comparison, margin_of, says_nothing

NO_SPREAD = "two runs that agree to the digit say nothing of the spread"


def digits(value: float) -> str:
    """A number with as many digits as a reader needs: two decimals, or three that count where it is small.

    >>> digits(7.944), digits(0.012345), digits(-0.3)
    ('7.94', '0.0123', '-0.30')
    """
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"


def span(interval: Interval) -> str:
    """An interval in words."""
    return f"95 % interval {digits(interval.low)} to {digits(interval.high)}"


def runs(counts: tuple[int, int]) -> str:
    """How many runs stand on each side."""
    one, other = counts
    if one == other:
        return "one run each" if one == 1 else f"{one} runs each"
    return f"{one} and {other} runs"


def sentence(
    criterion: Comparison,
    names: tuple[str, str, str],
    compared: Compared,
    outcome: Outcome,
    *,
    difference: float | None,
    level: float,
    measure: str,
) -> str:
    """One comparison in a sentence; `names` are row, the row it stands against, and the column."""
    row, against, column = names
    place = f" at {column}" if column else ""
    if difference is None:
        return f"{row} against {against}{place}: {runs(compared.counts)}, nothing to compare."
    unit = f" {UNITS[measure]}" if measure in UNITS else ""
    amount = f"{digits(abs(difference))}{unit} {'lower' if difference < 0 else 'higher'}"
    found = f"{WORDS[measure]} of {row} is {amount} than that of {against}{place}"
    if compared.interval is None:
        return f"The {found}, but with {runs(compared.counts)}: an interval needs two a side."
    how = f"({span(compared.interval)}; {compared.kind}, {runs(compared.counts)})"
    if says_nothing(compared.interval, compared.counts):
        return f"The {found} {how}: {NO_SPREAD}."
    if isinstance(criterion, Better | Higher):
        if compared.interval.contains_zero:
            return f"No significant difference: the {found} {how}."
        return f"The {found} {how}."
    margin = digits(margin_of(criterion, level) if isinstance(criterion, Alike) else criterion.margin)
    ending = {
        "holds": f"within the margin of {margin}",
        "does not hold": f"beyond the margin of {margin}",
        "not enough runs": f"neither within the margin of {margin} nor beyond it",
    }[outcome]
    return f"The {found} {how}: {ending}."
