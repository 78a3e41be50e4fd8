"""`pbwn archive`: keep the numbers of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def archive(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="The folder with runs.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Where to keep them, such as results.")],
) -> None:
    """Keep finished runs without checkpoints and weights: small enough for a repository, enough for `pbwn report`."""
    from pbwn_repro.runs.folder import archive as keep

    done = keep(runs, target)
    typer.echo(
        f"{target}: {done.new} new, {done.known} already there, {done.unfinished} unfinished and left out; "
        f"{done.bytes / 1e6:,.1f} MB in all"
    )
