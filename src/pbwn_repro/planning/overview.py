"""All artefacts at all scales: how many runs, how long they take here, and how many are done."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pbwn_repro.catalog import ARTEFACTS, EXPERIMENTS, SCALES, Artefact, MeasuredArtefact, Scale, TrainedArtefact
from pbwn_repro.catalog.artefact import identity
from pbwn_repro.config import read_config
from pbwn_repro.planning.jobs import measuring_job
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.runs.speed import Speeds


@dataclass(frozen=True)
class Standing:
    """An artefact at a scale; `done` are the runs that ended, also those that diverged.

    `seconds` on one core, or on one GPU, for all runs, and `longest` for one of them.
    """

    runs: int
    done: int
    seconds: float
    longest: float


def overview(out: Path, speeds: Speeds) -> dict[str, dict[Scale, Standing]]:
    """The standing of each artefact at each scale, from what is on the disk below `out`."""
    finished: dict[Path, set[tuple[str, int]]] = {}
    return {
        name: {scale: standing(artefact, scale, out, speeds, finished) for scale in SCALES}
        for name, artefact in {**ARTEFACTS, **EXPERIMENTS}.items()
    }


def standing(
    artefact: Artefact, scale: Scale, out: Path, speeds: Speeds, finished: dict[Path, set[tuple[str, int]]]
) -> Standing:
    """How an artefact stands at a scale; `finished` keeps what was found in folders that were looked into."""
    if isinstance(artefact, MeasuredArtefact):
        job = measuring_job(artefact, scale, out, speeds)
        seconds = speeds.measuring_seconds(job.flops)
        return Standing(1, int(job.state == "done"), seconds, seconds)
    assert isinstance(artefact, TrainedArtefact)
    seeds, runs, done, times = artefact.seeds[scale], 0, 0, [0.0]
    last, further = artefact.seeds_at_best.get(scale, seeds), dict[str, tuple[int, float]]()
    searched = [axis.name for axis in artefact.axes(scale) if axis.role == "searched"]
    for plan in artefact.plans(scale, seeds=1):
        folder = out / plan.artefact / scale
        if folder not in finished:
            finished[folder] = _finished(folder)
        runs += seeds
        times.append(speeds.estimate(plan.config).seconds)
        if finished[folder]:
            name = plan.identity
            done += sum((name, seed) in finished[folder] for seed in range(1, seeds + 1))
        # Which setting of a cell will have further seeds is known when all have one: as many as any of them has.
        cell = str([value for key, value in plan.labels.items() if key not in searched])
        there = sum((plan.identity, seed) in finished[folder] for seed in range(seeds + 1, last + 1))
        further[cell] = max(further.get(cell, (0, 0.0)), (there, times[-1]))
    seconds = sum(times) * seeds + sum(time * (last - seeds) for _, time in further.values())
    done += sum(there for there, _ in further.values())
    return Standing(runs + len(further) * (last - seeds), done, seconds, max(times))


def _finished(folder: Path) -> set[tuple[str, int]]:
    """The runs in a folder that have ended, diverged or not: what they are, on whatever data, and their seeds."""
    found = set()
    for path in folder.glob("*/config.json"):
        run = RunFolder(path.parent)
        if run.state in ("done", "diverged"):
            try:
                config = read_config(json.loads(path.read_text()))
            except (OSError, ValueError, TypeError):
                continue  # a damaged folder counts for nothing
            found.add((identity(config), config.seed))
    return found
