"""The jobs of a user's own sweep: every combination of methods, learning rates, weight decays and seeds."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbwn_repro import methods
from pbwn_repro.data.loading import absolute
from pbwn_repro.runs.estimates import Estimate, Speeds
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.runs.jobs import TrainingJob
from pbwn_repro.runs.resolution import complete, resolve
from pbwn_repro.tasks import AnySet


@dataclass(frozen=True)
class Grid:
    """What the runs have in common, as `resolve` takes it, and what they differ in; nothing listed: as the recipe."""

    wishes: Mapping[str, Any]
    methods: tuple[str, ...]
    rates: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    seeds: int = 1

    def settings(self) -> list[dict[str, Any]]:
        """What tells each run from the others, seeds outermost: an interrupted sweep has complete first seeds."""
        axes = {
            "seed": tuple(range(1, self.seeds + 1)),
            "method": self.methods,
            "lr": self.rates,
            "weight_decay": self.decays,
        }
        listed = {name: values for name, values in axes.items() if values}
        return [dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())]


def grid_jobs(
    grid: Grid, out: Path, speeds: Speeds, *, data_dir: Path | None = None, cache_dir: Path | None = None
) -> tuple[list[TrainingJob], Estimate]:
    """The jobs of a grid, and what each of them takes: they are equally long.

    The data are loaded once, and what cannot be imported or configured is told before anything runs.
    """
    for name in grid.methods:
        methods.method(name)
    source = absolute(complete(grid.wishes)[1])
    dataset: AnySet | None = None
    jobs: list[TrainingJob] = []
    for setting in grid.settings():
        wishes = {**grid.wishes, **setting}
        config, dataset = resolve(wishes, data_dir=data_dir, cache_dir=cache_dir, dataset=dataset)
        folder = RunFolder.of(config, out)
        folder.refuse_outdated(config)
        if not jobs:
            estimate = speeds.estimate(config, dataset)
            flops = speeds.effort(config, dataset).flops
        words = [methods.title(config.method)]
        words += [f"{name} {setting[name]:g}" for name in ("lr", "weight_decay", "seed") if name in setting]
        jobs.append(
            TrainingJob(
                title=" ".join(words),
                path=folder.path,
                config=config,
                source=source,
                data_dir=data_dir,
                cache_dir=cache_dir,
                flops=flops,
                modules=Path(os.getcwd()),
            )
        )
    return jobs, estimate
