"""Sections of measured artefacts: landscapes, conditioning, step times and gradients, with their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from math import hypot, inf, isclose, isfinite, log, nan
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
from pbwn_repro.report.model import ALPHA, Cell, Curve, Plot, Row, Section, Summary, Table, Verdict
from pbwn_repro.report.runs import COLUMNS, DamageError, folders_in, read_environment, read_json
from pbwn_repro.report.statistics import (
    CONFIDENCE,
    FEW,
    Compared,
    Interval,
    compare,
    confidences,
    digits,
    mean,
    paired,
    significant,
    span,
)
from pbwn_repro.report.verdicts import between, one_sided, undecided

Result = Mapping[str, Any]
_AGREEMENT = 1e-6  # between closed form and automatic differentiation
_NORMAL = "normal"
# The columns of table 5 for each network, by metric.
_COSTS = {"relative": "% over Normal", "own": "projection alone, %", "hours": "hours"}


def measured_section(artefact: MeasuredArtefact, scale: Scale, root: Path) -> tuple[Section | None, dict[Path, str]]:
    """Return the section of a measurement at a scale, if any, and the folders that were left out with the reasons."""
    protocols = (artefact.options(scale), *artefact.earlier(scale))
    names = [folder_of(root, artefact.name, scale, artefact.measurement, options).path.name for options in protocols]
    found: dict[str, Section] = {}
    left_out: dict[Path, str] = {}
    parent = root / artefact.name / scale
    for path in folders_in(parent):
        try:
            config = read_json(path / "config.json")
            if set(config) != {"measurement", "options"} or not isinstance(config["options"], dict):
                raise DamageError("config.json is not the configuration of a measurement")
            own = folder_of(root, artefact.name, scale, str(config["measurement"]), config["options"])
            if own.path.name != path.name:
                raise DamageError(f"config.json is not that of this folder: it belongs in {own.path.name}")
            if path.name not in names:
                raise DamageError(f"another protocol: {artefact.name} at scale {scale} is {names[0]}")
            found[path.name] = _section(artefact, scale, path)
        except DamageError as error:
            left_out[path] = str(error)
    shown, *others = [name for name in names if name in found] or [""]
    left_out |= {parent / name: f"an earlier protocol: {shown} is shown" for name in others}
    return found.get(shown), left_out


def _section(artefact: MeasuredArtefact, scale: Scale, path: Path) -> Section:
    if not (path / "result.json").exists():
        verdicts = tuple(undecided(claim, "The measurement is not finished.") for claim in artefact.claims)
        started = pd.DataFrame([{"path": path, "state": "unfinished"}], columns=COLUMNS)
        return Section(artefact, scale, started, verdicts=verdicts, notes=("The measurement is not finished.",))
    result, environment = read_json(path / "result.json"), read_environment(path / "environment.json")
    build: Callable[[MeasuredArtefact, Scale, Result], Section] = {
        "conditioning": _conditioning,
        "gradients": _gradients,
        "landscape": _landscape,
        "time-cost": _time_cost,
    }[artefact.measurement]
    try:
        section = build(artefact, scale, result)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamageError(f"result.json is not what the measurement writes ({error!r})") from None
    notes = (f"{scale.capitalize()} scale.", *section.notes)
    return replace(section, notes=notes, environments=(environment,), measurement=path)


# --- figure 1


def _landscape(artefact: MeasuredArtefact, scale: Scale, result: Result) -> Section:
    """Return figure 1's curves over alpha and verdicts; its condition numbers are drawn with the surfaces.

    Raises:
        ValueError: closed form and measurement disagree.
    """
    _check_landscape(result)
    at_minimum, projected = (result[part]["largest_eigenvalue"]["measured"] for part in ("minimum", "projected"))
    alpha = tuple(result["alpha"])
    curves = tuple(
        Curve(Row(style, title, style), alpha, tuple(values), tuple(values), tuple(values), 1)
        for style, title, values in (
            (_NORMAL, "at a minimum, scaled", at_minimum),
            ("pbwn", "after projection", projected),
        )
    )
    title = "Largest eigenvalue of the Hessian, λ: gradient descent is stable only for learning rates below 2 / λ"
    name = f"{artefact.name}-{scale}-largest-eigenvalue"
    plot = Plot(name, title, ALPHA, "largest eigenvalue", curves, True, True, main=True)
    verdicts = tuple(_landscape_verdict(claim, result) for claim in artefact.claims)
    return Section(artefact, scale, plots=(plot,), verdicts=verdicts, landscapes=result)


def _landscape_verdict(claim: Claim, result: Result) -> Verdict:
    assert isinstance(claim.criterion, Conditioned)
    alpha = result["alpha"]
    scaled, projected = (result[name]["condition"]["measured"] for name in ("general", "projected"))
    if claim.criterion.what == "scaled":
        holds = all(after > before for before, after in pairwise(scaled))
        ends = [f"{significant(scaled[end])} at {ALPHA} = {alpha[end]:g}" for end in (0, -1)]
        grows = ", growing at every step" if holds else ""
        words = f"The condition number goes from {' to '.join(ends)}{grows}. Computed exactly, so without an interval."
    else:
        worst = max(projected)
        holds = worst <= scaled[0]
        words = (
            f"After projection it is at most {significant(worst)} for every {ALPHA}, against {significant(scaled[0])} "
            f"at equal magnitude. Of two directions the projection leaves {max(result['projected']['directions_left'])}"
            ", and a single direction has the condition number 1: with one input, this follows from the projection "
            "itself. Computed exactly, so without an interval."
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

_QUANTITIES = {
    "largest": "largest eigenvalue",
    "spectrum": "eigenvalue ratio, largest to last",
    "gradients": "gradient norm ratio, largest to smallest",
}


def _conditioning(artefact: MeasuredArtefact, scale: Scale, result: Result) -> Section:
    """Return the quantities at the end of training as a table with verdicts, and their curves over training."""
    networks, moments = result["networks"], range(len(result["moments"]))
    end = moments[-1]
    names = [name for one in result["methods"] for name in ((one, WN_WEIGHTS) if one == "wn" else (one,))]
    rows = [Row(name, _title(name), name) for name in names]
    # One number for each seed.
    values = {
        (network, row.key, kind, moment): [
            _quantity(run[moment], row.key, kind) for run in part["methods"]["wn" if row.key == WN_WEIGHTS else row.key]
        ]
        for row in rows
        for network, part in networks.items()
        for kind in _QUANTITIES
        for moment in moments
    }
    columns = {
        (network, kind): Column(f"{network}, {words}", network, kind)
        for network in networks
        for kind, words in _QUANTITIES.items()
    }
    cells = {
        (name, columns[network, kind]): Cell(Summary.of(seeds) if all(map(isfinite, seeds)) else None, None)
        for (network, name, kind, moment), seeds in values.items()
        if moment == end
    }
    plots = [
        Plot(
            f"{artefact.name}-{scale}-{network}-{kind}",
            f"{network}: {words}",
            "share of training",
            words,
            tuple(
                _quantity_curve(row, result["moments"], [values[network, row.key, kind, moment] for moment in moments])
                for row in rows
                if row.key != WN_WEIGHTS or kind != "gradients"
            ),
            y_log=True,
            main=kind == "spectrum",
        )
        for network in networks
        for kind, words in _QUANTITIES.items()
    ]
    verdicts = [
        _quantity_verdict(claim, network, kind, pair, [values[network, name, kind, end] for name in pair], number)
        for claim in artefact.claims
        for number in [len(networks) * len(_pairs(claim))]
        for network in networks
        for kind, pair in _pairs(claim)
    ]
    table = Table(
        tuple(rows),
        tuple(columns.values()),
        cells,
        unit="curvature and gradients of the training loss on fixed examples, at the end",
    )
    return Section(artefact, scale, table=table, plots=tuple(plots), verdicts=tuple(verdicts))


def _pairs(claim: Claim) -> list[tuple[str, tuple[str, str]]]:
    """Return the quantity and the two rows of each of a claim's comparisons."""
    criterion = claim.criterion
    assert isinstance(criterion, Better)
    return [(criterion.metric, (row, than)) for row in criterion.rows for than in criterion.than]


def _title(name: str) -> str:
    return f"{method('wn').title}, its weights" if name == WN_WEIGHTS else method(name).title


def _quantity(found: Mapping[str, Any], name: str, kind: str) -> float:
    """Return one number of a run at a moment: infinite if the last eigenvalue is not positive, NaN if not measured."""
    of_weights = name == WN_WEIGHTS
    if kind == "gradients":
        norms = [norm for norm in _layer_norms(found["gradient_norms"]) if norm > 0]
        return nan if of_weights else max(norms) / min(norms)
    values = found["weight_eigenvalues"] if of_weights else found.get("tangent_eigenvalues", found["eigenvalues"])
    if kind == "largest":
        return float(values[0])
    return float(values[0] / values[-1]) if values[-1] > 0 else inf


def _layer_norms(norms: Mapping[str, float]) -> list[float]:
    """Return the norm of each layer's gradient; WN has two parameters in place of a weight, which are combined.

    >>> proxy = "1.parametrizations.weight.original"
    >>> _layer_norms({"0.weight": 2.0, f"{proxy}0": 3.0, f"{proxy}1": 4.0})
    [2.0, 5.0]
    """
    layers: dict[str, list[float]] = {}
    for name, norm in norms.items():
        layer, parametrized, _ = name.partition(".parametrizations.")
        layers.setdefault(layer if parametrized else name.rpartition(".")[0], []).append(norm)
    return [hypot(*each) for each in layers.values()]


def _quantity_curve(row: Row, moments: Sequence[float], values: Sequence[Sequence[float]]) -> Curve:
    """Return the mean and range over seeds, at each moment that has finite values."""
    known = [(float(moment), [*filter(isfinite, seeds)]) for moment, seeds in zip(moments, values, strict=True)]
    kept = [(moment, seeds) for moment, seeds in known if seeds]
    means, lows, highs = (tuple(of(seeds) for _, seeds in kept) for of in (mean, min, max))
    return Curve(row, tuple(moment for moment, _ in kept), means, lows, highs, len(values[0]))


def _quantity_verdict(
    claim: Claim, network: str, kind: str, pair: tuple[str, str], sides: Sequence[Sequence[float]], number: int
) -> Verdict:
    """Compare the logarithms in pairs by seed, as only the ratio of such quantities is meaningful."""
    names = (_title(pair[0]), _title(pair[1]), network)
    ours, theirs = ({seed: log(value) for seed, value in enumerate(side, 1) if isfinite(value)} for side in sides)
    if not ours or not theirs:
        quantity = _QUANTITIES[kind].capitalize()
        return undecided(claim, f"{quantity}: no finite value for {names[0]} or {names[1]} on {network}.")
    compared, strict = (compare(ours, theirs, confidence) for confidence in confidences(number))
    outcome, firmly = (one_sided(found.interval, found.counts, lower=True) for found in (compared, strict))
    basis = f"difference of logarithms; {compared.kind}" if compared.kind else "one run per side"
    means = [f"{digits(mean(side))} for {name}" for side, name in zip(sides, names, strict=False)]
    words = f"{_QUANTITIES[kind].capitalize()}: {' and '.join(means)} on {network} ({basis})."
    firm, few = firmly == outcome, min(compared.counts) < FEW
    return Verdict.from_comparison(claim, outcome, words, compared, names, dots=(), firm=firm, preliminary=few)


# --- table 5


def _time_cost(artefact: MeasuredArtefact, scale: Scale, result: Result) -> Section:
    """Return the table of percentages and hours, with the verdicts.

    Raises:
        ValueError: the stated percentages or hours do not follow from the times.
    """
    _check_times(result)
    assert artefact.table is not None
    times = _Times(artefact.table, result)
    verdicts = tuple(verdict for claim in artefact.claims for verdict in times.verdicts(claim))
    return Section(artefact, scale, table=times.table(), verdicts=verdicts, notes=times.notes())


class _Times:
    """Table 5's measurement beside the paper's hours."""

    def __init__(self, paper: PaperTable, result: Result) -> None:
        self.paper, self.result = paper, result
        self.titles = dict(paper.rows)
        for part in result["networks"].values():
            self.titles |= {key: method(key).title for key in part["methods"] if key not in self.titles}

    def table(self) -> Table:
        """Return the medians over rounds beside the paper's hours and the percentages that follow from them."""
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
            unit="extra time over Normal (%), time of the projection alone (% of a Normal step), and hours",
            ours="median (rounds)",
            fixed=True,
            drawn="every round, and the median (line)",
            undrawn=frozenset({"hours"}),
        )

    def verdicts(self, claim: Claim) -> list[Verdict]:
        """Return the verdicts on a claim, one for each timed network and comparison."""
        criterion = claim.criterion
        columns = [column for column in self.paper.columns if column.value in self.result["networks"]]
        if isinstance(criterion, Costs):
            timed = [column for column in columns if criterion.row in self._methods(column.value)]
            found = [self._cost(claim, criterion, column, len(timed)) for column in timed]
            return found or [undecided(claim, f"{method(criterion.row).title} was not timed.")]
        assert isinstance(criterion, Better)
        [than] = criterion.than
        number = len(columns) * len(criterion.rows)
        return [self._shorter(claim, row, than, column, number) for column in columns for row in criterion.rows]

    def notes(self) -> tuple[str, ...]:
        """Return notes on what the times depend on: the batch sizes, and the load of the machine."""
        parts = list(self.result["networks"].values())
        batches = " and ".join(str(size) for size in sorted({part["batch_size"] for part in parts}))
        found = [
            f"Timed with batches of {batches}.",
            "Percentages are medians of ratios within a round, hours are medians of times: on a noisy machine, the "
            "two need not agree.",
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
            return Summary(tuple(values), found["percent_over_normal"]["value"], None, reach=_half_width(values))
        if column.metric == "own":  # the measurement keeps only the median
            return Summary((found["projection_percent"],) * len(found["seconds"]), found["projection_percent"], None)
        part = self.result["networks"][column.value]
        hours = [_hours(part, seconds) for seconds in found["seconds"]]
        return Summary(tuple(hours), found["hours"], None, reach=_half_width(hours))

    def _paper(self, name: str, column: Column) -> Number | None:
        title = next(each.title for each in self.paper.columns if each.value == column.value)
        if (name, title) not in self.paper.numbers or column.metric == "own":
            return None
        return self.paper.numbers[name, title] if column.metric == "hours" else Number(self._over_normal(name, title))

    def _over_normal(self, name: str, title: str) -> float:
        hours, normal = (self.paper.numbers[key, title].value for key in (name, _NORMAL))
        return 100 * (hours / normal - 1)

    def _cost(self, claim: Claim, criterion: Costs, column: Column, number: int) -> Verdict:
        values = percentages(self.result, column.value, criterion.row)
        compared, strict = (_over_rounds(values, confidence) for confidence in confidences(number))
        least = -inf if criterion.least is None else criterion.least
        most = inf if criterion.most is None else criterion.most
        names = (self.titles[criterion.row], self.titles[_NORMAL], column.title)
        printed = criterion.row if criterion.row in self.paper.rows else "pbwn-riem"  # the paper times no other form
        timed = (printed, column.title) in self.paper.numbers
        paper = f" The paper's hours give {self._over_normal(printed, column.title):.2f} %." if timed else ""
        percent, more = _difference(compared)
        words = f"{names[0]} takes {percent} {more} time than {names[1]} on {column.title} {_basis(compared)}.{paper}"
        outcome, firmly = (between(found.interval, least, most) for found in (compared, strict))
        return Verdict.from_comparison(claim, outcome, words, compared, names, firm=firmly == outcome)

    def _shorter(self, claim: Claim, row: str, than: str, column: Column, number: int) -> Verdict:
        sides = [percentages(self.result, column.value, name) for name in (row, than)]
        values = [ours - theirs for ours, theirs in zip(*sides, strict=True)]
        compared, strict = (_over_rounds(values, confidence) for confidence in confidences(number))
        outcome, firmly = (one_sided(found.interval, found.counts, lower=True) for found in (compared, strict))
        names = (self.titles[row], self.titles[than], column.title)
        percent, more = _difference(compared)
        amount = f"by {percent} of a Normal step {_basis(compared)}"
        words = f"{names[0]} takes {more} time than {names[1]} on {column.title}, {amount}."
        return Verdict.from_comparison(claim, outcome, words, compared, names, firm=firmly == outcome)


def percentages(result: Result, network: str, name: str) -> list[float]:
    """Return the extra time of a step over the Normal one of the same round, in percent."""
    methods = result["networks"][network]["methods"]
    pairs = zip(methods[name]["seconds"], methods[_NORMAL]["seconds"], strict=True)
    return [100 * (seconds / normal - 1) for seconds, normal in pairs]


def _over_rounds(values: Sequence[float], confidence: float = CONFIDENCE) -> Compared:
    """Return the median over rounds, with its exact interval."""
    found = median_with_interval(values, confidence)
    low, high = found["low"], found["high"]
    interval = None if low is None or high is None else Interval(median(values), low, high)
    return Compared(median(values), interval, (len(values), len(values)))


def _half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the median's interval."""
    interval = _over_rounds(values).interval
    return (interval.high - interval.low) / 2 if interval else None


def _hours(part: Mapping[str, Any], seconds: float) -> float:
    return float(seconds * part["steps_per_epoch"] * part["epochs"] / 3600)


def _difference(compared: Compared) -> tuple[str, str]:
    """Return the size of a difference in percent, and its direction."""
    assert compared.difference is not None, "there is a round"
    return f"{digits(abs(compared.difference), compared.interval)} %", "less" if compared.difference < 0 else "more"


def _basis(compared: Compared) -> str:
    limits = span(compared.interval) if compared.interval else "too few rounds for an interval"
    return f"({limits}; median of {compared.counts[0]} rounds)"


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


# --- gradients


def _gradients(artefact: MeasuredArtefact, scale: Scale, result: Result) -> Section:
    """Return the measurements by layer as a table of means over seeds, with the verdicts."""
    layers = [layer for part in result["networks"].values() for layer in next(iter(part.values()))["gradient_share"]]
    kinds = {"gradient_share": "share along the weights", "passed_back": "norm passed back"}
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
            cells[row.key, column] = Cell(Summary.of(values) if values else None, None)
    unit = "share of the squared gradient along the weights, and gradient norm passed back over that received"
    table = Table(rows, tuple(columns.values()), cells, unit)
    verdicts = [[*_within(claim, result)] or [undecided(claim, "It was not measured.")] for claim in artefact.claims]
    return Section(artefact, scale, table=table, verdicts=tuple(chain(*verdicts)))


def _within(claim: Claim, result: Result) -> Iterator[Verdict]:
    """Yield a verdict for each layer: whether its mean over seeds lies between the bounds."""
    criterion = claim.criterion
    assert isinstance(criterion, Within)
    title, bounds = method(criterion.row).title, f"between {criterion.least:g} and {criterion.most:g}"
    measured = {
        (network, layer): values
        for network, part in result["networks"].items()
        for layer, values in part.get(criterion.row, {}).get(criterion.metric, {}).items()
    }
    for (network, layer), values in measured.items():
        interval, strict = (
            paired(values, confidence) if len(values) > 1 else None for confidence in confidences(len(measured))
        )
        outcome, firmly = (between(found, criterion.least, criterion.most) for found in (interval, strict))
        limits = span(interval) if interval else "one run"
        value = f"{digits(mean(values), interval)} ({limits}; claimed: {bounds})"
        words = f"In layer {layer} of {network} with {title}: {value}."
        compared = Compared(mean(values), interval, (len(values), len(values)))
        names = (title, "", f"{network}, layer {layer}")
        firm, few = firmly == outcome, len(values) < FEW
        yield Verdict.from_comparison(claim, outcome, words, compared, names, firm=firm, preliminary=few)
