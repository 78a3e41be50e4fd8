"""The results of each part as a table on the screen."""

from __future__ import annotations

from typing import Any

from rich.table import Table

Times = dict[str, Any]


def table(part: str, found: dict[str, Any]) -> Table:
    """The table of a part's results."""
    makers = {
        "projection": _projection,
        "riemannian": _riemannian,
        "optimizer": _optimizer,
        "training": _training,
        "growth": _growth,
        "memory": _memory,
    }
    return makers[part](found)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < 2 else "right")
    return table


def _projection(found: dict[str, dict[str, Times]]) -> Table:
    table = _table("Projection", "network", "path", "median", "middle half", "/ limit", "naive /")
    for network, times in found.items():
        limit, naive = times["limit"]["median"], times["naive"]["median"]
        for path, taken in times.items():
            median = taken["median"]
            table.add_row(network, path, *_spread(taken), f"{median / limit:.2f}", f"{naive / median:.2f}")
    return table


def _riemannian(found: dict[str, dict[str, Times]]) -> Table:
    table = _table("Riemannian gradient", "network", "path", "median", "middle half", "naive /")
    for network, times in found.items():
        for path, taken in times.items():
            ratio = times["naive"]["median"] / taken["median"]
            table.add_row(network, path, *_spread(taken), f"{ratio:.2f}")
    return table


def _optimizer(found: dict[str, dict[str, Times]]) -> Table:
    table = _table("Optimizer step (SGD with momentum)", "network", "method", "median", "middle half", "/ normal")
    for network, times in found.items():
        for name, taken in times.items():
            ratio = taken["median"] / times["normal"]["median"]
            table.add_row(network, name, *_spread(taken), f"{ratio:.2f}")
    return table


def _training(found: dict[str, dict[str, dict[str, Any]]]) -> Table:
    columns = ("network", "method", "step", "middle half", "% of normal", "projection", "% of normal step")
    table = _table("Training step", *columns)
    for network, methods in found.items():
        normal = methods["normal"]["step"]["median"]
        for name, one in methods.items():
            own = one["projection, % of a normal step"]
            projects = name.startswith("pbwn")
            table.add_row(
                network,
                name,
                *_spread(one["step"]),
                f"{100 * one['step']['median'] / normal:.1f}",
                _time(one["projection"]["median"]) if projects else "",
                f"{own:.4f}" if projects else "",
            )
    return table


def _growth(found: dict[str, dict[str, Any]]) -> Table:
    table = _table("Growth", "weights", "layers", "limit", "naive / limit", "torch / limit", "numba / limit")
    for one in found.values():
        limit = one["times"]["limit"]["median"]
        ratios = [
            f"{one['times'][path]['median'] / limit:.2f}" if path in one["times"] else ""
            for path in ("naive", "torch", "numba")
        ]
        table.add_row(f"{one['weights']:,}", f"{one['layers']:,}", _time(limit), *ratios)
    return table


def _memory(found: dict[str, dict[str, dict[str, int]]]) -> Table:
    table = _table("Memory kept between calls", "network", "path", "neurons", "bytes", "bytes / neuron", "% of weights")
    for network, paths in found.items():
        for path, one in paths.items():
            kept, neurons = one["bytes kept"], one["neurons"]
            share = 100 * kept / one["bytes of weights"]
            table.add_row(network, path, f"{neurons:,}", f"{kept:,}", f"{kept / neurons:.1f}", f"{share:.3f}")
    return table


def _spread(taken: Times) -> tuple[str, str]:
    return _time(taken["median"]), f"{_time(taken['lower_quartile'])} - {_time(taken['upper_quartile'])}"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
