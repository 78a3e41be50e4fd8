"""`pbwn migrate`: convert run folders of earlier versions to the current format."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer


def migrate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Folders that hold run folders, at any depth.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, without writing anything.")
    ] = False,
) -> None:
    """Convert run folders of an earlier version to the current format: their configurations, names and checkpoints.

    A migrated run remains the same run: it is reported if it is finished and can be resumed if it is not. Folders that
    are damaged, in use by another process, or would overwrite another folder are listed and not changed; the exit code
    is then 1.
    """
    from pbwn_repro.exit_codes import FAILED
    from pbwn_repro.runs.migration import migrate as migrate_runs

    counts: Counter[str] = Counter()
    for root in runs:
        for outcome in migrate_runs(root, dry_run=dry_run):
            counts[outcome.kind] += 1
            if outcome.kind == "migrated":
                typer.echo(f"{outcome.path} -> {outcome.detail}")
            elif outcome.kind == "existing":
                typer.echo(f"{outcome.path}: already migrated to {outcome.detail}; the old copy is removed")
            elif outcome.kind == "skipped":
                typer.echo(f"not migrated: {outcome.path}: {outcome.detail}")
    words = [f"{counts[kind]} {phrase}" for kind, phrase in _PHRASES.items() if counts[kind]]
    typer.echo(f"{', '.join(words) or 'no run folders found'}{'. Nothing was written' if dry_run else ''}")
    if counts["skipped"]:
        raise typer.Exit(FAILED)


_PHRASES = {
    "migrated": "migrated",
    "existing": "already migrated",
    "current": "in the current format",
    "other": "of other kinds, unchanged",
    "skipped": "not migrated",
}
