"""Curves with bands over seeds, each named at its end where there is room, in a legend where there is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pbwn_repro.report.drawing.figure import Drawing, frame, number
from pbwn_repro.report.drawing.palette import GRID, SOLID, strokes
from pbwn_repro.report.model import Curve, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

WIDE, NARROW = (7.4, 3.7), (3.4, 3.4)
_ALL_PLACES = 8  # so many places on a logarithmic axis are all named, such as the rates of a search
_LINE = 0.058  # the height of a line of text, as a share of the frame's


def of_plot(plot: Plot) -> Drawing:
    """The drawing of a plot."""
    title = plot.title
    if any(curve.count > 1 for curve in plot.curves) and "band" not in plot.title:
        title += "; mean over runs, bands from the lowest to the highest"
    if any(curve.diverged for curve in plot.curves):
        title += "; a cross where runs diverged"
    return Drawing(plot.name, title, describe(plot), lambda narrow: draw(plot, narrow=narrow))


def describe(plot: Plot) -> str:
    """What the curves say, in words: where each starts and ends, and over how many runs."""
    parts = [
        f"{curve.name} goes from {curve.mean[0]:.3g} to {curve.mean[-1]:.3g} "
        f"({curve.count} {'run' if curve.count == 1 else 'runs'}"
        + "".join(f"; diverged at {place:g}" for place in curve.diverged)
        + ")"
        for curve in plot.curves
        if curve.mean
    ]
    return f"{plot.title}: {plot.y_label} by {plot.x_label}. {'; '.join(parts)}."


def draw(plot: Plot, *, narrow: bool) -> Figure:
    """Draw the curves in one frame."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=NARROW if narrow else WIDE, layout="constrained")
    axes = figure.subplots()
    frame(axes, plot.x_label, plot.y_label)
    curves = [curve for curve in plot.curves if curve.x]
    styles = strokes([curve.name for curve in plot.curves])
    for number_of_curve, curve in enumerate(curves):
        stroke = styles[curve.name]
        if curve.low != curve.high:
            axes.fill_between(curve.x, curve.low, curve.high, color=stroke.tone.light, alpha=0.16, linewidth=0)
        axes.plot(
            *(curve.x, curve.mean),
            color=stroke.tone.light,
            linestyle=stroke.dashes,
            linewidth=stroke.width,
            marker="o" if len(curve.x) == 1 else None,
            markersize=4,
            label=curve.name,
            zorder=2 if stroke.dashes == SOLID else 2.1,  # a line below shows between the dashes
        )
        axes.plot(  # above everything, below each other
            *(curve.diverged, [1 - _LINE * number_of_curve] * len(curve.diverged), "x"),
            transform=axes.get_xaxis_transform(),
            color=stroke.tone.light,
            clip_on=False,
        )
    axes.margins(x=0)
    if plot.y_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(_few_decades(*axes.get_ylim()))
    if plot.x_log:
        axes.set_xscale("log")
        places = sorted({place for curve in curves for place in (*curve.x, *curve.diverged)})
        if len(places) <= _ALL_PLACES:
            axes.set_xticks(places)
        else:
            axes.xaxis.set_major_locator(_few_decades(*axes.get_xlim()))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(number))
    axes.minorticks_off()
    if narrow:
        figure.legend(loc="outside upper left", ncols=3, frameon=False, handlelength=1.8, columnspacing=1.2)
    else:
        _name_at_ends(axes, curves)
    return figure


def _few_decades(low: float, high: float) -> Locator:
    """Ticks of a logarithmic axis: powers of ten alone are too few where there are less than two of them."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if high < 3 * low:
        return MaxNLocator(5)
    return LogLocator(subs=(1, 2, 5) if high < 60 * low else (1,))


def _name_at_ends(axes: Axes, curves: Sequence[Curve]) -> None:
    styles = strokes([curve.name for curve in curves])
    to_share = axes.transScale + axes.transLimits
    last = max((place for curve in curves for place in (*curve.x, *curve.diverged)), default=0.0)
    for curve in curves:
        if curve.x[-1] < last:
            colour = styles[curve.name].tone.light
            place = (curve.x[-1], curve.mean[-1])
            axes.annotate(curve.name, place, (4, 0), textcoords="offset points", color=colour, weight="bold")
    ends = sorted(
        (float(to_share.transform((curve.x[-1], curve.mean[-1]))[1]), curve.name)
        for curve in curves
        if curve.x[-1] == last
    )
    heights = spread([end for end, _ in ends], _LINE)
    for (end, name), height in zip(ends, heights, strict=True):
        colour = styles[name].tone.light
        axes.plot(
            *((1.005, 1.025), (min(max(end, 0), 1), height)),
            transform=axes.transAxes,
            color=GRID.light,
            linewidth=0.9,
            clip_on=False,
            scalex=False,
            scaley=False,
        )
        axes.text(1.03, height, name, transform=axes.transAxes, color=colour, va="center_baseline", weight="bold")


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Move ascending places apart until neighbours are a gap away, and keep them below 1.

    >>> spread([0.0, 0.1, 0.9], 0.2)
    [0.0, 0.2, 0.9]
    """
    moved = [min(max(place, 0.0), 1.0) for place in places]
    for position in range(1, len(moved)):
        moved[position] = max(moved[position], moved[position - 1] + gap)
    ceiling = 1.0
    for position in reversed(range(len(moved))):
        moved[position] = min(moved[position], ceiling)
        ceiling = moved[position] - gap
    return moved
