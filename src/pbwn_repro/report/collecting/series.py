"""The curves of a section: what the runs of each row did over time, averaged over seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from pbwn_repro.report.collecting.reading import Record
from pbwn_repro.report.model import Curve, Plot
from pbwn_repro.report.statistics import diverging, finite, mean

SETTINGS = {"lr": "learning rate", "weight_decay": "weight decay"}
Points = list[tuple[float, float]]
Time = Literal["iteration", "epoch"]
Rows = Sequence[tuple[str, Sequence[Record]]]  # titles, and the runs behind them
Searches = Sequence[tuple[str, Mapping[float, Mapping[int, float]]]]  # titles, and by setting what the seeds gave


def plots(prefix: str, place: str, rows: Rows, time: Time) -> tuple[Plot, ...]:
    """Training loss, test error, norms and deviation of the runs in one column; `place` names the column."""
    name = "-".join(part for part in (prefix, slug(place)) if part)
    suffix = f", {place}" if place else ""
    found = (
        Plot(
            f"{name}-training-loss",
            f"Training loss{suffix}",
            time,
            "training loss",
            _curves(rows, _by_iteration if time == "iteration" else _by_epoch),
            y_log=True,
        ),
        Plot(
            f"{name}-test-error",
            f"Test error{suffix}",
            "epoch",
            "test error (%)",
            _curves(rows, lambda record: _evaluations(record, "test_error")),
        ),
        Plot(
            f"{name}-weight-norms",
            f"Norms of the neurons' weights{suffix}: the median; the band holds the middle half of the neurons",
            "epoch",
            "norm",
            tuple(_norms(title, records) for title, records in rows if _have(records, "weight_norms")),
        ),
        Plot(
            f"{name}-deviation",
            f"Largest deviation from the unit sphere before an epoch's projection{suffix}",
            "epoch",
            "largest deviation of a norm from 1",
            _curves(rows, lambda record: _evaluations(record, "deviation")),
            y_log=True,
        ),
    )
    return tuple(plot for plot in found if plot.curves)


def search_plot(prefix: str, place: str, axis: str, rows: Searches, y_label: str) -> Plot | None:
    """What each setting of a search gave."""
    curves = tuple(_searched(title, found) for title, found in rows if len(found) > 1)
    curves = tuple(curve for curve in curves if curve.x)
    name = "-".join(part for part in (prefix, slug(place), "search") if part)
    words = SETTINGS.get(axis, axis)
    title = f"What the search over the {words} gave" + (f", {place}" if place else "")
    positive = all(x > 0 for curve in curves for x in (*curve.x, *curve.diverged))
    log = y_label == "training loss, last epoch"
    return Plot(name, title, words, y_label, curves, x_log=positive, y_log=log) if curves else None


def slug(words: str) -> str:
    """Words as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _by_iteration(record: Record) -> Points:
    return [(float(step), loss) for step, loss in record.history.losses]


def _by_epoch(record: Record) -> Points:
    return record.history.losses_by_epoch()


def _evaluations(record: Record, field: str) -> Points:
    return [(line["epoch"], line[field]) for line in record.history.evaluations if line.get(field) is not None]


def _have(records: Sequence[Record], field: str) -> bool:
    return any(field in line for record in records for line in record.history.evaluations)


def _curves(rows: Rows, points: Callable[[Record], Points]) -> tuple[Curve, ...]:
    return tuple(_curve(title, found) for title, records in rows if (found := [p for r in records if (p := points(r))]))


def _curve(title: str, runs: Sequence[Points]) -> Curve:
    x, rows = _aligned(runs)
    means, low, high = (tuple(of(values) for values in rows) for of in (mean, min, max))
    return Curve(title, x, means, low, high, len(runs))


def _searched(title: str, found: Mapping[float, Mapping[int, float]]) -> Curve:
    """A search as a curve, over the seeds that all its settings have, as far as there are any."""
    seeds = set.intersection(*(set(values) for values in found.values()))
    kept = {
        setting: {seed: value for seed, value in values.items() if seed in (seeds or values)}
        for setting, values in sorted(found.items())
    }
    ended = {setting: list(finite(values).values()) for setting, values in kept.items() if finite(values)}
    means, low, high = (tuple(of(values) for values in ended.values()) for of in (mean, min, max))
    lost = tuple(setting for setting, values in sorted(found.items()) if diverging(values))
    return Curve(title, tuple(ended), means, low, high, max(map(len, kept.values())), lost)


def _norms(title: str, records: Sequence[Record]) -> Curve:
    def quartile(position: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        runs = [
            [(line["epoch"], line["weight_norms"][position]) for line in each.history.evaluations if _has_norms(line)]
            for each in records
        ]
        x, rows = _aligned([run for run in runs if run])
        return x, tuple(mean(values) for values in rows)

    x, median = quartile(2)
    return Curve(title, x, median, quartile(1)[1], quartile(3)[1], len(records))


def _has_norms(line: object) -> bool:
    return isinstance(line, dict) and "weight_norms" in line


def _aligned(runs: Sequence[Points]) -> tuple[tuple[float, ...], list[list[float]]]:
    """The places that all runs have, and what the runs have there."""
    tables = [dict(run) for run in runs]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return tuple(shared), [[table[place] for table in tables] for place in shared]
