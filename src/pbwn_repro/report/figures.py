"""The report's figures, drawn with matplotlib: inline SVG for the page, and SVG and PDF files."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pbwn_repro.report.model import ALPHA, Curve, Plot, Section, Table
from pbwn_repro.report.palette import GRID, INK, LEVELS, METHODS, MUTED, PAPER, SOLID, Stroke, strokes, tones
from pbwn_repro.report.statistics import significant

if TYPE_CHECKING:  # matplotlib takes a second to import, and a report without figures does not need it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator
    from matplotlib.typing import RcKeyType

MINUS = "\N{MINUS SIGN}"
WIDTH = 5.2  # inches: the text is readable on a phone and not too large on a desktop
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_TICKS = 8  # up to this many values on a logarithmic axis, such as learning rates, have a tick each
_LINE = 0.062  # height of a line of text, as a fraction of the axes' height
_LETTER = 0.078  # width of a letter, in inches
_PANELS_PER_ROW = 3
_DOT_MARGIN = 0.03  # fraction of the width that keeps the first and last dots from being cut off
_CONDITIONS = (
    ("general", f"at ({ALPHA} w₁, w₂ / {ALPHA})", METHODS["normal"]),
    ("projected", "after projection", METHODS["pbwn"]),
)


@dataclass(frozen=True)
class Drawing:
    """A figure, drawn on demand.

    Args:
        name: the name of its files, unique in a report.
        title: the caption.
        description: the text for screen readers.
        draw: returns the matplotlib figure.
    """

    name: str
    title: str
    description: str
    draw: Callable[[], Figure]

    @cached_property
    def svg(self) -> str:
        """The figure as SVG with a transparent background and text that is not converted to paths."""
        return self._saved("svg").decode()

    @property
    def dark_svg(self) -> str:
        """The figure as SVG in the colours of the dark page."""
        text = self.svg
        for tone in tones():
            text = text.replace(tone.light, tone.dark)
        return text

    @cached_property
    def inline(self) -> Markup:
        """The figure as an SVG element with the page's colours and fonts, and with ids unique to this figure."""
        text = self.svg[self.svg.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
        text = re.sub(r"font-family: [^;\"]*;? ?|stroke-linejoin: round;? ?", "", text)
        text = re.sub(r'\bid="', f'id="{self.name}-', text)
        text = re.sub(r'(href="|url\()#', rf"\1#{self.name}-", text)
        text = re.sub(r"\s*\n\s*", " ", text)
        # Round coordinates to a hundredth of a point, which is invisible, but not numbers in the text, such as 0.001.
        text = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), text)
        for tone in tones():
            text = text.replace(tone.light, f"var(--{tone.name})")
        box = re.search(r'viewBox="[^"]*"', text)
        assert box is not None, "matplotlib writes a viewBox"
        opening = f'<svg {box[0]} role="img" aria-label="{escape(self.description)}">'
        return Markup(re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1))

    def write(self, folder: Path, *, pdf: bool = False) -> list[Path]:
        """Write the figure as SVG on white and, if `pdf`, as PDF; return the files."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {folder / f"{self.name}.svg": _on_white(self.svg).encode()}
        if pdf:
            files[folder / f"{self.name}.pdf"] = self._saved("pdf")
        for file, content in files.items():
            file.write_bytes(content)
        return list(files)

    def _saved(self, kind: str) -> bytes:
        with _style(self.name), io.BytesIO() as file:
            dates = {"Date": None} if kind == "svg" else {"CreationDate": None, "ModDate": None}
            self.draw().savefig(file, format=kind, transparent=kind == "svg", metadata=dates)
            return file.getvalue()


def drawings(section: Section) -> tuple[list[Drawing], list[Drawing]]:
    """Return a section's main figures, and those that show how its runs went."""
    shown = of_surfaces(section.landscapes, section.anchor) if section.landscapes else []
    curves = [(of_plot(plot), plot.main) for plot in section.plots]
    shown += [drawing for drawing, main in curves if main]
    if section.table is not None and _can_be_compared(section.table) and (section.is_own or not shown):
        shown.insert(0, of_table(section.table, f"{section.anchor}-dots", paper=section.scale == "paper"))
    return shown, [drawing for drawing, main in curves if not main]


def _can_be_compared(table: Table) -> bool:
    """Return whether some column has at least two values to draw."""
    counts = Counter(column for (_, column), cell in table.cells.items() if cell.ours for _ in cell.ours.values)
    return max(counts.values(), default=0) > 1


# --- curves with bands over seeds


def of_plot(plot: Plot) -> Drawing:
    """Return the drawing of a plot."""
    title = plot.title
    if any(curve.count > 1 or curve.dots for curve in plot.curves):
        title += f"; {plot.band}"
    if any(curve.diverged for curve in plot.curves):
        title += "; crosses mark diverged runs"
    parts = [
        f"{curve.row.title} goes from {significant(curve.mean[0])} to {significant(curve.mean[-1])} "
        f"({curve.count} {'run' if curve.count == 1 else 'runs'}"
        + "".join(f"; {share} diverged at {x:g}" for share, x in zip(curve.lost, curve.diverged, strict=True))
        + ")"
        for curve in plot.curves
        if curve.mean
    ]
    description = f"{plot.title}: {plot.y_label} by {plot.x_label}. {'; '.join(parts)}."
    return Drawing(plot.name, title, description, lambda: _draw_curves(plot))


def _draw_curves(plot: Plot) -> Figure:
    from matplotlib.figure import Figure

    curves = [curve for curve in plot.curves if curve.x]
    longest = max((len(line) for curve in curves for line in _wrapped(curve.row.title)), default=0)
    figure = Figure(figsize=(WIDTH, 2.9))
    margins = _margins(2.9, left=0.65 if _diverging([plot]) else 0.5, right=0.2 + _LETTER * longest)
    [axes] = _fill_with_curves(figure, [plot], margins)
    _label_ends(axes, curves, strokes([curve.row.style for curve in plot.curves]))
    return figure


def _fill_with_curves(figure: Figure, plots: Sequence[Plot], margins: Mapping[str, float]) -> list[Axes]:
    """Draw a panel for each plot, side by side; above each, a band marks diverged runs, which have no value."""
    diverging = _diverging(plots)
    heights = [0.19 * len(diverging), 2.2] if diverging else [2.2]
    grid = figure.subplots(
        *(len(heights), len(plots)),
        squeeze=False,
        sharex="col",
        sharey="row",
        gridspec_kw={"height_ratios": heights, "hspace": 0.06, **margins},
    )
    for plot, panel in zip(plots, grid[-1], strict=True):
        _draw_panel(panel, plot)
    if diverging:
        for plot, panel, band in zip(plots, grid[-1], grid[0], strict=True):
            _draw_band(band, plot, diverging)
            panel.set_title("", loc="left")
    return list(grid[-1])


def _diverging(plots: Sequence[Plot]) -> list[str]:
    """Return the styles of the curves with diverged runs, in order of appearance."""
    return list(dict.fromkeys(curve.row.style for plot in plots for curve in plot.curves if curve.diverged))


def _draw_band(band: Axes, plot: Plot, diverging: Sequence[str]) -> None:
    """Mark diverged runs with crosses, one line per curve; only the horizontal position has a meaning."""
    styles = strokes([curve.row.style for curve in plot.curves])
    _frame(band, "", plot.y_label)
    band.grid(visible=False)
    band.spines["bottom"].set_visible(False)
    band.tick_params(axis="x", length=0, labelbottom=False)
    band.axhspan(-0.6, len(diverging) - 0.4, color=GRID.light, alpha=0.45, linewidth=0, zorder=0)
    for curve in (curve for curve in plot.curves if curve.diverged):
        height, colour = diverging.index(curve.row.style), styles[curve.row.style].tone.light
        band.plot(curve.diverged, [height] * len(curve.diverged), "x", color=colour, clip_on=False)
        for x, share in zip(curve.diverged, curve.lost, strict=True):
            band.annotate(
                share, (x, height), (-6, 0), textcoords="offset points", color=colour, ha="right", va="center"
            )
    band.margins(x=_DOT_MARGIN)  # among axes that share limits, the margins of the last one apply
    band.set_ylim(len(diverging) - 0.4, -0.6)
    band.set_yticks([(len(diverging) - 1) / 2], ["diverged"])


def _draw_panel(axes: Axes, plot: Plot) -> None:
    from matplotlib.ticker import FuncFormatter

    curves = [curve for curve in plot.curves if curve.x]
    _frame(axes, plot.x_label, plot.y_label)
    styles = strokes([curve.row.style for curve in plot.curves])
    for curve in curves:
        _draw_curve(axes, curve, styles[curve.row.style])
    axes.margins(x=_DOT_MARGIN if any(curve.dots for curve in curves) else 0)
    if plot.y_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(_log_locator(*axes.get_ylim()))
    if plot.x_log:
        axes.set_xscale("log")
        values = sorted({x for curve in curves for x in (*curve.x, *curve.diverged)})
        if len(values) <= _MOST_TICKS:
            axes.set_xticks(values)
        else:
            axes.xaxis.set_major_locator(_log_locator(*axes.get_xlim()))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(number))
    axes.minorticks_off()


def side_by_side(name: str, plots: Sequence[Plot]) -> Drawing:
    """Return the drawing of plots of the same curves in one row, each under its title, with one legend."""
    titles = "; ".join(plot.title for plot in plots)
    description = " ".join(of_plot(plot).description for plot in plots)
    return Drawing(name, titles, description, lambda: _draw_side_by_side(plots))


def _draw_side_by_side(plots: Sequence[Plot]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 * WIDTH, 3.0))
    margins = _margins(3.0, width=1.5 * WIDTH, left=0.65, top=0.4, bottom=0.75)
    titled = [replace(plot, y_label=_panel_title(plot, plots[0])) for plot in plots]
    panels = _fill_with_curves(figure, titled, {**margins, "wspace": 0.06})
    styles = strokes([curve.row.style for curve in plots[0].curves])
    handles = [
        panels[0].plot([], [], color=style.tone.light, linestyle=style.dashes, linewidth=style.width)[0]
        for style in styles.values()
    ]
    titles = [curve.row.title for curve in plots[0].curves]
    figure.legend(handles, titles, loc="lower center", ncols=len(titles), frameon=False)
    return figure


def _panel_title(plot: Plot, first: Plot) -> str:
    """Return a panel's title, with the curves of the first panel that it has no runs of, and its y label."""
    names = [[curve.row.title for curve in each.curves] for each in (plot, first)]
    missing = ", ".join(name for name in names[1] if name not in names[0])
    return f"{plot.title}{missing and f' (no runs of {missing})'}\n{plot.y_label}"


def _draw_curve(axes: Axes, curve: Curve, stroke: Stroke) -> None:
    colour = stroke.tone.light
    if curve.low != curve.high:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(
        *(curve.x, curve.mean),
        color=colour,
        linestyle=stroke.dashes,
        linewidth=stroke.width,
        marker="o" if len(curve.x) == 1 else None,
        markersize=4,
        zorder=2 if stroke.dashes == SOLID else 2.1,  # dashed lines above solid ones, which show through the gaps
    )
    if curve.dots:
        axes.plot(*zip(*curve.dots, strict=True), "o", color=colour, markersize=2.5, alpha=0.7)


def _log_locator(low: float, high: float) -> Locator:
    """Return the ticks of a logarithmic axis: over a narrow range, powers of ten alone are too few."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if high < 3 * low:
        return MaxNLocator(5)
    return LogLocator(subs=(1, 2, 5) if high < 60 * low else (1,))


def _label_ends(axes: Axes, curves: Sequence[Curve], styles: Mapping[str, Stroke]) -> None:
    """Write the title of each curve at its end; those at the right edge are spread so that they do not overlap."""
    to_axes = axes.transScale + axes.transLimits
    last = max((x for curve in curves for x in (*curve.x, *curve.diverged)), default=0.0)
    for curve in curves:
        if curve.x[-1] < last:
            colour = styles[curve.row.style].tone.light
            end = (curve.x[-1], curve.mean[-1])
            axes.annotate(curve.row.title, end, (4, 0), textcoords="offset points", color=colour, weight="bold")
    ends = sorted(
        (float(to_axes.transform((curve.x[-1], curve.mean[-1]))[1]), position)
        for position, curve in enumerate(curves)
        if curve.x[-1] == last
    )
    lines = max((len(_wrapped(curves[position].row.title)) for _, position in ends), default=1)
    heights = spread([height for height, _ in ends], _LINE * lines)
    start = float(to_axes.transform((last, axes.get_ylim()[0]))[0])
    for (end_height, position), height in zip(ends, heights, strict=True):
        row = curves[position].row
        axes.plot(
            *((start + 0.005, 1.025), (min(max(end_height, 0), 1), height)),
            transform=axes.transAxes,
            color=GRID.light,
            linewidth=0.9,
            clip_on=False,
            scalex=False,
            scaley=False,
        )
        colour = styles[row.style].tone.light
        title = "\n".join(_wrapped(row.title))
        axes.text(1.03, height, title, transform=axes.transAxes, color=colour, va="center_baseline", weight="bold")


def _wrapped(title: str) -> list[str]:
    return textwrap.wrap(title, 18)


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Move ascending positions apart until neighbours differ by at least `gap`, keeping all of them at most 1.

    >>> spread([0.0, 0.1, 0.9], 0.2)
    [0.0, 0.2, 0.9]
    """
    moved = [min(max(position, 0.0), 1.0) for position in positions]
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + gap)
    ceiling = 1.0
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - gap
    return moved


# --- a table as dots


def of_table(table: Table, name: str, *, paper: bool) -> Drawing:
    """Return the drawing of a table; `paper` adds the paper's numbers on the same axes."""
    titles = {row.key: row.title for row in table.rows}
    means = [
        f"{titles[row]}, {column.title}: {significant(cell.ours.mean)}"
        for (row, column), cell in table.cells.items()
        if cell.ours and cell.ours.values
    ]
    beside = "; hollow: the paper's mean and standard deviation" if paper else ""
    middle = " and the median (triangle)" if table.medians else ""
    title = f"The table as dots: {table.drawn}{middle}{beside}"
    return Drawing(name, title, f"{table.unit}. {'; '.join(means)}.", lambda: _draw_dots(table, paper=paper))


def _draw_dots(table: Table, *, paper: bool) -> Figure:
    """Draw a panel for each column of the table that has runs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    filled = {key for key, cell in table.cells.items() if cell.ours is not None and cell.ours.values}
    columns = [
        column
        for column in table.columns
        if column.metric not in table.undrawn and any((row.key, column) in filled for row in table.rows)
    ]
    rows = [row for row in table.rows if any((row.key, column) in filled for column in columns)]
    across = min(_PANELS_PER_ROW, len(columns))
    down = -(-len(columns) // across)
    headings = [_wrapped(column.title) for column in columns]
    lines = max(map(len, headings))
    unit = textwrap.wrap(table.unit, 80)
    height = 0.3 + 0.15 * len(unit) + down * (0.4 + 0.15 * lines + 0.26 * len(rows))
    figure = Figure(figsize=(WIDTH, height))
    left = 0.15 + _LETTER * max(len(row.title) for row in rows)
    margins = _margins(height, left=left, top=0.1 + 0.15 * lines, bottom=0.35 + 0.15 * len(unit))
    gaps = {"hspace": (0.35 + 0.15 * lines) / (0.26 * len(rows)), "wspace": 0.12}
    panels = figure.subplots(down, across, squeeze=False, sharey=True, gridspec_kw={**margins, **gaps}).ravel()
    styles = strokes([row.style for row in rows])
    for panel, column, heading in zip(panels, columns, headings, strict=False):
        _frame(panel, "", "")
        panel.set_title("\n".join(heading), loc="left", color=INK.light, weight="bold")
        panel.grid(axis="y", visible=False)
        for position, row in enumerate(rows):
            cell = table.cells[row.key, column]
            colour = styles[row.style].tone.light
            if cell.ours is not None and cell.ours.values:
                y = position - 0.14 * paper
                panel.plot(cell.ours.values, [y] * cell.ours.count, "o", color=colour, markersize=3.5, alpha=0.6)
                panel.plot([cell.ours.mean] * 2, [y - 0.24, y + 0.24], color=colour, linewidth=2)
                if table.medians:
                    panel.plot([cell.ours.median], [y - 0.3], "v", color=colour, markersize=4)
            if paper and cell.paper is not None:
                panel.errorbar(
                    *(cell.paper.value, position + 0.2),
                    xerr=cell.paper.spread or 0,
                    fmt="D",
                    color=MUTED.light,
                    markersize=4.5,
                    elinewidth=1,
                    capsize=0,
                    markerfacecolor="none",
                )
        panel.xaxis.set_major_locator(MaxNLocator(3 if across > 2 else 4))
        panel.xaxis.set_major_formatter(FuncFormatter(number))
        panel.margins(x=0.08, y=0.12)
    panels[0].set_yticks(range(len(rows)), [row.title for row in rows])
    panels[0].invert_yaxis()
    for panel in panels[len(columns) :]:
        panel.set_visible(False)
    figure.text(0.5, 0.05 / height, "\n".join(unit), color=MUTED.light, ha="center", va="bottom")
    return figure


# --- figure 1: error landscapes side by side, and the Hessian's condition number over alpha


def of_surfaces(result: Mapping[str, Any], name: str) -> list[Drawing]:
    """Return the drawings of a measured landscape: its surfaces, and the condition numbers over alpha."""
    titles = "; ".join(f"{surface['title']} ({ALPHA} = {surface['alpha']:g})" for surface in result["surfaces"])
    conditions = [result[part]["condition"]["measured"] for part, _, _ in _CONDITIONS]
    ends = [f"{significant(values[0])} to {significant(values[-1])}" for values in conditions]
    return [
        Drawing(
            f"{name}-landscapes",
            "Error landscapes; the line is the curve of minima",
            f"Contours of the loss over both weights: {titles}.",
            lambda: _draw_surfaces(result["surfaces"]),
        ),
        Drawing(
            f"{name}-conditioning",
            f"Condition number of the Hessian when one weight is multiplied by {ALPHA} and the other divided by it; "
            "lines: closed form, dots: automatic differentiation",
            f"As {ALPHA} grows from 1 to {result['alpha'][-1]:g}, the condition number goes from {ends[0]}; after "
            f"projection, from {ends[1]}.",
            lambda: _draw_conditioning(result),
        ),
    ]


def _draw_surfaces(surfaces: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the contours of each surface, at the same levels in all panels."""
    import numpy
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    panels = figure.subplots(1, len(surfaces), squeeze=False).ravel()
    largest = max(numpy.max(surface["loss"]) for surface in surfaces)
    levels = [0.0, *numpy.geomspace(largest / 600, largest, len(LEVELS))]
    colours = [tone.light for tone in LEVELS]
    for panel, surface in zip(panels, surfaces, strict=True):
        _frame(panel, "w₁", "")
        panel.set_title("\n".join(textwrap.wrap(surface["title"], 20)), loc="left", color=INK.light)
        panel.set_ylabel("w₂", color=MUTED.light, rotation=0, labelpad=8)
        panel.grid(visible=False)
        # Antialiasing leaves hairlines between neighbouring fills.
        panel.contourf(
            *(surface["w1"], surface["w2"], surface["loss"]), levels=levels, colors=colours, antialiased=False
        )
        if surface["minima"]:
            panel.plot(*zip(*surface["minima"], strict=True), color=PAPER.light, linewidth=1.6)
        panel.set_aspect("equal")
    return figure


def _draw_conditioning(result: Mapping[str, Any]) -> Figure:
    """Draw the condition numbers over alpha, before and after projection."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(WIDTH, 2.7))
    axes = figure.subplots(gridspec_kw=_margins(2.7, left=0.5))
    _frame(axes, ALPHA, "condition number")
    for part, label, stroke in _CONDITIONS:
        values, colour = result[part]["condition"], stroke.tone.light
        dashes, width = stroke.dashes, stroke.width
        axes.plot(result["alpha"], values["analytic"], color=colour, linestyle=dashes, linewidth=width, label=label)
        axes.plot(result["alpha"], values["measured"], color=colour, marker="o", markersize=4, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(number))
    axes.set_xticks([tick for tick in (1, 2, 3, 5, 10, 20, 50, 100) if tick <= result["alpha"][-1] * 1.001])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="upper left")
    return figure


# --- shared by all figures


def _margins(
    height: float,
    *,
    left: float,
    right: float = 0.15,
    top: float = 0.25,
    bottom: float = 0.45,
    width: float = WIDTH,
) -> dict[str, float]:
    """Convert margins from inches to fractions of the figure: a layout engine would double the drawing time."""
    return {"left": left / width, "right": 1 - right / width, "top": 1 - top / height, "bottom": bottom / height}


def _frame(axes: Axes, x_label: str, y_label: str) -> None:
    """Style the axes: an open frame, a light grid, and the y label written horizontally above them."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED.light)
    axes.tick_params(length=0, labelcolor=MUTED.light)
    axes.tick_params(axis="x", which="major", length=3, color=MUTED.light)
    axes.grid(axis="y", color=GRID.light, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(x_label, color=MUTED.light)
    axes.set_title(y_label, loc="left", color=MUTED.light)


def number(value: float, _: Any = None) -> str:
    """Return the label of a tick, such as 12,000, 0.25 or 10⁻⁵."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.10g}".replace("-", MINUS)
    exponent = math.floor(math.log10(abs(value)))
    power = f"10{str(exponent).translate(_SUPERSCRIPTS)}"
    factor = value / 10**exponent
    return power if math.isclose(factor, 1) else f"{factor:.3g}·{power}".replace("-", MINUS)


def _style(name: str) -> AbstractContextManager[None]:
    """Return a context with the settings of all figures; a figure is always written as the same bytes."""
    import matplotlib

    settings: dict[RcKeyType, Any] = {
        "font.family": "DejaVu Sans",  # ships with matplotlib, so it is the same everywhere
        "font.size": 8.5,
        "axes.titlesize": 8.5,
        "axes.labelsize": 8.5,
        "legend.fontsize": 8.5,
        "text.color": INK.light,
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "pdf.fonttype": 42,
        "path.simplify_threshold": 0.25,
    }
    return matplotlib.rc_context(settings)


def _on_white(svg: str) -> str:
    """Add a white background."""
    return re.sub(r"(<svg[^>]*>)", rf'\1<rect width="100%" height="100%" fill="{PAPER.light}"/>', svg, count=1)
