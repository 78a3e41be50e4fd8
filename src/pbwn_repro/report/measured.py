"""What is measured in one go: figure 1's condition numbers and table 5's times, with what they say to the claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isclose, isfinite, log
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from pbwn_repro.bench.measuring import folder_of
from pbwn_repro.bench.timing import median_with_interval
from pbwn_repro.catalog import Column, MeasuredArtefact, Number, PaperTable, Scale
from pbwn_repro.catalog.claims import Better, Claim, Conditioned, Costs, Within
from pbwn_repro.catalog.conditioning import WN_WEIGHTS
from pbwn_repro.methods import method
from pbwn_repro.report.model import Cell, Curve, Outcome, Plot, Row, Section, Summary, Table, Verdict
from pbwn_repro.report.runs import COLUMNS, DamageError, folders_in, read_environment, read_json
from pbwn_repro.report.statistics import Interval, compare, deviation, digits, mean, paired, span
from pbwn_repro.report.verdicts import one_sided, undecided

Result = Mapping[str, Any]
_AGREEMENT = 1e-6  # between closed form and automatic differentiation
_NORMAL = "normal"
# What table 5 shows of each network, by the name of a column's metric.
_COSTS = {"relative": "% over Normal", "own": "projection alone, %", "hours": "hours"}


@dataclass(frozen=True)
class _Shown:
    """What is shown of a measurement."""

    table: Table | None
    plots: tuple[Plot, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()


def measured_section(artefact: MeasuredArtefact, scale: Scale, root: Path) -> tuple[Section | None, dict[Path, str]]:
    """The section of a measurement at a scale, if there is one; and the folders that were left out, with the reason."""
    protocols = (artefact.options(scale), *artefact.earlier(scale))
    wanted = [folder_of(root, artefact.name, scale, artefact.measurement, options).path.name for options in protocols]
    found: dict[str, Section] = {}
    left_out: dict[Path, str] = {}
    place = root / artefact.name / scale
    for path in folders_in(place):
        try:
            config = read_json(path / "config.json")
            if set(config) != {"measurement", "options"} or not isinstance(config["options"], dict):
                raise DamageError("config.json is no configuration of a measurement")
            own = folder_of(root, artefact.name, scale, str(config["measurement"]), config["options"])
            if own.path.name != path.name:
                raise DamageError(f"config.json is not that of this folder: it would be called {own.path.name}")
            if path.name not in wanted:
                raise DamageError(f"another protocol: {artefact.name} at scale {scale} is {wanted[0]}")
            found[path.name] = _section(artefact, scale, path)
        except DamageError as error:
            left_out[path] = str(error)
    shown, *others = [name for name in wanted if name in found] or [""]
    left_out |= {place / name: f"an earlier protocol: {shown} is shown" for name in others}
    return found.get(shown), left_out


def _section(artefact: MeasuredArtefact, scale: Scale, path: Path) -> Section:
    if not (path / "result.json").exists():
        verdicts = tuple(undecided(claim, "The measurement is not finished.") for claim in artefact.claims)
        begun = pd.DataFrame([{"path": path, "state": "unfinished"}], columns=COLUMNS)
        return Section(artefact, scale, begun, verdicts=verdicts, notes=("The measurement is not finished.",))
    result, environment = read_json(path / "result.json"), read_environment(path / "environment.json")
    show: Callable[[MeasuredArtefact, str, Result], _Shown] = {
        "conditioning": _spectra,
        "gradients": _gradients,
        "landscape": _landscape,
        "time-cost": _time_cost,
    }[artefact.measurement]
    try:
        shown = show(artefact, f"{artefact.name}-{scale}", result)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamageError(f"result.json is not what the measurement writes ({error!r})") from None
    return Section(
        *(artefact, scale),
        table=shown.table,
        plots=shown.plots,
        verdicts=shown.verdicts,
        notes=(f"Scale {scale}.", *shown.notes),
        landscapes=result if artefact.measurement == "landscape" else None,
        environments=(environment,),
        measurement=path,
    )


# --- figure 1


def _landscape(artefact: MeasuredArtefact, prefix: str, result: Result) -> _Shown:
    """The curves over alpha and the verdicts; ValueError where closed form and measurement do not agree.

    The condition numbers are drawn with the surfaces.
    """
    _check_landscape(result)
    at_minimum, projected = (result[part]["largest_eigenvalue"]["measured"] for part in ("minimum", "projected"))
    alpha = tuple(result["alpha"])
    curves = tuple(
        Curve(Row(look, title, look), alpha, tuple(values), tuple(values), tuple(values), 1)
        for look, title, values in (
            (_NORMAL, "at a minimum, scaled", at_minimum),
            ("pbwn", "after projection", projected),
        )
    )
    title = "Largest eigenvalue of the Hessian: steps of gradient descent have to stay below 2 over it"
    plot = Plot(f"{prefix}-largest-eigenvalue", title, "alpha", "largest eigenvalue", curves, True, True, main=True)
    return _Shown(None, (plot,), tuple(_conditioning(claim, result) for claim in artefact.claims))


def _conditioning(claim: Claim, result: Result) -> Verdict:
    assert isinstance(claim.criterion, Conditioned)
    alpha = result["alpha"]
    scaled, projected = (result[name]["condition"]["measured"] for name in ("general", "projected"))
    if claim.criterion.what == "scaled":
        holds = all(after > before for before, after in pairwise(scaled))
        words = (
            f"The condition number goes from {scaled[0]:.3g} at alpha = {alpha[0]:g} to {scaled[-1]:.3g} at alpha = "
            f"{alpha[-1]:g}{', growing at every step' if holds else ''}. Computed exactly: there is no interval."
        )
    else:
        worst = max(projected)
        holds = worst <= scaled[0]
        words = (
            f"After projection it is at most {worst:.3g} for every alpha, {scaled[0]:.3g} at equal magnitude. Of two "
            f"directions the projection leaves {max(result['projected']['directions_left'])}, and one direction has "
            "the condition number 1: with a single input this follows from the projection itself. Computed exactly: "
            "there is no interval."
        )
    return Verdict(claim, "holds" if holds else "does not hold", words)


def _check_landscape(result: Result) -> None:
    for name in ("general", "projected"):
        analytic, measured = (result[name]["condition"][way] for way in ("analytic", "measured"))
        for one, other in zip(analytic, measured, strict=True):
            if not isclose(one, other, rel_tol=_AGREEMENT):
                raise ValueError(f"condition numbers in closed form and as measured differ: {one} and {other}")
        if len(analytic) != len(result["alpha"]):
            raise ValueError(f"{len(analytic)} condition numbers for {len(result['alpha'])} values of alpha")
    for surface in result["surfaces"]:
        rows = [len(row) for row in surface["loss"]]
        if rows != [len(surface["w1"])] * len(surface["w2"]):
            raise ValueError(f"the surface {surface['name']} is not a full grid")


# --- conditioning

_MOMENTS = ("start", "middle", "end")
_SEEN = {
    "largest": "largest eigenvalue",
    "spectrum": "eigenvalues, first over last",
    "gradients": "gradients, max over min",
}


def _spectra(artefact: MeasuredArtefact, prefix: str, result: Result) -> _Shown:
    """The table of all moments, the curves over training, and the verdicts on what stands at the end."""
    names = [name for one in result["methods"] for name in ((one, WN_WEIGHTS) if one == "wn" else (one,))]
    rows = tuple(Row(name, _title(name), name) for name in names)
    columns = tuple(
        Column(f"{network}, {words}, {_MOMENTS[moment]}", f"{network} {moment}", kind)
        for network in result["networks"]
        for kind, words in _SEEN.items()
        for moment in range(len(result["moments"]))
    )
    cells = {(row.key, column): Cell(_seen_cell(result, row.key, column), None) for row in rows for column in columns}
    table = Table(rows, columns, cells, unit="of the training loss on fixed examples")
    plots = tuple(
        Plot(
            f"{prefix}-{network}-{kind}",
            f"{network}: {words}",
            "share of training",
            words,
            tuple(_seen_curve(result, network, kind, row) for row in rows),
            y_log=True,
            main=kind == "spectrum",
        )
        for network in result["networks"]
        for kind, words in _SEEN.items()
    )
    last = len(result["moments"]) - 1
    verdicts = [
        _seen_verdict(claim, result, network, row, than, last)
        for claim in artefact.claims
        for network in result["networks"]
        for row, than in _pairs(claim)
    ]
    return _Shown(table, plots, tuple(verdicts))


def _pairs(claim: Claim) -> list[tuple[str, str]]:
    assert isinstance(claim.criterion, Better)
    return [(row, than) for row in claim.criterion.rows for than in claim.criterion.than]


def _title(name: str) -> str:
    return f"{method('wn').title}, its weights" if name == WN_WEIGHTS else method(name).title


def _runs_of(result: Result, network: str, name: str) -> list[Any]:
    runs: list[Any] = result["networks"][network]["methods"]["wn" if name == WN_WEIGHTS else name]
    return runs


def _seen(result: Result, network: str, name: str, kind: str, moment: int) -> list[float]:
    """One number of each seed's run at a moment; not a number where the spectrum's top is not positive."""
    found = []
    for run in _runs_of(result, network, name):
        values = run[moment].get("tangent_eigenvalues", run[moment]["eigenvalues"])
        values = run[moment]["weight_eigenvalues"] if name == WN_WEIGHTS else values
        norms = [norm for norm in run[moment]["gradient_norms"].values() if norm > 0]
        if kind == "largest":
            found.append(float(values[0]))
        elif kind == "spectrum":
            found.append(values[0] / values[-1] if values[-1] > 0 else inf)
        else:
            found.append(max(norms) / min(norms))
    return found


def _seen_cell(result: Result, name: str, column: Column) -> Summary | None:
    network, moment = column.value.rsplit(" ", 1)
    values = _seen(result, network, name, column.metric, int(moment))
    if not all(map(isfinite, values)):
        return None
    return Summary(tuple(values), mean(values), deviation(values))


def _seen_curve(result: Result, network: str, kind: str, row: Row) -> Curve:
    moments = range(len(result["moments"]))
    values = [[one for one in _seen(result, network, row.key, kind, moment) if isfinite(one)] for moment in moments]
    kept = [moment for moment in moments if values[moment]]
    means, lows, highs = (tuple(of(values[moment]) for moment in kept) for of in (mean, min, max))
    x = tuple(float(result["moments"][moment]) for moment in kept)
    return Curve(row, x, means, lows, highs, len(_runs_of(result, network, row.key)))


def _seen_verdict(claim: Claim, result: Result, network: str, row: str, than: str, moment: int) -> Verdict:
    """Compared as logarithms, in pairs by seed: ratios have no scale of their own."""
    assert isinstance(claim.criterion, Better)
    kind = claim.criterion.metric
    sides = [_seen(result, network, name, kind, moment) for name in (row, than)]
    names = (_title(row), _title(than), network)
    values = [{seed: log(value) for seed, value in enumerate(side, 1) if isfinite(value)} for side in sides]
    if not all(values):
        return undecided(claim, f"The spectrum's top of {names[0]} or {names[1]} on {network} has no such ratio.")
    compared = compare(values[0], values[1])
    interval, counts = compared.interval, compared.counts
    outcome = one_sided(interval, counts, lower=True) if interval else "not enough runs"
    counted = "one run a side" if interval is None else compared.kind
    words = (
        f"{_SEEN[kind]}: {digits(mean(sides[0]))} of {names[0]}, {digits(mean(sides[1]))} of {names[1]} on {network} "
        f"({counted})."
    )
    low, high = (interval.low, interval.high) if interval else (None, None)
    difference = mean(list(values[0].values())) - mean(list(values[1].values()))
    return Verdict(claim, outcome, words, difference, low, high, counts, *names)


# --- table 5


def _time_cost(artefact: MeasuredArtefact, prefix: str, result: Result) -> _Shown:
    """The table of percentages and hours, and the verdicts; ValueError where they do not follow from the times."""
    _check_times(result)
    assert artefact.table is not None
    times = _Times(artefact.table, result)
    verdicts = [verdict for claim in artefact.claims for verdict in times.on(claim)]
    return _Shown(times.table(), (), tuple(verdicts), times.notes())


class _Times:
    """Table 5's measurement beside the paper's hours."""

    def __init__(self, paper: PaperTable, result: Result) -> None:
        self.paper, self.result = paper, result
        self.titles = dict(paper.rows)
        for part in result["networks"].values():
            self.titles |= {key: method(key).title for key in part["methods"] if key not in self.titles}

    def table(self) -> Table:
        """Medians over rounds; the paper's percentages follow from its hours."""
        columns = [
            Column(f"{column.title}, {ending}", column.value, kind)
            for kind, ending in _COSTS.items()
            for column in self.paper.columns
        ]
        rows = tuple(Row(key, title, key) for key, title in self.titles.items())
        cells = {
            (row.key, column): Cell(self._ours(row.key, column), self._paper(row.key, column))
            for row in rows
            for column in columns
        }
        return Table(
            *(rows, tuple(columns), cells),
            unit="time over normal training (%), the projection's own time in a step (% of a normal one), and hours",
            ours="median (rounds)",
            fixed=True,
            drawn="every round, and the median (line)",
            undrawn=frozenset({"hours"}),
        )

    def on(self, claim: Claim) -> list[Verdict]:
        """The verdicts on a claim, for each network that was timed."""
        criterion = claim.criterion
        columns = [column for column in self.paper.columns if column.value in self.result["networks"]]
        if isinstance(criterion, Costs):
            timed = [column for column in columns if criterion.row in self._methods(column.value)]
            found = [self._cost(claim, criterion, column) for column in timed]
            return found or [undecided(claim, f"{method(criterion.row).title} was not timed.")]
        assert isinstance(criterion, Better)
        [than] = criterion.than
        return [self._shorter(claim, row, than, column) for column in columns for row in criterion.rows]

    def notes(self) -> tuple[str, ...]:
        """What the times depend on: the batches, and what else the machine was doing."""
        parts = list(self.result["networks"].values())
        batches = " and ".join(str(size) for size in sorted({part["batch_size"] for part in parts}))
        found = [
            f"Timed with batches of {batches}.",
            "Percentages are medians of ratios within a round, hours are medians of times: on a noisy machine, the "
            "ones do not follow from the others.",
        ]
        load, cores = (parts[0]["machine"].get(name) for name in ("load before", "cores"))
        if load is not None and cores:
            busy = ": other programs were running, which widens the intervals" if load > 0.75 * cores else ""
            found.append(f"Load in the minute before the first round: {load:.1f} on {cores} cores{busy}.")
        return tuple(found)

    def _methods(self, network: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.result["networks"].get(network, {}).get("methods", {})
        return found

    def _ours(self, name: str, column: Column) -> Summary | None:
        found = self._methods(column.value).get(name)
        if found is None or (column.metric == "own" and not found["projection_seconds"]):
            return None
        if column.metric == "relative":
            values = percentages(self.result, column.value, name)
            return Summary(tuple(values), found["percent_over_normal"]["value"], None)
        if column.metric == "own":  # a median alone was kept
            return Summary((found["projection_percent"],) * len(found["seconds"]), found["projection_percent"], None)
        part = self.result["networks"][column.value]
        return Summary(tuple(_hours(part, seconds) for seconds in found["seconds"]), found["hours"], None)

    def _paper(self, name: str, column: Column) -> Number | None:
        title = self._title(column.value)
        if (name, title) not in self.paper.numbers or column.metric == "own":
            return None
        return self.paper.numbers[name, title] if column.metric == "hours" else Number(self._over_normal(name, title))

    def _title(self, network: str) -> str:
        return next(column.title for column in self.paper.columns if column.value == network)

    def _over_normal(self, name: str, title: str) -> float:
        hours, normal = (self.paper.numbers[key, title].value for key in (name, _NORMAL))
        return 100 * (hours / normal - 1)

    def _cost(self, claim: Claim, criterion: Costs, column: Column) -> Verdict:
        values = percentages(self.result, column.value, criterion.row)
        interval = _interval(values)
        outcome: Outcome = "not enough runs"
        if interval and criterion.most is not None:
            inside, outside = interval.high <= criterion.most, interval.low > criterion.most
            outcome = "holds" if inside else "does not hold" if outside else outcome
        if interval and criterion.least is not None:
            inside, outside = interval.low >= criterion.least, interval.high < criterion.least
            outcome = "holds" if inside else "does not hold" if outside else outcome
        names = (self.titles[criterion.row], self.titles[_NORMAL], column.title)
        printed = criterion.row if criterion.row in self.paper.rows else "pbwn-riem"  # the paper times no other form
        timed = (printed, column.title) in self.paper.numbers
        theirs = f" The paper's hours say {self._over_normal(printed, column.title):.2f} %." if timed else ""
        words = (
            f"{names[0]} takes {_more(median(values), interval)} time than {names[1]} on {column.title} ("
            f"{_span(interval)}; median of {len(values)} rounds).{theirs}"
        )
        return _verdict(claim, outcome, values, interval, words, names)

    def _shorter(self, claim: Claim, row: str, than: str, column: Column) -> Verdict:
        sides = [percentages(self.result, column.value, name) for name in (row, than)]
        values = [ours - theirs for ours, theirs in zip(*sides, strict=True)]
        interval = _interval(values)
        counts = (len(values), len(values))
        outcome = one_sided(interval, counts, lower=True) if interval else "not enough runs"
        names = (self.titles[row], self.titles[than], column.title)
        words = (
            f"{names[0]} takes {_more(median(values), interval)} of a normal step's time than {names[1]} on "
            f"{column.title} ({_span(interval)}; median of {len(values)} rounds)."
        )
        return _verdict(claim, outcome, values, interval, words, names)


def percentages(result: Result, network: str, name: str) -> list[float]:
    """By how many percent a step took longer than the normal one of the same round."""
    methods = result["networks"][network]["methods"]
    pairs = zip(methods[name]["seconds"], methods[_NORMAL]["seconds"], strict=True)
    return [100 * (mine / normal - 1) for mine, normal in pairs]


def _verdict(
    claim: Claim,
    outcome: Outcome,
    values: Sequence[float],
    interval: Interval | None,
    words: str,
    names: tuple[str, str, str],
) -> Verdict:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return Verdict(claim, outcome, words, median(values), low, high, (len(values), len(values)), *names)


def _interval(values: list[float]) -> Interval | None:
    found = median_with_interval(values)
    if found["value"] is None or found["low"] is None or found["high"] is None:
        return None
    return Interval(found["value"], found["low"], found["high"])


# --- gradients


def _gradients(artefact: MeasuredArtefact, prefix: str, result: Result) -> _Shown:
    """What was measured by layer, as a table of means over seeds, and the verdicts."""
    layers = [layer for part in result["networks"].values() for layer in next(iter(part.values()))["gradient_share"]]
    kinds = {"gradient_share": "share along the weights", "passed_back": "ratio passed back"}
    names = [(network, name) for network, part in result["networks"].items() for name in part]
    columns = {
        (network, name, kind): Column(f"{network}, {method(name).title}, {words}", f"{network} {name}", kind)
        for kind, words in kinds.items()
        for network, name in names
    }
    rows = tuple(Row(layer, f"layer {layer}", layer) for layer in dict.fromkeys(layers))
    cells = {}
    for (network, name, kind), column in columns.items():
        for row in rows:
            values = result["networks"][network][name][kind].get(row.key)
            ours = Summary(tuple(values), mean(values), deviation(values)) if values else None
            cells[row.key, column] = Cell(ours, None)
    unit = "share of the squared gradient along the weights, and norm passed back over norm received"
    table = Table(rows, tuple(columns.values()), cells, unit)
    verdicts = [verdict for claim in artefact.claims for verdict in _within(claim, result)]
    return _Shown(table, (), tuple(verdicts))


def _within(claim: Claim, result: Result) -> list[Verdict]:
    """Whether the mean of each layer lies between the bounds."""
    criterion = claim.criterion
    assert isinstance(criterion, Within)
    found = []
    for network, part in result["networks"].items():
        for layer, values in part.get(criterion.row, {}).get(criterion.metric, {}).items():
            interval = paired(values) if len(values) > 1 else None
            outcome: Outcome = "not enough runs"
            if interval and criterion.least <= interval.low and interval.high <= criterion.most:
                outcome = "holds"
            elif interval and (interval.high < criterion.least or interval.low > criterion.most):
                outcome = "does not hold"
            words = f"layer {layer} of {network} with {method(criterion.row).title}: {digits(mean(values), interval)}"
            bounds = f"between {criterion.least:g} and {criterion.most:g}"
            limits = span(interval) if interval else "one run"
            sentence = f"In {words} ({limits}; {bounds} is claimed)."
            names = (method(criterion.row).title, "", f"{network}, layer {layer}")
            found.append(_verdict(claim, outcome, values, interval, sentence, names))
    return found or [undecided(claim, "Nothing of it was measured.")]


def _hours(part: Mapping[str, Any], seconds: float) -> float:
    return float(seconds * part["steps_per_epoch"] * part["epochs"] / 3600)


def _more(percent: float, interval: Interval | None) -> str:
    return f"{digits(abs(percent), interval)} % {'less' if percent < 0 else 'more'}"


def _span(interval: Interval | None) -> str:
    if interval is None:
        return "too few rounds for an interval"
    return span(interval)


def _check_times(result: Result) -> None:
    for network, part in result["networks"].items():
        for name, found in part["methods"].items():
            stated = found["percent_over_normal"]["value"]
            follows = median(percentages(result, network, name))
            if not isclose(stated, follows, rel_tol=1e-9, abs_tol=1e-9):
                raise ValueError(f"{network}, {name}: {stated} % is stated, {follows} % follows from the times")
            hours = _hours(part, median(found["seconds"]))
            if not isclose(found["hours"], hours, rel_tol=1e-9):
                raise ValueError(f"{network}, {name}: {found['hours']} hours are stated, {hours} follow from the times")
