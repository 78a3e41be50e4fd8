"""Forest plots: differences with their intervals as lines on a common axis around zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pbwn_repro.catalog.claims import (
    Alike,
    Better,
    BetterThanQuoted,
    Conditioned,
    Costs,
    Criterion,
    Grows,
    Higher,
    MostlyBest,
    NotWorse,
    Trains,
    Wider,
    Within,
)
from pbwn_repro.metrics import METRICS, Metric
from pbwn_repro.report.model import Meaning, Verdict

_EDGE = 5.0  # percent of the width left free on each side
FOR, AGAINST = "for the claim", "against it"


@dataclass(frozen=True)
class Line:
    """The interval, difference and pairs of a comparison, as positions in percent of the width.

    `name` distinguishes it from the other comparisons; it is empty if there are no others.
    """

    low: float
    middle: float
    high: float
    dots: tuple[float, ...]
    meaning: Meaning
    name: str = ""


@dataclass(frozen=True)
class Forest:
    """The differences of several comparisons on one scale.

    Args:
        zero: the position of zero.
        ends: the values at both ends of the axis.
        edges: the positions of the claim's margins.
        unit: the metric, its unit and which direction is better.
        sides: what differences left and right of zero mean.
    """

    zero: float
    lines: tuple[Line, ...]
    ends: tuple[float, float]
    edges: tuple[float, ...]
    unit: str
    sides: tuple[str, str]


def forest(verdicts: Sequence[Verdict], metric: str = "") -> Forest | None:
    """Lay out the differences on one scale that includes zero; None if no verdict has a difference.

    `metric` is that of the table or figure, for claims that do not name one.
    """
    known = [verdict for verdict in verdicts if verdict.difference is not None]
    if not known:
        return None
    criterion = known[0].claim.criterion
    edges = _margins(criterion)
    drawn = [
        value for each in known for value in (each.low, each.difference, each.high, *each.dots) if value is not None
    ]
    start, end = min(0.0, *edges, *drawn), max(0.0, *edges, *drawn)
    width = (end - start) or 1.0

    def position(value: float) -> float:
        return round(_EDGE + (100 - 2 * _EDGE) * (value - start) / width, 1)

    lines = []
    for each, name in zip(known, _names(known), strict=True):
        middle = each.difference or 0.0
        low, high = (middle if value is None else value for value in (each.low, each.high))
        dots = tuple(map(position, each.dots))
        lines.append(Line(position(low), position(middle), position(high), dots, each.meaning, name))
    return Forest(
        *(position(0.0), tuple(lines), (start, end), tuple(map(position, edges))),
        unit=_unit(criterion, metric),
        sides=_sides(criterion, known, metric),
    )


def _names(verdicts: Sequence[Verdict]) -> list[str]:
    """Name each comparison by its row, what it is compared with, and its column, omitting what all have in common."""
    parts = [(verdict.row, verdict.against, verdict.column) for verdict in verdicts]
    rows, others, columns = (len(set(kind)) > 1 for kind in zip(*parts, strict=True))
    names = []
    for row, other, column in parts:
        against = f"against {other}" if others and other else ""
        pair = " ".join(filter(None, [row if rows else "", against]))
        names.append(", ".join(filter(None, [pair, column if columns else ""])))
    return names


def _margins(criterion: Criterion) -> tuple[float, ...]:
    """Return a claim's margins in the unit of the differences, except relative ones, which differ by comparison."""
    if isinstance(criterion, Alike):
        return () if criterion.relative else (-criterion.margin, criterion.margin)
    if isinstance(criterion, NotWorse):
        return (criterion.margin,)
    if isinstance(criterion, Costs | Within):
        return tuple(limit for limit in (criterion.least, criterion.most) if limit is not None)
    return ()


def _metric(criterion: Criterion, metric: str) -> Metric | None:
    return METRICS.get("cost" if isinstance(criterion, Costs) else getattr(criterion, "metric", metric))


def _unit(criterion: Criterion, metric: str) -> str:
    """Return the label of the axis, such as 'test error, difference in points; lower is better'."""
    measured = _metric(criterion, metric)
    if isinstance(criterion, Wider):
        return "number of good settings, difference; more is better"
    if isinstance(criterion, Within):
        return "value in each layer"
    if measured is None:
        return "logarithm of the ratio; lower is better"
    points = f" in {measured.points}" if measured.points else ""
    if isinstance(criterion, Costs):
        return "extra time over Normal, in %; less is better"
    if isinstance(criterion, Grows):
        return f"growth of the gain in {measured.words}{points and f',{points}'}; more is better"
    if isinstance(criterion, Higher):
        direction = "the claim says higher"  # a rise of the loss is neither good nor bad
    else:
        direction = "lower is better" if measured.lower_is_better else "higher is better"
    return f"{measured.words}, difference{points}; {direction}"


def _sides(criterion: Criterion, verdicts: Sequence[Verdict], metric: str) -> tuple[str, str]:
    """Return what lies left and right of zero; by name if all comparisons are between the same two rows."""
    measured = _metric(criterion, metric)
    lower_is_for = measured is None or measured.lower_is_better
    if isinstance(criterion, Within | Conditioned | MostlyBest | Trains):
        return "", ""
    if isinstance(criterion, Costs):
        return "less time", "more time"
    if isinstance(criterion, Alike):
        first = {verdict.row for verdict in verdicts}
        return (f"{first.pop()} lower", "higher") if len(first) == 1 else ("first lower", "first higher")
    if isinstance(criterion, Higher | Grows | Wider):
        return AGAINST, FOR
    pairs = {(verdict.row, verdict.against) for verdict in verdicts}
    if isinstance(criterion, Better | BetterThanQuoted | NotWorse) and len(pairs) == 1:
        [(row, against)] = pairs
        better, worse = f"{row} better", f"{against} better"
    else:
        better, worse = FOR, AGAINST
    return (better, worse) if lower_is_for else (worse, better)
