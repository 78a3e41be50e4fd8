"""The results as one picture: each path as a multiple of the memory's own speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

_COLOURS = {"naive": "#9a9a9a", "torch": "#d98c3f", "numba": "#2f6fb0"}


def plot(results: dict[str, Any], file: Path) -> bool:
    """Draw what was measured of the projection: per network, and as weights and layers grow.

    Returns whether there was anything to draw.
    """
    panels: list[Callable[[Any], None]] = []
    if results.get("projection"):
        panels.append(partial(_per_network, found=results["projection"]))
    if results.get("growth"):
        growth = list(results["growth"].values())
        panels.append(partial(_growth, found=_varying(growth, "layers"), quantity="weights"))
        panels.append(partial(_growth, found=_varying(growth, "weights"), quantity="layers"))
    if not panels:
        return False
    from matplotlib.figure import Figure  # takes a second to import, and only this needs it
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = Figure(figsize=(1 + 4 * len(panels), 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for each, draw in zip(axes, panels, strict=True):
        draw(each)
        each.axhline(1, color="black", linewidth=0.8)
        each.set_yscale("log")
        each.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        each.yaxis.set_minor_locator(NullLocator())
        each.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("time / limit")
    figure.savefig(file, dpi=150)
    return True


def _varying(growth: list[dict[str, Any]], kept: str) -> list[dict[str, Any]]:
    """The measurements that have the most frequent value of the quantity that is kept."""
    counts = Counter(one[kept] for one in growth)
    return [one for one in growth if one[kept] == counts.most_common(1)[0][0]]


def _per_network(axes: Any, found: dict[str, dict[str, Any]]) -> None:
    for shift, path in zip((-0.25, 0.0, 0.25), _COLOURS, strict=True):
        ratios = [times[path]["median"] / times["limit"]["median"] for times in found.values() if path in times]
        if ratios:
            axes.bar([place + shift for place in range(len(ratios))], ratios, 0.25, label=path, color=_COLOURS[path])
    axes.set_xticks(range(len(found)), list(found), rotation=20, fontsize=8)
    axes.set_title("projection, by network", fontsize=10)
    axes.legend(fontsize=8, frameon=False)


def _growth(axes: Any, found: list[dict[str, Any]], quantity: str) -> None:
    found = sorted(found, key=lambda one: one[quantity])
    for path, colour in _COLOURS.items():
        points = [(one[quantity], one["times"]) for one in found if path in one["times"]]
        ratios = [times[path]["median"] / times["limit"]["median"] for _, times in points]
        axes.plot([count for count, _ in points], ratios, marker="o", color=colour, label=path)
    axes.set_xscale("log")
    axes.set_xlabel(quantity)
    axes.set_title(f"projection as {quantity} grow", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
