"""Colours and line styles: each method has its own in all figures, distinguishable without colour vision."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Dashes = tuple[float, tuple[float, ...]]
SOLID: Dashes = (0, ())


@dataclass(frozen=True)
class Tone:
    """A colour on light pages and its counterpart on dark ones; `name` is that of its CSS variable."""

    name: str
    light: str
    dark: str


@dataclass(frozen=True)
class Stroke:
    """How a curve is drawn."""

    tone: Tone
    dashes: Dashes = SOLID
    width: float = 1.6


INK = Tone("ink", "#1a1d21", "#e9ecf0")
MUTED = Tone("muted", "#5b6470", "#a3adba")
GRID = Tone("grid", "#e3e6ea", "#333a43")
PAPER = Tone("surface", "#fffefd", "#171b20")

METHODS: Mapping[str, Stroke] = {
    "normal": Stroke(Tone("normal", "#6b7178", "#a7b0ba"), (0, (5, 1.6))),
    "wn": Stroke(Tone("wn", "#c65102", "#f79a55"), (0, (7, 1.6, 1.4, 1.6))),
    "pbwn-riem": Stroke(Tone("pbwn-riem", "#a02c8d", "#e68fd6"), (0, (3, 1.2))),
    "pbwn": Stroke(Tone("pbwn", "#1565c0", "#6fb3ff"), SOLID, 2.0),
    "pbwn-epoch": Stroke(Tone("pbwn-epoch", "#0a8562", "#3ecf9f"), (0, (1.2, 1.0)), 2.0),
    "pbwn-riem-nxn": Stroke(Tone("pbwn-riem-nxn", "#6d3fa8", "#bb98ee"), (0, (3, 1.2, 1.2, 1.2))),
    "pbwn-tangent": Stroke(Tone("pbwn-tangent", "#b0257a", "#f08bc4"), (0, (6, 1.4))),
    "pbwn-angle": Stroke(Tone("pbwn-angle", "#b4530a", "#f0a04b"), (0, (2, 1.2)), 2.0),
    "pbwn-angle-matrix": Stroke(Tone("pbwn-angle-matrix", "#9a4408", "#eb9a4a"), (0, (8, 1.2)), 2.0),
    "unit-start": Stroke(Tone("unit-start", "#7a5230", "#d3a67d"), (0, (5, 1.6, 1.2, 1.6))),
    "normal-lr-0.2": Stroke(Tone("normal-twice", "#41464d", "#cdd4db"), (0, (2.4, 1.6))),
    "max-norm": Stroke(Tone("max-norm", "#8a6d00", "#d9bc4a"), (0, (9, 2))),
}
# By the longest interval between projections that has this stroke.
INTERVALS: Mapping[int, Stroke] = {
    5: Stroke(Tone("interval-5", "#4a55b8", "#93a0ff"), (0, (7, 1.4))),
    10: Stroke(Tone("interval-10", "#7b3fae", "#c298f5"), (0, (5, 1.4))),
    20: Stroke(Tone("interval-20", "#b32d78", "#f08cc0"), (0, (3, 1.2))),
    50: Stroke(Tone("interval-50", "#c9422b", "#ff9479"), (0, (5, 1.4, 1.2, 1.4))),
    100: Stroke(Tone("interval-100", "#916400", "#e6b84d"), (0, (1.2, 1.0)), 2.0),
}
# Dashes and width, in order, for a method with several lines in one plot, such as one for each network width.
LINES: Sequence[tuple[Dashes, float]] = (((0, (1.2, 1.0)), 1.4), ((0, (5, 1.4)), 1.6), (SOLID, 2.2))
# In order, for rows that have no stroke of their own.
OTHERS: Sequence[Stroke] = (
    Stroke(Tone("other-1", "#1b6fa8", "#76b7ea")),
    Stroke(Tone("other-2", "#d1571b", "#fba067"), (0, (5, 1.6))),
    Stroke(Tone("other-3", "#11806a", "#4cc9ac"), (0, (3, 1.2))),
    Stroke(Tone("other-4", "#9a3a94", "#dd93d8"), (0, (7, 1.6, 1.4, 1.6))),
    Stroke(Tone("other-5", "#806600", "#d0b445"), (0, (1.2, 1.0))),
)
# The levels of a landscape, low to high.
LEVELS: Sequence[Tone] = tuple(
    Tone(f"level-{position}", light, dark)
    for position, (light, dark) in enumerate(
        zip(
            ("#0d3b70", "#17579b", "#2f76bd", "#5896d0", "#82b3de", "#a9cce9", "#cbe0f1", "#e6f0f8"),
            ("#cfe6ff", "#9ccbff", "#6dadf0", "#4a8dd2", "#346fae", "#275689", "#1e4166", "#193149"),
            strict=True,
        )
    )
)


def strokes(methods: Sequence[str]) -> dict[str, Stroke]:
    """Return a stroke for each method: its own, that of its interval, or the next of `OTHERS`."""
    others = [name for name in methods if own_stroke(name) is None]
    return {name: own_stroke(name) or OTHERS[others.index(name) % len(OTHERS)] for name in methods}


def own_stroke(name: str) -> Stroke | None:
    """Return the stroke of a method, or of PBWN at an interval; None for other names.

    A suffix such as in `normal/2` asks for the method's third line in a plot.
    """
    base, _, line = name.partition("/")
    if line and base in METHODS:
        dashes, width = LINES[min(int(line), len(LINES) - 1)]
        return Stroke(METHODS[base].tone, dashes, width)
    interval = re.fullmatch(r"pbwn-t(\d+)", name)
    if interval:
        return INTERVALS[next((longest for longest in INTERVALS if longest >= int(interval[1])), max(INTERVALS))]
    return METHODS.get(name)


def tones() -> list[Tone]:
    """Return every tone once, for the page's style sheet."""
    drawn = [*METHODS.values(), *INTERVALS.values(), *OTHERS]
    every = [INK, MUTED, GRID, PAPER, *(stroke.tone for stroke in drawn), *LEVELS]
    return list({tone.name: tone for tone in every}.values())
