"""A measured artefact as a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pbwn_repro.config import read_config
from pbwn_repro.engine.reporting import Reporter
from pbwn_repro.engine.signals import Interrupted, StopRequest
from pbwn_repro.measurements import measure
from pbwn_repro.models import recipe
from pbwn_repro.runs.folder import RunFolder, State
from pbwn_repro.runs.speed import Speeds


@dataclass(frozen=True, eq=False)
class MeasuringJob:
    """What is computed or timed in one go; nothing runs beside it."""

    title: str
    path: Path
    measurement: str
    options: Mapping[str, Any]
    flops: float = 0.0
    alone: bool = True

    @property
    def state(self) -> State:
        """Where the measurement stands on the disk."""
        return RunFolder(self.path).state

    def make(self, device: torch.device, reporter: Reporter) -> None:
        """Measure; asked to stop, it ends between two pieces."""
        begun = False

        def tell(done: int, total: int, doing: str) -> None:
            nonlocal begun
            if stop.requested:
                raise Interrupted(f"stopped in {self.path}; the same command goes on from there")
            if not begun:
                reporter.begin(self.title, done, total)
                begun = True
            reporter.step(done, 0.0, 0.0, 0.0)

        with StopRequest() as stop:
            try:
                measure(self.measurement, self.options, RunFolder(self.path), progress=tell)
            finally:
                reporter.end()


def measuring_flops(options: Mapping[str, Any], speeds: Speeds) -> float:
    """How much work a measurement is: a step of each method and network in every round."""
    flops = 0.0
    for name in options["networks"] if "rounds" in options else ():
        fields = recipe(name)
        sized = {**fields, "data": {**fields["data"], "digest": ""}, "batch_size": options["batch_sizes"][name]}
        step = speeds.effort(read_config({**sized, "method": "normal"})).step_flops
        flops += step * len(options["methods"]) * (options["rounds"] + 1)  # one round to warm up
    return flops
