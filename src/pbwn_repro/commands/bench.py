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
from pbwn_repro.errors import UsageError


def bench(
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this part: projection, riemannian, step-rules, optimizer, training, growth, memory; may be "
            "repeated."
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help="Only this network; may be repeated.", autocompletion=completing(also=networks)),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="Pictures in a training step.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Training steps of each method.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.01, help="How long each comparison runs.")] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where bench.json and bench.png go.")] = Path("bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Seconds instead of many minutes, for a first look.")] = False,
) -> None:
    """Time the projection beside the plain loop, the memory's speed, other libraries and whole training steps.

    bench.json is written anew after each measurement: what was measured when a run is stopped is in it.
    """
    from pbwn_repro.bench.show import plot, table
    from pbwn_repro.bench.suite import PARTS, QUICK, Extent, is_measured, measure
    from pbwn_repro.bench.timing import machine

    unknown = set(part or ()) - set(PARTS)
    if unknown:
        raise UsageError(f"unknown part {', '.join(sorted(unknown))}: there is {', '.join(PARTS)}")
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
    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in machine().items() if value is not None))
    for each, names in passed_over.items():
        if names:
            console.print(f"left out of {each}: {', '.join(names)}")
    results: dict[str, Any] = {}
    with Console(stderr=True).status("measuring ...") as status:
        steps = measure(extent, parts, tell=lambda name: status.update(f"measuring {name} ..."))
        for name, ends in groupby(steps, key=itemgetter(0)):
            for _, results in ends:
                (out / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
            console.print()
            console.print(table(name, results[name]))
    drawn = plot(results, out / "bench.png")
    written = f"{out / 'bench.json'} and {out / 'bench.png'}" if drawn else f"{out / 'bench.json'}"
    console.print(f"\n{written} written", soft_wrap=True)
