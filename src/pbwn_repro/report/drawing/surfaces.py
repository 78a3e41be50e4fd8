"""Figure 1 drawn: error landscapes side by side, and the Hessian's condition number over alpha."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pbwn_repro.report.drawing.figure import Drawing, frame, number
from pbwn_repro.report.drawing.palette import INK, LEVELS, METHODS, MUTED, PAPER, Stroke

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ALPHA = "\N{GREEK SMALL LETTER ALPHA}"
_LINES = (
    ("general", f"at ({_ALPHA} w₁, w₂ / {_ALPHA})", METHODS["Normal"]),
    ("projected", "after projection", METHODS["PBWN"]),
)
_TICKS = (1, 2, 3, 5, 10, 20, 50, 100)


def of_surfaces(found: Mapping[str, Any], name: str) -> list[Drawing]:
    """The drawings of a measured landscape."""
    titles = "; ".join(f"{surface['title']} (alpha = {surface['alpha']:g})" for surface in found["surfaces"])
    shown = [found[part]["condition"]["measured"] for part, _, _ in _LINES]
    ends = [f"{values[0]:.3g} to {values[-1]:.3g}" for values in shown]
    return [
        Drawing(
            f"{name}-landscapes",
            "Error landscapes: the stronger a colour stands out, the lower the error; the line is the curve of minima",
            f"Contours of the loss over both weights: {titles}.",
            lambda narrow: draw_surfaces(found["surfaces"], narrow=narrow),
        ),
        Drawing(
            f"{name}-conditioning",
            "Condition number of the Hessian as one weight grows by alpha and the other shrinks by it; lines: closed "
            "form, dots: measured by automatic differentiation",
            f"As alpha grows from 1 to {found['alpha'][-1]:g} the condition number goes from {ends[0]}; after "
            f"projection from {ends[1]}.",
            lambda narrow: draw_conditioning(found, narrow=narrow),
        ),
    ]


def draw_surfaces(surfaces: Sequence[Mapping[str, Any]], *, narrow: bool) -> Figure:
    """Draw the contours of each surface; all panels share their levels."""
    import numpy
    from matplotlib.figure import Figure

    across, down = (1, len(surfaces)) if narrow else (len(surfaces), 1)
    figure = Figure(figsize=(3.4, 3.1 * down) if narrow else (7.4, 2.7), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    largest = max(numpy.max(surface["loss"]) for surface in surfaces)
    levels = [0.0, *numpy.geomspace(largest / 600, largest, len(LEVELS))]
    colours = [tone.light for tone in LEVELS]
    for panel, surface in zip(panels, surfaces, strict=True):
        frame(panel, "w₁", "")
        title = surface["title"] if narrow else "\n".join(textwrap.wrap(surface["title"], 24))
        panel.set_title(title, loc="left", color=INK.light)
        panel.set_ylabel("w₂", color=MUTED.light, rotation=0, labelpad=10)
        panel.grid(visible=False)
        # Antialiasing leaves hairlines between neighbouring fills.
        panel.contourf(
            *(surface["w1"], surface["w2"], surface["loss"]), levels=levels, colors=colours, antialiased=False
        )
        if surface["minima"]:
            panel.plot(*zip(*surface["minima"], strict=True), color=PAPER.light, linewidth=1.6)
        panel.set_aspect("equal")
    return figure


def draw_conditioning(found: Mapping[str, Any], *, narrow: bool) -> Figure:
    """Draw the condition numbers before and after projection."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(3.4, 3.0) if narrow else (7.4, 3.3), layout="constrained")
    axes = figure.subplots()
    frame(axes, _ALPHA, "condition number")
    for part, label, stroke in _LINES:
        _line(axes, found["alpha"], found[part]["condition"], label, stroke)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(number))
    axes.set_xticks([tick for tick in _TICKS if tick <= found["alpha"][-1] * 1.001])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="upper left")
    return figure


def _line(axes: Axes, alpha: Sequence[float], values: Mapping[str, Any], label: str, stroke: Stroke) -> None:
    colour = stroke.tone.light
    axes.plot(alpha, values["analytic"], color=colour, linestyle=stroke.dashes, linewidth=stroke.width, label=label)
    axes.plot(alpha, values["measured"], color=colour, marker="o", markersize=4, linewidth=0)
