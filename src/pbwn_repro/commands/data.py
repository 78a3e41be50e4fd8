"""`pbwn data`: list, download and check data sets."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pbwn_repro.commands import CacheDir, Command, DataDir, Group, print_plain
from pbwn_repro.commands.names import completing, data_sets

app = typer.Typer(cls=Group, help="Data sets: list, download, check.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A data set that `pbwn data list` shows.", autocompletion=completing(also=data_sets)
    ),
]
Splits = Annotated[
    list[str] | None,
    typer.Option("--split", metavar="SPLIT", help="Only this split (train, test, extra); may be repeated."),
]


@app.command("list", cls=Command)
def list_sets(cache_dir: CacheDir = None) -> None:
    """List all data sets, with their state, source and size on this machine."""
    from pbwn_repro.data.cache import cache_root
    from pbwn_repro.data.loading import inventory

    table = Table("set", "contents", "state", "source", "size on disk", box=None, pad_edge=False)
    table.columns[-1].justify = "right"
    for entry in inventory(cache_dir):
        size = f"{entry.cached_bytes / 1e6:,.1f} MB" if entry.cached_bytes else ""
        table.add_row(entry.name, entry.contents, entry.state, entry.origin, size)
    console = Console()
    console.print(table)
    note = "Data sets are verified when downloaded; `pbwn data check NAME` verifies one again."
    print_plain(console, f"\n{note}\nCache: {cache_root(cache_dir)}")


@app.command(cls=Command)
def get(name: Name, data_dir: DataDir = None, cache_dir: CacheDir = None, split: Splits = None) -> None:
    """Download a data set, verify it, and decode it into the cache."""
    from pbwn_repro.data import load
    from pbwn_repro.data.download import Terminal
    from pbwn_repro.data.loading import verify_user_files

    progress = Terminal(Console(stderr=True))
    dataset = load(
        name, data_dir=data_dir, cache_dir=cache_dir, splits=split or None, damaged="replace", progress=progress
    )
    verify_user_files(name, data_dir, splits=split or None)
    parts = ", ".join(f"{len(images):,} {part}" for part, images in dataset.splits.items())
    typer.echo(f"{dataset.name}: {parts}; {len(dataset.classes)} classes; from {dataset.origin}; verified")
    typer.echo(f"sha256 {dataset.digest}")


@app.command(cls=Command)
def check(name: Name, data_dir: DataDir = None, cache_dir: CacheDir = None) -> None:
    """Verify every checksum of a local data set, or decode every image; exit with 1 if anything is wrong."""
    from pbwn_repro.data.loading import check as check_set

    failures = 0
    for finding in check_set(name, data_dir=data_dir, cache_dir=cache_dir):
        typer.echo(f"{'ok' if finding.passed else 'WRONG':<5}  {finding.part}: {finding.detail}")
        failures += not finding.passed
    if failures:
        typer.echo(f"{name}: {failures} of these checks failed", err=True)
        raise typer.Exit(1)
    typer.echo(f"{name}: all checks passed")
