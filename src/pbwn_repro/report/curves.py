"""Curves of runs: training over time, averaged over seeds, and results over the settings of a search."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from pbwn.monitor import QUANTITIES
from pbwn_repro.methods import METHODS
from pbwn_repro.report.cells import SETTINGS, Cells
from pbwn_repro.report.model import Curve, Plot, Row
from pbwn_repro.report.runs import History
from pbwn_repro.report.statistics import diverging, finite, in_common, mean

Points = list[tuple[float, float]]
Rows = Sequence[tuple[Row, Sequence[History]]]
ROUNDING = 1e-5  # smaller deviations from the sphere are rounding, in float32 too


def plots_of(cells: Cells, prefix: str) -> tuple[Plot, ...]:
    """Return all plots of a section: curves at the best settings, searches, and curves at the paper's setting."""
    found: list[Plot] = []
    values = dict.fromkeys(column.value for column in cells.columns)
    in_one_frame = "carries-over" in cells.artefact.compared  # whether columns are compared with each other
    for value in values:
        column, *others = [each for each in cells.columns if each.value == value]
        name = "" if len(values) == 1 else value if others else column.title
        rows = [(row, chosen.runs) for row in cells.curve_rows if (chosen := cells.at(row.key, column))]
        found += _over_time(prefix, name, rows, cells)
        if not in_one_frame:
            found += _search(cells, prefix, name, [(row, value) for row in cells.curve_rows])
    if in_one_frame:
        lines = [
            (replace(row, title=f"{row.title}, {column.title}", style=f"{row.style}/{rank}"), column.value)
            for row in cells.curve_rows
            for rank, column in enumerate(cells.columns)
        ]
        found += _search(cells, prefix, "", lines)
    rows = [(row, cells.stated[row.key].runs) for row in cells.curve_rows if row.key in cells.stated]
    at_stated = _over_time(prefix, f"at the paper's {cells.stated_value}", rows, cells)[:1] if rows else ()
    return (*found, *at_stated)


def _over_time(prefix: str, column: str, runs: Sequence[tuple[Row, pd.DataFrame]], cells: Cells) -> list[Plot]:
    """Return plots of training loss, metric, norms, deviation and monitored quantities of the runs in a column."""
    rows = [(row, [history for history in found.history if history.evaluations]) for row, found in runs]
    name = "-".join(part for part in (prefix, slug(column)) if part)
    suffix = f", {column}" if column else ""
    metric, by_iteration = cells.task_metric, cells.artefact.curves == "iteration"
    methods = {config.method for _, found in runs for config in found.config} & METHODS.keys()
    by_epoch = any(METHODS[name].projects_after_each_epoch for name in methods)
    found = [
        Plot(
            f"{name}-training-loss",
            f"Training loss{suffix}",
            "iteration" if by_iteration else "epoch",
            "training loss",
            _curves(rows, _losses if by_iteration else History.losses_by_epoch),
            y_log=True,
            main=cells.artefact.curves in ("iteration", "epoch"),
        ),
        Plot(
            f"{name}-{slug(metric.words)}",
            f"{metric.words.capitalize()}{suffix}",
            "epoch",
            metric.label,
            _curves(rows, lambda history: _evaluations(history, metric.name)),
            y_log=metric.logarithmic,
        ),
        Plot(
            f"{name}-weight-norms",
            f"Median norm of the neurons' weights{suffix}",
            "epoch",
            "norm",
            tuple(curve for row, histories in rows if (curve := _norms(row, histories))),
            band="bands hold the middle half of the neurons",
        ),
    ]
    if (largest_deviation(cells.runs) or 0) >= ROUNDING:
        found.append(
            Plot(
                f"{name}-deviation",
                f"Largest deviation from the sphere{', before an epoch is projected' if by_epoch else ''}{suffix}",
                "epoch",
                "largest relative deviation of a norm",
                _curves(rows, lambda history: _evaluations(history, "deviation")),
                y_log=True,
            )
        )
    found += [
        Plot(
            f"{name}-monitor-{slug(quantity)}",
            f"{words[:1].upper()}{words[1:]}, mean over weights{suffix}",
            "iteration",
            words,
            _curves(rows, partial(History.monitored_means, quantity=quantity)),
            y_log=True,
        )
        for quantity, words in QUANTITIES.items()
    ]
    return [plot for plot in found if any(len(curve.x) > 1 for curve in plot.curves)]


def _search(cells: Cells, prefix: str, column: str, lines: Sequence[tuple[Row, str]]) -> list[Plot]:
    """Return a plot of the results over the searched axis, or over the learning rate if there are several such axes.

    `lines` are rows with the value of the column in which each is searched.
    """
    names = [axis.name for axis in cells.searched if len(axis.values) > 1]
    name = names[0] if len(names) == 1 else "lr"
    if name not in names:
        return []
    searches = [(row, cells.tried(row.key, value, name)) for row, value in lines]
    curves = [search_curve(row, dict(sorted(tried.items()))) for row, tried in searches if len(tried) > 1]
    curves = [curve for curve in curves if curve.x]
    if not curves:
        return []
    words = SETTINGS.get(name, name)
    others = [SETTINGS.get(other, other) for other in names if other != name]
    at_best = f", at the best {' and '.join(others)} of each" if others else ""
    suffix = f", {column}" if column else ""
    return [
        Plot(
            "-".join(part for part in (prefix, slug(column), "search") if part),
            f"{cells.metric.words[:1].upper()}{cells.metric.words[1:]} over the {words}{at_best}{suffix}",
            words,
            cells.metric.label,
            tuple(curves),
            x_log=all(x > 0 for curve in curves for x in (*curve.x, *curve.diverged)),
            y_log=cells.metric.logarithmic,
            main=cells.artefact.curves == "search" or not (cells.artefact.curves or cells.artefact.table),
            band="mean over the seeds that all settings have, each run a dot",
        )
    ]


def largest_deviation(runs: pd.DataFrame) -> float | None:
    """Return the largest deviation of a constrained norm at any evaluation, or None if none is constrained."""
    return max((value for history in runs.history for _, value in _evaluations(history, "deviation")), default=None)


def slug(words: str) -> str:
    """Return words in a form that is fit for file names."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _losses(history: History) -> Points:
    return [(float(step), loss) for step, loss in history.losses]


def _evaluations(history: History, field: str) -> list[tuple[float, Any]]:
    return [(line["epoch"], line[field]) for line in history.evaluations if line.get(field) is not None]


def _curves(rows: Rows, points: Callable[[History], Points]) -> tuple[Curve, ...]:
    lines = [(row, [line for history in histories if (line := points(history))]) for row, histories in rows]
    return tuple(_curve(row, found) for row, found in lines if found)


def _curve(row: Row, lines: Sequence[Points]) -> Curve:
    x, values = _aligned(lines)
    means, low, high = (tuple(of(each) for each in values) for of in (mean, min, max))
    return Curve(row, x, means, low, high, len(lines))


def search_curve(row: Row, found: Mapping[float, Mapping[int, float]], *, common: bool = True) -> Curve:
    """Return a search as a curve of means: over the seeds common to all settings or, without `common`, over all."""
    kept = in_common(found) if common else found
    finished = {setting: list(finite(values).values()) for setting, values in kept.items() if finite(values)}
    means = tuple(mean(values) for values in finished.values())
    diverged = {
        setting: f"{len(values) - len(finite(values))} of {len(values)}"
        for setting, values in found.items()
        if diverging(values)
    }
    dots = tuple((setting, value) for setting, values in found.items() for value in finite(values).values())
    count = max(map(len, kept.values()))
    return Curve(row, tuple(finished), means, means, means, count, tuple(diverged), dots, tuple(diverged.values()))


def _norms(row: Row, histories: Sequence[History]) -> Curve | None:
    """Return the mean of the medians, with a band between the means of the quartiles."""
    found = [_evaluations(history, "weight_norms") for history in histories]
    lines = [line for line in found if line]
    if not lines:
        return None
    quartiles = [_aligned([[(x, norms[part]) for x, norms in line] for line in lines]) for part in (1, 2, 3)]
    low, median, high = (tuple(map(mean, values)) for _, values in quartiles)
    return Curve(row, quartiles[1][0], median, low, high, len(histories))


def _aligned(lines: Sequence[Points]) -> tuple[tuple[float, ...], list[list[float]]]:
    """Return the x that all runs have, and the values of all runs at each."""
    tables = [dict(line) for line in lines]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return tuple(shared), [[table[x] for table in tables] for x in shared]
