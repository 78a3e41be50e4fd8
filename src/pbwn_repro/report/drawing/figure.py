"""A figure of the report: drawn wide and narrow for the page, and into SVG and PDF files."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbwn_repro.report.drawing.palette import GRID, INK, MUTED

if TYPE_CHECKING:  # matplotlib takes a second to import, and a report without figures does not need it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

MINUS = "\N{MINUS SIGN}"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Drawing:
    """One figure: `draw(narrow)` makes it for a desk or for a phone.

    Args:
        name: the name of its files, unique in a report.
        title: what it shows, in a few words.
        description: what there is to see, for those who cannot.
    """

    name: str
    title: str
    description: str
    draw: Callable[[bool], Figure]

    def svg(self, *, narrow: bool = False) -> str:
        """The figure as SVG without a background, its text as text."""
        return _saved(self, "svg", narrow=narrow, transparent=True).decode()

    def write(self, folder: Path) -> list[Path]:
        """Write the figure as SVG and PDF, on white."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{self.name}.{kind}" for kind in ("svg", "pdf")]
        for file in files:
            file.write_bytes(_saved(self, file.suffix[1:], narrow=False, transparent=False))
        return files


def frame(axes: Axes, x_label: str, y_label: str) -> None:
    """An open frame with a quiet grid; the vertical axis is named above it, to be read without turning the head."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED.light)
    axes.tick_params(length=0, labelcolor=MUTED.light)
    axes.tick_params(axis="x", which="major", length=3, color=MUTED.light)
    axes.grid(axis="y", color=GRID.light, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(x_label, color=MUTED.light)
    axes.set_title(y_label, loc="left", color=MUTED.light)


def number(value: float, _: Any = None) -> str:
    """A tick's label: 12,000, 0.25, 10⁻⁵."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.10g}".replace("-", MINUS)
    exponent = math.floor(math.log10(abs(value)))
    power = f"10{str(exponent).translate(_SUPERSCRIPTS)}"
    factor = value / 10**exponent
    return power if math.isclose(factor, 1) else f"{factor:.3g}·{power}".replace("-", MINUS)


def style(name: str) -> AbstractContextManager[None]:
    """The settings that figures are drawn with; the same figure gives the same bytes."""
    import matplotlib

    settings: dict[RcKeyType, Any] = {
        "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.labelsize": 9,
        "legend.fontsize": 9,
        "text.color": INK.light,
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "pdf.fonttype": 42,
        "path.simplify_threshold": 0.25,
    }
    return matplotlib.rc_context(settings)


def _saved(drawing: Drawing, kind: str, *, narrow: bool, transparent: bool) -> bytes:
    with style(drawing.name), io.BytesIO() as file:
        dates = {"Date": None} if kind == "svg" else {"CreationDate": None, "ModDate": None}
        drawing.draw(narrow).savefig(file, format=kind, transparent=transparent, metadata=dates)
        return file.getvalue()
