"""`pbwn bench`: what the projection costs on this machine.

It prints a table for each part and draws the time of each path as a multiple of the memory-bandwidth limit.
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
from pbwn_repro.errors import UsageError, suggest


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
    batch_size: Annotated[int | None, typer.Option(metavar="N", min=2, help="Batch size of a training step.")] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", min=1, help="Training steps per method.")] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.01, help="Duration of each comparison.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for bench.json and bench.png.")] = Path("bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, in under a minute.")] = False,
) -> None:
    """Time the projection against a plain loop, memory bandwidth, other libraries and whole training steps.

    All parts together take about a quarter of an hour on two cores, or less than a minute with --quick. bench.json is
    rewritten after each measurement, so that an interrupted run keeps its results so far.
    """
    announce("Preparing the measurements ...")
    from pbwn_repro.bench.suite import PARTS, QUICK, Extent, is_measured, measure
    from pbwn_repro.bench.timing import machine

    for each in part or ():
        if each not in PARTS:
            raise UsageError(f"unknown part {each!r}: {suggest(each, PARTS)}")
    extent = QUICK if quick else Extent()
    options: dict[str, Any] = {"batch_size": batch_size, "rounds": rounds, "seconds": seconds}
    if network:
        options["networks"] = tuple(dict.fromkeys(network))
    extent = replace(extent, **{name: value for name, value in options.items() if value is not None})
    parts = tuple(each for each in PARTS if not part or each in part)
    skipped = {each: [name for name in extent.networks if not is_measured(each, name)] for each in parts}
    if all(skipped[each] == list(extent.networks) for each in parts):
        raise UsageError(f"nothing to measure: {', '.join(parts)} cannot be timed with {', '.join(extent.networks)}")
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    console.print("What the projection costs on this machine")
    console.print(", ".join(f"{name} {value}" for name, value in machine().items() if value is not None))
    for each, names in skipped.items():
        if names:
            console.print(f"left out of {each}: {', '.join(names)}")
    results: dict[str, Any] = {}
    # On a terminal, the spinner shares the tables' console: on another console, tables would leave pieces of it behind.
    status_console = console if console.is_terminal else Console(stderr=True)
    with status_console.status("measuring ...") as status:
        steps = measure(extent, parts, progress=lambda label: status.update(f"measuring {label} ..."))
        for name, updates in groupby(steps, key=itemgetter(0)):
            for _, results in updates:
                (out / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
            console.print()
            if name == "training":
                console.print(share_of_a_step(results[name], results["batch size"]))
            console.print(table(name, results[name]))
            if text := _legend(name):
                console.print(text, style="dim")
    drawn = plot(results, out / "bench.png")
    written = f"{out / 'bench.json'} and {out / 'bench.png'}" if drawn else f"{out / 'bench.json'}"
    console.print(f"\nWritten: {written}", soft_wrap=True)


Times = dict[str, Any]
LIMIT = "limit: reading and writing each weight once, at memory bandwidth"
NAIVE = "naive: a plain loop over the weights in torch"
VIEWS_KEPT = "views kept: the same loop with views of the weights that are made only once"


def table(part: str, results: dict[str, Any]) -> Table:
    """Return the table of a part's results."""
    if part == "growth":
        return _growth(results)
    if part == "step-rules":
        return _step_rules(results)
    title, columns, cells = _COLUMNS[part]
    table = _table(title, "network", *columns)
    for network, rows in results.items():
        for name, row in rows.items():
            table.add_row(network, name, *cells(name, row, rows))
    return table


def share_of_a_step(results: dict[str, dict[str, dict[str, Any]]], batch_size: int) -> str:
    """Return a sentence per network on what share of a training step the projection takes."""
    lines = []
    for network, methods in results.items():
        shares = {name: methods[name]["projection, % of a normal step"] for name in ("pbwn", "pbwn-riem")}
        lines.append(
            f"The projection takes {_percent(shares['pbwn'])} of a training step of {network} with a batch of "
            f"{batch_size}, {_percent(shares['pbwn-riem'])} with the Riemannian gradient.\n"
        )
    return "\n".join(lines)


def _legend(part: str) -> str:
    """Return a line that explains the terms of a part's table, or an empty string."""
    legends = {
        "projection": f"{LIMIT}. {NAIVE}. {VIEWS_KEPT}. x limit: time relative to the limit; "
        "speed-up: naive time over this time.",
        "riemannian": f"{NAIVE}. speed-up: naive time over this time.",
        "step-rules": "x plain: time relative to the projection per neuron. GPU ops: operations that a GPU would "
        "launch per weight; bytes: bytes moved per element. Both are counted, not measured.",
        "growth": f"{LIMIT}. The other times are multiples of it.",
        "training": "step: median of whole training steps. projection: its time within a step. share: of a normal "
        "step.",
    }
    return legends.get(part, "")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < 2 else "right")
    return table


def _projection(path: str, times: Times, all_times: dict[str, Times]) -> tuple[str, ...]:
    return *_spread(times), _ratio(times, all_times["limit"]), _ratio(all_times["naive"], times)


def _riemannian(path: str, times: Times, all_times: dict[str, Times]) -> tuple[str, ...]:
    return *_spread(times), _ratio(all_times["naive"], times)


def _optimizer(method: str, times: Times, all_times: dict[str, Times]) -> tuple[str, ...]:
    return *_spread(times), _ratio(times, all_times["normal"])


def _training(method: str, result: dict[str, Any], methods: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    step = *_spread(result["step"]), _ratio(result["step"], methods["normal"]["step"])
    if not method.startswith("pbwn"):
        return *step, "", ""
    return *step, _time(result["projection"]["median"]), _percent(result["projection, % of a normal step"])


def _memory(path: str, result: dict[str, int], paths: object) -> tuple[str, ...]:
    kept, neurons = result["bytes kept"], result["neurons"]
    share = 100 * kept / result["bytes of weights"]
    return f"{neurons:,}", f"{kept:,}", f"{kept / neurons:.1f}", f"{share:.3f}"


# By part: a title, the columns after the network's, and a function that returns the cells of a row from its name, its
# results and the results of all rows of its network.
_COLUMNS: dict[str, tuple[str, tuple[str, ...], Callable[[str, Any, Any], tuple[str, ...]]]] = {
    "projection": ("Projection", ("path", "median", "quartiles", "x limit", "speed-up"), _projection),
    "riemannian": ("Riemannian gradient", ("path", "median", "quartiles", "speed-up"), _riemannian),
    "optimizer": (
        "Optimizer step (SGD with momentum)",
        ("method", "median", "quartiles", "x normal"),
        _optimizer,
    ),
    "training": (
        "Training step",
        ("method", "step", "quartiles", "x normal", "projection", "share"),
        _training,
    ),
    "memory": (
        "Memory kept between calls",
        ("path", "neurons", "bytes", "bytes / neuron", "% of weights"),
        _memory,
    ),
}


def _step_rules(results: dict[str, dict[str, Any]]) -> Table:
    paths = list(next(iter(next(iter(results.values())).values()))["times"]) if results else []
    columns = [column for path in paths for column in (path, "x plain")]
    title = "Norms per neuron or matrix, step rules (copy included)"
    table = _table(title, "network", "rule", *columns, "GPU ops", "bytes")
    for network, rules in results.items():
        plain = next(iter(rules.values()))["times"]
        for rule, result in rules.items():
            times = [(result["times"][path], plain[path]) for path in paths]
            cells = [cell for own, base in times for cell in (_time(own["median"]), _ratio(own, base))]
            counts = (result["operations a weight"], result["bytes an element"])
            table.add_row(network, rule, *cells, *(f"{count:.1f}" for count in counts))
    return table


def _growth(results: dict[str, dict[str, Any]]) -> Table:
    table = _table("Growth: time of a projection", "weights", "layers", "limit", "naive", "torch", "numba")
    for result in results.values():
        times = result["times"]
        ratios = [_ratio(times[path], times["limit"]) if path in times else "" for path in ("naive", "torch", "numba")]
        table.add_row(f"{result['weights']:,}", f"{result['layers']:,}", _time(times["limit"]["median"]), *ratios)
    return table


def _ratio(times: Times, reference: Times) -> str:
    return f"{times['median'] / reference['median']:.2f}"


def _spread(times: Times) -> tuple[str, str]:
    """Format the median, and the interquartile range if there is more than one sample."""
    if times["runs"] < 2:
        return _time(times["median"]), "one sample"
    low, high = (_time(times[name]) for name in ("lower_quartile", "upper_quartile"))
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return _time(times["median"]), f"{low} to {high}"


def _time(seconds: float) -> str:
    """Format a time with three significant digits.

    >>> _time(0.0386), _time(2.15e-05), _time(1.0)
    ('38.6 ms', '21.5 µs', '1.00 s')
    """
    unit, size = next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if seconds >= size), ("µs", 1e-6))
    value = seconds / size
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def _percent(share: float) -> str:
    """Format a percentage.

    >>> _percent(0.5489), _percent(0.0027), _percent(12.34)
    ('0.55 %', '< 0.01 %', '12 %')
    """
    if share < 0.01:
        return "< 0.01 %"
    return f"{share:.0f} %" if share >= 10 else f"{share:.2f} %"


_COLOURS = {"naive": "#9a9a9a", "torch": "#d98c3f", "numba": "#2f6fb0"}


def plot(results: dict[str, Any], file: Path) -> bool:
    """Plot the time of the projection, by network and as weights and layers grow; return whether there was any."""
    panels: list[Callable[[Any], None]] = []
    if results.get("projection"):
        panels.append(partial(_network_panel, results=results["projection"]))
    if results.get("growth"):
        growth = list(results["growth"].values())
        panels.append(partial(_growth_panel, results=_with_fixed(growth, "layers"), quantity="weights"))
        panels.append(partial(_growth_panel, results=_with_fixed(growth, "weights"), quantity="layers"))
    if not panels:
        return False
    from matplotlib.figure import Figure  # takes a second to import, and only this function needs it
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = Figure(figsize=(1 + 4 * len(panels), 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, draw in zip(axes, panels, strict=True):
        draw(ax)
        ax.axhline(1, color="black", linewidth=0.8)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("time / limit")
    figure.savefig(file, dpi=150)
    return True


def _with_fixed(growth: list[dict[str, Any]], quantity: str) -> list[dict[str, Any]]:
    """Return the measurements with the most frequent value of a quantity."""
    [(most_frequent, _)] = Counter(result[quantity] for result in growth).most_common(1)
    return [result for result in growth if result[quantity] == most_frequent]


def _network_panel(ax: Any, results: dict[str, dict[str, Any]]) -> None:
    for shift, path in zip((-0.25, 0.0, 0.25), _COLOURS, strict=True):
        ratios = [times[path]["median"] / times["limit"]["median"] for times in results.values() if path in times]
        if ratios:
            ax.bar([index + shift for index in range(len(ratios))], ratios, 0.25, label=path, color=_COLOURS[path])
    ax.set_xticks(range(len(results)), list(results), rotation=20, fontsize=8)
    ax.set_title("projection, by network", fontsize=10)
    ax.legend(fontsize=8, frameon=False)


def _growth_panel(ax: Any, results: list[dict[str, Any]], quantity: str) -> None:
    results = sorted(results, key=lambda result: result[quantity])
    for path, colour in _COLOURS.items():
        points = [(result[quantity], result["times"]) for result in results if path in result["times"]]
        ratios = [times[path]["median"] / times["limit"]["median"] for _, times in points]
        ax.plot([count for count, _ in points], ratios, marker="o", color=colour, label=path)
    ax.set_xscale("log")
    ax.set_xlabel(quantity)
    ax.set_title(f"projection as {quantity} grow", fontsize=10)
    ax.legend(fontsize=8, frameon=False)
