"""Keeping what a finished run shows, without what it weighs: its numbers go, checkpoints and weights stay behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pbwn_repro.errors import UsageError
from pbwn_repro.runs.folder import RunFolder, run_folders, write_atomically

# The last of them makes the run a finished one: it is copied last.
KEPT = (
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "timing.jsonl",
    "monitor.jsonl",
    "diverged.json",
    "result.json",
)


@dataclass
class Archived:
    """What was done: folders newly kept, those that were there, those that are not finished, and the bytes of all."""

    new: int = 0
    known: int = 0
    unfinished: int = 0
    bytes: int = 0


def archive(runs: Path, target: Path) -> Archived:
    """Copy the small files of every finished run below `runs` to the same place below `target`.

    A run that is there already has to be the same one: another result for the same configuration is an error, because
    one of the two is wrong, or they come from different machines and do not belong into one folder.
    """
    if not runs.is_dir():
        raise FileNotFoundError(f"{runs}: no such folder")
    done = Archived()
    is_inside = runs.resolve() in target.resolve().parents
    for source in run_folders(runs):
        if is_inside and target.resolve() in source.config.resolve().parents:
            continue  # what was kept before is no run
        if source.state not in ("done", "diverged"):
            done.unfinished += 1
            continue
        kept = RunFolder(target / source.path.relative_to(runs))
        if kept.state in ("done", "diverged"):
            _compare(source, kept)
            done.known += 1
        else:
            kept.path.mkdir(parents=True, exist_ok=True)
            for name in KEPT:
                if (source.path / name).exists():
                    write_atomically(kept.path / name, (source.path / name).read_bytes())
            done.new += 1
    done.bytes = sum(path.stat().st_size for name in KEPT for path in target.rglob(name))  # a report may be there too
    return done


def _compare(source: RunFolder, kept: RunFolder) -> None:
    for path in (source.result, source.diverged):
        copy = kept.path / path.name
        if path.exists() != copy.exists() or (path.exists() and path.read_bytes() != copy.read_bytes()):
            raise UsageError(f"{kept.path} holds another {path.name} than {source.path}: keep one of the two runs")
