"""`pbwn bench`: what the projection costs on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pbwn_repro.commands.names import NETWORKS, completing


def bench(
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this part: projection, riemannian, optimizer, training, growth, memory; may be repeated."
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help="Only this network; may be repeated.", autocompletion=completing(*NETWORKS)),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="Pictures in a training step.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Training steps of each method.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.01, help="How long each comparison runs.")] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where bench.json and bench.png go.")] = Path("bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Seconds instead of many minutes, for a first look.")] = False,
) -> None:
    """Time the projection beside the plain loop, the memory's speed, other libraries and whole training steps."""
    from pbwn_repro.bench.plot import plot
    from pbwn_repro.bench.suite import PARTS, QUICK, Extent, measure
    from pbwn_repro.bench.tables import tables

    unknown = set(part or ()) - set(PARTS)
    if unknown:
        raise ValueError(f"unknown part {', '.join(sorted(unknown))}: there is {', '.join(PARTS)}")
    extent = QUICK if quick else Extent()
    given = {"batch_size": batch_size, "rounds": rounds, "seconds": seconds}
    if network:
        given |= {"networks": tuple(network), "stepped": tuple(network)}
    extent = replace(extent, **{name: value for name, value in given.items() if value is not None})
    waiting = Console(stderr=True)
    parts = tuple(each for each in PARTS if not part or each in part)
    results = measure(extent, parts, tell=lambda name: waiting.print(f"measuring: {name} ..."))
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
    drawn = plot(results, out / "bench.png")
    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in results["machine"].items() if value is not None))
    for table in tables(results):
        console.print()
        console.print(table)
    written = f"{out / 'bench.json'} and {out / 'bench.png'}" if drawn else f"{out / 'bench.json'}"
    console.print(f"\n{written} written", soft_wrap=True)
