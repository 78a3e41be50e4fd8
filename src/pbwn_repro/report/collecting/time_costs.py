"""Table 5: what each method takes longer than normal training, beside the paper's hours."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from statistics import median
from typing import Any, Literal

from pbwn_repro import methods
from pbwn_repro.measurements.median import median_with_interval
from pbwn_repro.paper import TABLES, Claim, Column, Number, claims_on
from pbwn_repro.paper.criteria import Better, Costs
from pbwn_repro.report.model import Cell, Outcome, Shown, Summary, Table, Verdict
from pbwn_repro.report.statistics import Interval
from pbwn_repro.report.verdicts.comparing import one_sided
from pbwn_repro.report.verdicts.wording import digits

_PAPER = TABLES["table-5"]
_NORMAL = "normal"
_Kind = Literal["relative", "own", "hours"]
_SHOWN: Mapping[_Kind, str] = {"relative": "% over Normal", "own": "projection alone, %", "hours": "hours"}


def shown(prefix: str, result: Mapping[str, Any]) -> Shown:
    """The table of percentages and hours, and the verdicts; ValueError where they do not follow from the times."""
    _check(result)
    verdicts = [verdict for claim in claims_on("table-5") for verdict in _on(claim, result)]
    return Shown(_table(result), (), tuple(verdicts), _notes(result))


def percentages(result: Mapping[str, Any], network: str, method: str) -> list[float]:
    """By how many percent a step took longer than the normal one of the same round."""
    methods = result["networks"][network]["methods"]
    pairs = zip(methods[method]["seconds"], methods[_NORMAL]["seconds"], strict=True)
    return [100 * (mine / normal - 1) for mine, normal in pairs]


def _table(result: Mapping[str, Any]) -> Table:
    """Medians over rounds; the paper's percentages follow from its hours."""
    cells: dict[tuple[str, str], Cell] = {}
    columns: list[str] = []
    rows = dict(_PAPER.rows)
    for part in result["networks"].values():
        rows |= {key: methods.method(key).title for key in part["methods"] if key not in rows}
    for kind, ending in _SHOWN.items():
        for column in _PAPER.columns:
            title = f"{column.title}, {ending}"
            columns.append(title)
            for key, row in rows.items():
                cells[row, title] = Cell(row, title, _ours(result, column.value, key, kind), _paper(key, column, kind))
    return Table(
        *(tuple(rows.values()), tuple(columns), cells),
        unit="time over normal training (%), the projection's own time in a step (% of a normal one), and hours",
        ours="median (rounds)",
    )


def _ours(result: Mapping[str, Any], network: str, name: str, kind: _Kind) -> Summary | None:
    part = result["networks"].get(network, {})
    found = part.get("methods", {}).get(name)
    if found is None:
        return None
    if kind == "relative":
        return Summary(tuple(percentages(result, network, name)), found["percent_over_normal"]["value"], None)
    if kind == "own":
        if not found["projection_seconds"]:
            return None
        # A median alone was kept.
        return Summary((found["projection_percent"],) * len(found["seconds"]), found["projection_percent"], None)
    return Summary(tuple(_hours(part, seconds) for seconds in found["seconds"]), found["hours"], None)


def _paper(method: str, column: Column, kind: _Kind) -> Number | None:
    if method not in _PAPER.rows:
        return None
    if kind == "relative":
        return Number(_over_normal(method, column))
    return _PAPER.numbers[method, column.title] if kind == "hours" else None


def _notes(result: Mapping[str, Any]) -> tuple[str, ...]:
    """What the times depend on: the batches, and what else the machine was doing."""
    parts = list(result["networks"].values())
    batches = " and ".join(str(size) for size in sorted({part["batch_size"] for part in parts}))
    found = [
        f"Timed with batches of {batches}.",
        "Percentages are medians of ratios within a round, hours are medians of times: on a noisy machine, the ones do "
        "not follow from the others.",
    ]
    load, cores = (parts[0]["machine"].get(name) for name in ("load before", "cores"))
    if load is not None and cores:
        busy = ": other programs were running, which widens the intervals" if load > 0.75 * cores else ""
        found.append(f"Load in the minute before the first round: {load:.1f} on {cores} cores{busy}.")
    return tuple(found)


def _hours(part: Mapping[str, Any], seconds: float) -> float:
    return float(seconds * part["steps_per_epoch"] * part["epochs"] / 3600)


def _over_normal(method: str, column: Column) -> float:
    hours, normal = (_PAPER.numbers[key, column.title].value for key in (method, _NORMAL))
    return 100 * (hours / normal - 1)


def _on(claim: Claim, result: Mapping[str, Any]) -> list[Verdict]:
    criterion = claim.criterion
    found = []
    for column in _PAPER.columns:
        if column.value not in result["networks"]:
            continue
        if isinstance(criterion, Costs):
            found.append(_cost(claim, criterion, column, result))
        elif isinstance(criterion, Better):
            found += [_shorter(claim, row, criterion.than[0], column, result) for row in criterion.rows]
    return found


def _cost(claim: Claim, criterion: Costs, column: Column, result: Mapping[str, Any]) -> Verdict:
    values = percentages(result, column.value, criterion.row)
    interval = _interval(values)
    outcome: Outcome = "not enough runs"
    if interval and criterion.most is not None:
        inside, outside = interval.high <= criterion.most, interval.low > criterion.most
        outcome = "holds" if inside else "does not hold" if outside else outcome
    if interval and criterion.least is not None:
        inside, outside = interval.low >= criterion.least, interval.high < criterion.least
        outcome = "holds" if inside else "does not hold" if outside else outcome
    names = (_PAPER.rows[criterion.row], _PAPER.rows[_NORMAL], column.title)
    words = (
        f"{names[0]} takes {_more(median(values))} time than {names[1]} on {column.title} ({_span(interval)}; "
        f"median of {len(values)} rounds). The paper's hours say {digits(_over_normal(criterion.row, column))} %."
    )
    return _verdict(claim, outcome, values, interval, words, names)


def _shorter(claim: Claim, row: str, than: str, column: Column, result: Mapping[str, Any]) -> Verdict:
    sides = [percentages(result, column.value, method) for method in (row, than)]
    values = [ours - theirs for ours, theirs in zip(*sides, strict=True)]
    interval = _interval(values)
    counts = (len(values), len(values))
    outcome = one_sided(interval, counts, lower=True) if interval else "not enough runs"
    names = (_PAPER.rows[row], _PAPER.rows[than], column.title)
    words = (
        f"{names[0]} takes {_more(median(values))} of a normal step's time than {names[1]} on {column.title} "
        f"({_span(interval)}; median of {len(values)} rounds)."
    )
    return _verdict(claim, outcome, values, interval, words, names)


def _verdict(
    claim: Claim,
    outcome: Outcome,
    values: list[float],
    interval: Interval | None,
    words: str,
    names: tuple[str, str, str],
) -> Verdict:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return Verdict(claim, outcome, median(values), low, high, (len(values), len(values)), words, *names)


def _interval(values: list[float]) -> Interval | None:
    found = median_with_interval(values)
    if found["value"] is None or found["low"] is None or found["high"] is None:
        return None
    return Interval(found["value"], found["low"], found["high"])


def _more(percent: float) -> str:
    return f"{digits(abs(percent))} % {'less' if percent < 0 else 'more'}"


def _span(interval: Interval | None) -> str:
    if interval is None:
        return "too few rounds for an interval"
    return f"95 % interval {digits(interval.low)} to {digits(interval.high)}"


def _check(result: Mapping[str, Any]) -> None:
    for network, part in result["networks"].items():
        for method, found in part["methods"].items():
            stated = found["percent_over_normal"]["value"]
            follows = median(percentages(result, network, method))
            if not isclose(stated, follows, rel_tol=1e-9, abs_tol=1e-9):
                raise ValueError(f"{network}, {method}: {stated} % is stated, {follows} % follows from the times")
            hours = _hours(part, median(found["seconds"]))
            if not isclose(found["hours"], hours, rel_tol=1e-9):
                raise ValueError(
                    f"{network}, {method}: {found['hours']} hours are stated, {hours} follow from the times"
                )
