"""`pbwn doctor`: check this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from pbwn_repro.commands import CacheDir, announce

STYLES = {"ok": "green", "info": "dim", "warn": "yellow", "fail": "bold red"}


def doctor(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the run folders.")] = Path("runs"),
    cache_dir: CacheDir = None,
) -> None:
    """Check packages, threads, memory, disk and data; exit with 1 if anything needs to be fixed."""
    announce("Checking this machine ...")
    from pbwn_repro.doctor import examine

    console = Console(highlight=False)
    console.soft_wrap = not console.is_terminal  # wrap lines only on a terminal
    counts = dict.fromkeys(STYLES, 0)
    for finding in examine(out, cache_dir):
        counts[finding.level] += 1
        console.print(
            Text.assemble((f"{finding.level:<4}", STYLES[finding.level]), f"  {finding.topic}: {finding.detail}")
        )
        if finding.remedy:
            console.print(Text(f"        {finding.remedy}", style="dim"))
    console.print(
        "\nnothing needs to be fixed" if not counts["fail"] else f"\n{counts['fail']} of the above must be fixed first",
        f"({counts['warn']} {'warning' if counts['warn'] == 1 else 'warnings'})" if counts["warn"] else "",
    )
    raise typer.Exit(1 if counts["fail"] else 0)
