"""`pbwn bench`: what the projection costs on this machine.

A table for each part, and a figure of each path as a multiple of the memory's speed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pbwn_repro.commands import announce
from pbwn_repro.commands.names import completing, networks
from pbwn_repro.errors import UsageError, listed


def bench(
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help="Only this part: training, projection, riemannian, step-rules, optimizer, growth, memory; may be "
            "repeated.",
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this model; may be repeated.", autocompletion=completing(also=networks)
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", min=2, help="Images in a training step.")] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", min=1, help="Training steps of each method.")] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.01, help="How long each comparison runs.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where bench.json and bench.png go.")] = Path("bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Less than a minute: a first impression.")] = False,
) -> None:
    """Time the projection against a plain loop, memory bandwidth, other libraries and whole training steps.

    All of it takes about a quarter of an hour on two cores, --quick less than a minute. bench.json is written again
    after each measurement, so that a run that is stopped keeps what it has measured.
    """
    announce("Preparing the measurements ...")
    from pbwn_repro.bench.suite import PARTS, QUICK, Extent, is_measured, measure
    from pbwn_repro.bench.timing import machine

    for each in part or ():
        if each not in PARTS:
            raise UsageError(f"unknown part {each!r}: {listed(each, PARTS)}")
    extent = QUICK if quick else Extent()
    given: dict[str, Any] = {"batch_size": batch_size, "rounds": rounds, "seconds": seconds}
    if network:
        given["networks"] = tuple(dict.fromkeys(network))
    extent = replace(extent, **{name: value for name, value in given.items() if value is not None})
    parts = tuple(each for each in PARTS if not part or each in part)
    passed_over = {each: [name for name in extent.networks if not is_measured(each, name)] for each in parts}
    if all(passed_over[each] == list(extent.networks) for each in parts):
        raise UsageError(f"nothing to measure: {', '.join(parts)} cannot be timed with {', '.join(extent.networks)}")
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    console.print("What the projection costs on this machine")
    console.print(", ".join(f"{name} {value}" for name, value in machine().items() if value is not None))
    for each, names in passed_over.items():
        if names:
            console.print(f"left out of {each}: {', '.join(names)}")
    results: dict[str, Any] = {}
    # On the console that the tables are printed to, where that is a terminal: another would leave its spinner behind.
    watched = console if console.is_terminal else Console(stderr=True)
    with watched.status("measuring ...") as status:
        steps = measure(extent, parts, tell=lambda name: status.update(f"measuring {name} ..."))
        for name, ends in groupby(steps, key=itemgetter(0)):
            for _, results in ends:
                (out / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
            console.print()
            if name == "training":
                console.print(share_of_a_step(results[name], results["batch size"]))
            console.print(table(name, results[name]))
            if words := explained(name):
                console.print(words, style="dim")
    drawn = plot(results, out / "bench.png")
    written = f"{out / 'bench.json'} and {out / 'bench.png'}" if drawn else f"{out / 'bench.json'}"
    console.print(f"\nWritten: {written}", soft_wrap=True)


Times = dict[str, Any]
LIMIT = "limit: reading and writing each weight once at the memory's speed"
NAIVE = "naive: a plain loop over the weights in torch"
VIEWS_KEPT = "views kept: the same loop, with its views of the weights made once"


def table(part: str, found: dict[str, Any]) -> Table:
    """The table of a part's results."""
    if part == "growth":
        return _growth(found)
    if part == "step-rules":
        return _step_rules(found)
    title, columns, cells = _COLUMNS[part]
    table = _table(title, "network", *columns)
    for network, ones in found.items():
        for name, one in ones.items():
            table.add_row(network, name, *cells(name, one, ones))
    return table


def share_of_a_step(found: dict[str, dict[str, dict[str, Any]]], batch_size: int) -> str:
    """What a user asks first: how much of a training step the projection takes."""
    lines = []
    for network, methods in found.items():
        shares = {name: methods[name]["projection, % of a normal step"] for name in ("pbwn", "pbwn-riem")}
        lines.append(
            f"The projection takes {_percent(shares['pbwn'])} of a training step of {network} with a batch of "
            f"{batch_size}, {_percent(shares['pbwn-riem'])} with the Riemannian gradient.\n"
        )
    return "\n".join(lines)


def explained(part: str) -> str:
    """What the words of a part's table mean, in a line."""
    words = {
        "projection": f"{LIMIT}. {NAIVE}. {VIEWS_KEPT}. x limit: time over the limit's; "
        "speed-up: naive time over this.",
        "riemannian": f"{NAIVE}. speed-up: naive time over this.",
        "step-rules": "x plain: time over that of the projection per neuron. GPU ops: operations that a GPU would "
        "launch for a weight; bytes: moved for an element. Both are counted, not measured.",
        "growth": f"{LIMIT}. The other times are multiples of it.",
        "training": "step: median of whole training steps. projection: its own time in one. share: of a normal step.",
    }
    return words.get(part, "")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < 2 else "right")
    return table


def _projection(path: str, taken: Times, times: dict[str, Times]) -> tuple[str, ...]:
    return *_spread(taken), _ratio(taken, times["limit"]), _ratio(times["naive"], taken)


def _riemannian(path: str, taken: Times, times: dict[str, Times]) -> tuple[str, ...]:
    return *_spread(taken), _ratio(times["naive"], taken)


def _optimizer(method: str, taken: Times, times: dict[str, Times]) -> tuple[str, ...]:
    return *_spread(taken), _ratio(taken, times["normal"])


def _training(method: str, one: dict[str, Any], methods: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    step = *_spread(one["step"]), _ratio(one["step"], methods["normal"]["step"])
    if not method.startswith("pbwn"):
        return *step, "", ""
    return *step, _time(one["projection"]["median"]), _percent(one["projection, % of a normal step"])


def _memory(path: str, one: dict[str, int], paths: object) -> tuple[str, ...]:
    kept, neurons = one["bytes kept"], one["neurons"]
    share = 100 * kept / one["bytes of weights"]
    return f"{neurons:,}", f"{kept:,}", f"{kept / neurons:.1f}", f"{share:.3f}"


# By part: a title, the columns after that of the network, and the cells of a row from its name, its own results and
# those of all rows of its network.
_COLUMNS: dict[str, tuple[str, tuple[str, ...], Callable[[str, Any, Any], tuple[str, ...]]]] = {
    "projection": ("Projection", ("path", "median", "middle half", "x limit", "speed-up"), _projection),
    "riemannian": ("Riemannian gradient", ("path", "median", "middle half", "speed-up"), _riemannian),
    "optimizer": (
        "Optimizer step (SGD with momentum)",
        ("method", "median", "middle half", "x normal"),
        _optimizer,
    ),
    "training": (
        "Training step",
        ("method", "step", "middle half", "x normal", "projection", "share"),
        _training,
    ),
    "memory": (
        "Memory kept between calls",
        ("path", "neurons", "bytes", "bytes / neuron", "% of weights"),
        _memory,
    ),
}


def _step_rules(found: dict[str, dict[str, Any]]) -> Table:
    paths = list(next(iter(next(iter(found.values())).values()))["times"]) if found else []
    columns = [words for path in paths for words in (path, "x plain")]
    title = "Norms per neuron or matrix, step rules (copy included)"
    table = _table(title, "network", "rule", *columns, "GPU ops", "bytes")
    for network, rules in found.items():
        plain = next(iter(rules.values()))["times"]
        for rule, one in rules.items():
            times = [(one["times"][path], plain[path]) for path in paths]
            cells = [cell for own, base in times for cell in (_time(own["median"]), _ratio(own, base))]
            table.add_row(network, rule, *cells, f"{one['operations a weight']:.1f}", f"{one['bytes an element']:.1f}")
    return table


def _growth(found: dict[str, dict[str, Any]]) -> Table:
    table = _table("Growth: time of a projection", "weights", "layers", "limit", "naive", "torch", "numba")
    for one in found.values():
        times = one["times"]
        ratios = [_ratio(times[path], times["limit"]) if path in times else "" for path in ("naive", "torch", "numba")]
        table.add_row(f"{one['weights']:,}", f"{one['layers']:,}", _time(times["limit"]["median"]), *ratios)
    return table


def _ratio(one: Times, other: Times) -> str:
    return f"{one['median'] / other['median']:.2f}"


def _spread(taken: Times) -> tuple[str, str]:
    """The median, and the middle half where there is more than one sample."""
    if taken["runs"] < 2:
        return _time(taken["median"]), "one sample"
    low, high = (_time(taken[name]) for name in ("lower_quartile", "upper_quartile"))
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return _time(taken["median"]), f"{low} to {high}"


def _time(seconds: float) -> str:
    """A time with three digits that count.

    >>> _time(0.0386), _time(2.15e-05), _time(1.0)
    ('38.6 ms', '21.5 µs', '1.00 s')
    """
    unit, size = next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if seconds >= size), ("µs", 1e-6))
    value = seconds / size
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def _percent(share: float) -> str:
    """A share of a step.

    >>> _percent(0.5489), _percent(0.0027), _percent(12.34)
    ('0.55 %', '< 0.01 %', '12 %')
    """
    if share < 0.01:
        return "< 0.01 %"
    return f"{share:.0f} %" if share >= 10 else f"{share:.2f} %"


_COLOURS = {"naive": "#9a9a9a", "torch": "#d98c3f", "numba": "#2f6fb0"}


def plot(results: dict[str, Any], file: Path) -> bool:
    """Draw what was measured of the projection: per network, and as weights and layers grow.

    Returns whether there was anything to draw.
    """
    panels: list[Callable[[Any], None]] = []
    if results.get("projection"):
        panels.append(partial(_network_panel, found=results["projection"]))
    if results.get("growth"):
        growth = list(results["growth"].values())
        panels.append(partial(_growth_panel, found=_varying(growth, "layers"), quantity="weights"))
        panels.append(partial(_growth_panel, found=_varying(growth, "weights"), quantity="layers"))
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


def _network_panel(axes: Any, found: dict[str, dict[str, Any]]) -> None:
    for shift, path in zip((-0.25, 0.0, 0.25), _COLOURS, strict=True):
        ratios = [times[path]["median"] / times["limit"]["median"] for times in found.values() if path in times]
        if ratios:
            axes.bar([place + shift for place in range(len(ratios))], ratios, 0.25, label=path, color=_COLOURS[path])
    axes.set_xticks(range(len(found)), list(found), rotation=20, fontsize=8)
    axes.set_title("projection, by network", fontsize=10)
    axes.legend(fontsize=8, frameon=False)


def _growth_panel(axes: Any, found: list[dict[str, Any]], quantity: str) -> None:
    found = sorted(found, key=lambda one: one[quantity])
    for path, colour in _COLOURS.items():
        points = [(one[quantity], one["times"]) for one in found if path in one["times"]]
        ratios = [times[path]["median"] / times["limit"]["median"] for _, times in points]
        axes.plot([count for count, _ in points], ratios, marker="o", color=colour, label=path)
    axes.set_xscale("log")
    axes.set_xlabel(quantity)
    axes.set_title(f"projection as {quantity} grow", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
