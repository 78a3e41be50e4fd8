"""Measurements that are computed or timed in one go, not assembled from training runs, such as figure 1 and table 5.

A measurement has a folder like that of a run, with the same rule: it is done once `result.json` exists; until then the
same call resumes it.

    <out>/<artefact>/<scale>/<measurement>-<hash8>/   config.json  environment.json  parts/  result.json

`config.json` is {"measurement": name, "options": {...}}; the hash is that of its canonical form. The format of a result
is described in the module that computes it, such as `landscape` for figure 1 and `steps` for table 5.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pbwn_repro.bench.conditioning import conditioning
from pbwn_repro.bench.gradients import gradients
from pbwn_repro.bench.landscape import landscape
from pbwn_repro.bench.parts import Parts, Progress
from pbwn_repro.bench.steps import time_cost
from pbwn_repro.config import ConfigError, read_config
from pbwn_repro.engine.reporting import Reporter
from pbwn_repro.engine.signals import Interrupted, StopRequest
from pbwn_repro.errors import suggest
from pbwn_repro.models import recipe
from pbwn_repro.runs.environment import environment
from pbwn_repro.runs.estimates import Speeds
from pbwn_repro.runs.folder import RunFolder, to_json, write_atomically
from pbwn_repro.runs.jobs import Job
from pbwn_repro.runs.resolution import complete

Measurement = Callable[[Mapping[str, Any], Parts, Progress], dict[str, Any]]
MEASUREMENTS: Mapping[str, Measurement] = {
    "conditioning": conditioning,
    "gradients": gradients,
    "landscape": landscape,
    "time-cost": time_cost,
}


def folder_of(out: Path, artefact: str, scale: str, measurement: str, options: Mapping[str, Any]) -> RunFolder:
    """Return the folder of a measurement below `out`, which depends only on its options."""
    canonical = json.dumps(_config(measurement, options), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return RunFolder(out / artefact / scale / f"{measurement}-{digest[:8]}")


def measure(
    measurement: str,
    options: Mapping[str, Any],
    folder: RunFolder,
    *,
    progress: Progress = lambda done, total, doing: None,
) -> dict[str, Any]:
    """Compute a measurement's result, or return the existing one.

    The process may be killed at any moment; the same call then resumes with the first missing part. Timings use torch's
    current number of threads and require an otherwise idle machine.

    Args:
        measurement: a name in `MEASUREMENTS`.
        options: the options of the measurement, as plain JSON values.
        folder: the folder returned by `folder_of`.
        progress: called with the number of finished pieces, their total and the next piece; it may raise to stop.
    """
    if measurement not in MEASUREMENTS:
        raise ValueError(f"unknown measurement {measurement!r}: {suggest(measurement, MEASUREMENTS)}")
    if folder.state == "done":
        return folder.read_result()
    with folder.locked():
        _claim(folder, _config(measurement, options))
        write_atomically(folder.environment, to_json(environment(torch.device("cpu"))))
        result = MEASUREMENTS[measurement](options, Parts(folder.path / "parts"), progress)
        write_atomically(folder.result, to_json(result))
    return folder.read_result()


def _config(measurement: str, options: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(json.dumps({"measurement": measurement, "options": dict(options)}))
    return config


def _claim(folder: RunFolder, config: dict[str, Any]) -> None:
    """Write the configuration into a new folder, or check that an existing folder holds the same one."""
    if not folder.config.exists():
        write_atomically(folder.config, to_json(config))
        return
    if folder.read_fields() != config:
        raise ConfigError(f"{folder.path} holds another measurement: move it away, or choose another folder with --out")


@dataclass(frozen=True, eq=False, kw_only=True)
class MeasuringJob(Job):
    """A job that computes a measurement."""

    measurement: str
    options: Mapping[str, Any]

    def run(self, device: torch.device, reporter: Reporter) -> None:
        """Measure; a stop request takes effect between two pieces."""
        started = False

        def progress(done: int, total: int, doing: str) -> None:
            nonlocal started
            if stop.requested:
                raise Interrupted(f"stopped in {self.path}; run the same command to resume")
            if not started:
                reporter.begin(self.title, done, total)
                started = True
            reporter.step(done, 0.0, 0.0, 0.0)

        with StopRequest() as stop:
            try:
                measure(self.measurement, self.options, RunFolder(self.path), progress=progress)
            finally:
                reporter.end()


def measuring_flops(measurement: str, options: Mapping[str, Any], speeds: Speeds) -> float:
    """Return the floating-point operations of the expensive measurements, and 0 for the others."""
    if measurement == "conditioning":
        return _conditioning_flops(options, speeds)
    flops = 0.0
    for name in options["networks"] if measurement == "time-cost" else ():
        fields = recipe(name)
        sized = {**fields, "data": {**fields["data"], "digest": ""}, "batch_size": options["batch_sizes"][name]}
        step = speeds.effort(read_config({**sized, "method": "normal"})).step_flops
        flops += step * len(options["methods"]) * (options["rounds"] + 1)  # one round to warm up
    return flops


def _conditioning_flops(options: Mapping[str, Any], speeds: Speeds) -> float:
    """Count the training runs, and at each moment about 75 products with the Hessian of four training steps each."""
    flops, count = 0.0, options["seeds"] * len(options["methods"])
    for name, overrides in options["networks"].items():
        fields, _ = complete({**overrides, "model": name, "method": "normal"})
        config = read_config({**fields, "data": {**fields["data"], "digest": ""}, "processes": 1, "seed": 1})
        work = speeds.effort(config)
        products = 300 * len(options["moments"]) * options["examples"][name] / config.batch_size
        flops += count * work.step_flops * (work.steps + products)
    return flops
