"""`pbwn migrate`: run folders of earlier versions, brought to the present format."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer


def migrate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Folders that hold run folders, at any depth.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
) -> None:
    """Bring the run folders of an earlier version to the present format: their configurations, names and checkpoints.

    A migrated run is the same run: a finished one is shown, an unfinished one resumes. What is in use by a process,
    damaged, or would overwrite another folder is named and left as it is, and the exit code is 1.
    """
    from pbwn_repro.exit_codes import FAILED
    from pbwn_repro.runs.migration import migrate as bring

    counts: Counter[str] = Counter()
    for root in runs:
        for outcome in bring(root, dry_run=dry_run):
            counts[outcome.kind] += 1
            if outcome.kind == "migrated":
                typer.echo(f"{outcome.path} -> {outcome.detail}")
            elif outcome.kind == "known":
                typer.echo(f"{outcome.path}: the same run is there as {outcome.detail}; the old copy is removed")
            elif outcome.kind == "left":
                typer.echo(f"left: {outcome.path}: {outcome.detail}")
    words = [f"{counts[kind]} {phrase}" for kind, phrase in _PHRASES.items() if counts[kind]]
    typer.echo(f"{', '.join(words) or 'no run folders found'}{'. Nothing was written' if dry_run else ''}")
    if counts["left"]:
        raise typer.Exit(FAILED)


_PHRASES = {
    "migrated": "migrated",
    "known": "already there",
    "current": "in the present format",
    "other": "of other kinds, untouched",
    "left": "left",
}
