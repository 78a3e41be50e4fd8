"""`pbwn archive`: keep the results of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def archive(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="Folder with the run folders.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to copy them to, such as results.")],
) -> None:
    """Copy finished runs without checkpoints and weights: small enough for a repository, enough for `pbwn report`."""
    from pbwn_repro.runs.folder import archive as archive_runs

    archived = archive_runs(runs, target)
    typer.echo(
        f"{target}: {archived.new} new, {archived.existing} already archived, {archived.unfinished} unfinished and "
        f"left out; {archived.bytes / 1e6:,.1f} MB in total"
    )
