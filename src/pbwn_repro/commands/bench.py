"""`pbwn bench`: what the projection costs on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pbwn_repro.commands.names import completing, networks
from pbwn_repro.errors import UsageError, listed


def bench(
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this part: training, projection, riemannian, step-rules, optimizer, growth, memory; may be "
            "repeated."
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help="Only this network; may be repeated.", autocompletion=completing(also=networks)),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="Images in a training step.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Training steps of each method.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.01, help="How long each comparison runs.")] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where bench.json and bench.png go.")] = Path("bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes: a first impression.")] = False,
) -> None:
    """Time the projection beside the plain loop, the memory's speed, other libraries and whole training steps.

    bench.json is written again after each measurement, so that a run that is stopped keeps what it has measured.
    """
    console = Console(highlight=False)
    console.print("What the projection costs on this machine")
    from pbwn_repro.bench.show import explained, plot, share_of_a_step, table
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
