"""All run folders as one table: a row for each run, with its configuration, metrics and history.

    path, home, scale    its folder; the artefact in whose folder it is ('train' for a user's own runs); the scale
    state, seed          done, diverged or unfinished
    config, environment, result, history    the contents of its files
    identity             its configuration without the seed and the copy of the data
    <metric> ...         a column for each of `METRICS`: a number if the run is done

Damaged folders have no row: they are returned with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from pbwn_repro.catalog import KNOWN, SCALES, MeasuredArtefact
from pbwn_repro.catalog.artefact import identity
from pbwn_repro.config import ConfigError, RunConfig, read_config
from pbwn_repro.metrics import LATE_ERROR, METRICS, SUBTASK_ERROR, Metric
from pbwn_repro.report.statistics import mean
from pbwn_repro.runs.folder import RunFolder, is_version_1
from pbwn_repro.tasks import metric_of

OWN = "train"  # the home of runs that belong to no artefact
COLUMNS = [
    *("path", "home", "scale", "state", "seed", "config", "environment", "result", "history", "identity"),
    *METRICS,
]
_COUNTS = ("best_step", "steps", "skipped_steps")
_MOST_STEPS = 10**9
_OTHERS = ("run", "deviation", "deviation_exported", "parameters", "constrained_weights")


class DamageError(Exception):
    """A folder is damaged; the message is the reason."""


@dataclass(frozen=True)
class History:
    """The logs of a run, in order.

    Args:
        losses: step, and mean training loss since the previous line; without lines that have no finite loss.
        evaluations: the evaluations in metrics.jsonl, without those whose metric is not finite.
        monitored: the lines of monitor.jsonl, if any.
    """

    losses: tuple[tuple[int, float], ...] = ()
    evaluations: tuple[Mapping[str, Any], ...] = ()
    monitored: tuple[Mapping[str, Any], ...] = ()

    @cached_property
    def steps_per_epoch(self) -> float:
        """The number of steps per epoch; not an integer if a run ends within an epoch."""
        last = self.evaluations[-1]
        return float(last["step"] / last["epoch"])

    @property
    def losses_of_last_epoch(self) -> list[float]:
        """The training losses logged in the last epoch."""
        start = self.evaluations[-1]["step"] - self.steps_per_epoch
        return [loss for step, loss in self.losses if step > start]

    @property
    def final_loss(self) -> float:
        """The mean of the training losses logged in the last epoch."""
        return mean(self.losses_of_last_epoch)

    @property
    def mean_loss(self) -> float:
        """The mean training loss of the whole run, which is lower the sooner the loss falls."""
        return mean([loss for _, loss in self.losses])

    @property
    def early_jump(self) -> float:
        """The largest rise between consecutive losses in the first epoch; 0 if the loss never rises."""
        early = [loss for step, loss in self.losses if step <= self.steps_per_epoch]
        return max([0.0, *(later - before for before, later in pairwise(early))])

    def losses_by_epoch(self) -> list[tuple[float, float]]:
        """Return the mean training loss of each epoch; a line belongs to the epoch in which it ends."""
        return _means((max(1, -int(-step // self.steps_per_epoch)), loss) for step, loss in self.losses)

    def monitored_means(self, quantity: str) -> list[tuple[float, float]]:
        """Return a monitored quantity by step, averaged over the weights that have it."""
        return _means((line["step"], line[quantity]) for line in self.monitored if line.get(quantity) is not None)

    def evaluation_at(self, step: int) -> Mapping[str, Any]:
        """Return the evaluation after a step, empty if there is none."""
        return next((line for line in self.evaluations if line["step"] == step), {})


def read_runs(root: Path) -> tuple[pd.DataFrame, dict[Path, str]]:
    """Return the table of all training runs below `root`, and the damaged folders with the reason for each."""
    rows, left_out = [], {}
    for home, scale, path in _folders(root):
        try:
            rows.append({"path": path, "home": home, "scale": scale, **_read_run(path)})
        except DamageError as error:
            left_out[path] = str(error)
    return pd.DataFrame(rows, columns=COLUMNS), left_out


def folders_in(folder: Path) -> list[Path]:
    """Return the sorted folders in a folder, except hidden ones; empty if it does not exist."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."]


def _folders(root: Path) -> Iterator[tuple[str, str, Path]]:
    for name, artefact in KNOWN.items():
        if not isinstance(artefact, MeasuredArtefact):
            for scale in SCALES:
                yield from ((name, scale, path) for path in folders_in(root / name / scale))
    yield from ((OWN, "", path) for path in folders_in(root / OWN) if (path / "config.json").exists())


def _read_run(path: Path) -> dict[str, Any]:
    """Read a row of the table; raise DamageError if the folder is damaged."""
    folder = RunFolder(path)
    config = _config(folder)
    row: dict[str, Any] = {"config": config, "seed": config.seed, "identity": identity(config), "state": "unfinished"}
    row |= {"environment": {}, "result": {}, "history": History()}
    if folder.result.exists():
        metric = metric_of(config)
        result = _result(folder, config, metric)
        try:
            history = read_history(folder.metrics, config, result["steps"])
            _compare(result, history, metric)
            history = replace(history, monitored=_monitored(folder))
        except FileNotFoundError:
            raise DamageError("metrics.jsonl is missing") from None
        except (ValueError, ArithmeticError, OSError) as error:
            raise DamageError(str(error)) from None
        row |= {"state": "done", "result": result, "history": history, **_metrics(result, history, metric)}
    elif folder.diverged.exists():
        row |= {"state": "diverged", "result": read_json(folder.diverged)}
    if row["state"] != "unfinished":
        row["environment"] = read_environment(folder.environment)
    return row


def _monitored(folder: RunFolder) -> tuple[Mapping[str, Any], ...]:
    if not folder.monitor.exists():
        return ()
    lines = [json.loads(line) for line in folder.monitor.read_text().splitlines()]
    if not all(isinstance(line, dict) and isinstance(line.get("step"), int) for line in lines):
        raise ValueError("monitor.jsonl has lines that are not records")
    return tuple(lines)


def _metrics(result: Mapping[str, Any], history: History, metric: Metric) -> dict[str, float]:
    at_best = history.evaluation_at(result["best_step"])
    return {
        metric.name: float(result[metric.name]),
        metric.best: float(result[metric.best]),
        **{column: float(at_best.get(field, math.nan)) for column, field in metric.secondary.items()},
        "final_training_loss": history.final_loss,
        "mean_training_loss": history.mean_loss,
        "early_jump": history.early_jump,
        **_by_subtask(history, metric),
        **_gap(history),
    }


def _by_subtask(history: History, metric: Metric) -> dict[str, float]:
    """Return the error on the first sub-task and the mean error on the last quarter of them."""
    if metric is not SUBTASK_ERROR:
        return {}
    errors = [line[metric.name] for line in history.evaluations]
    return {"first_subtask_error": errors[0], LATE_ERROR.name: mean(errors[-max(1, len(errors) // 4) :])}


def _gap(history: History) -> dict[str, float]:
    """Return by how much the test loss exceeds the training loss of the last epoch."""
    loss = history.evaluations[-1].get("test_loss")
    return {} if loss is None else {"loss_gap": loss - history.final_loss}


def _config(folder: RunFolder) -> RunConfig:
    fields = read_json(folder.config)
    if is_version_1(fields):
        raise DamageError(f"written by an earlier version: run `pbwn migrate {folder.path.parent}`")
    try:
        config = read_config(fields)
    except (ConfigError, ValueError) as error:
        raise DamageError(f"config.json is not a run configuration that this version can read ({error})") from None
    if config.run_name != folder.path.name:
        raise DamageError(f"config.json does not belong to this folder: its run would be called {config.run_name}")
    return config


def _result(folder: RunFolder, config: RunConfig, metric: Metric) -> dict[str, Any]:
    result = read_json(folder.result)
    numbers = (metric.name, metric.exported, metric.best)
    missing = [name for name in (*numbers, *_COUNTS, *_OTHERS) if name not in result]
    if missing:
        raise DamageError(f"result.json lacks {', '.join(missing)}")
    if result["run"] != config.hash:
        raise DamageError(f"result.json belongs to the run {str(result['run'])[:8]}, not to {config.hash[:8]}")
    for name in numbers:
        if isinstance(result[name], bool) or not isinstance(result[name], int | float) or not _is_finite(result[name]):
            raise DamageError(f"result.json: {name} is {_short(result[name])}, not a number")
    for name in _COUNTS:
        if isinstance(result[name], bool) or not isinstance(result[name], int) or not 0 <= result[name] <= _MOST_STEPS:
            raise DamageError(f"result.json: {name} is {_short(result[name])}, not a step count")
    return result


def _compare(result: Mapping[str, Any], history: History, metric: Metric) -> None:
    """Check that the numbers shown in tables agree between result.json and metrics.jsonl, which both hold them."""
    last = history.evaluations[-1]
    best = min(history.evaluations, key=lambda line: (metric.sign * line[metric.name], line["step"]))
    logged = {
        metric.name: last[metric.name],
        **{name: last.get(name) for name in metric.secondary.values()},
        metric.best: best[metric.name],
        "best_step": best["step"],
    }
    for name, value in logged.items():
        if result.get(name) != value:
            raise ValueError(f"result.json says {name} {result.get(name)}, metrics.jsonl says {value}")


def read_history(path: Path, config: RunConfig, steps: int) -> History:
    """Read a finished run's metrics; raise ValueError if they are incomplete or damaged."""
    metric = metric_of(config)
    losses: list[tuple[int, float | None]] = []
    evaluations: list[dict[str, Any]] = []
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        try:
            line = json.loads(text)
            if "loss" in line:
                losses.append((int(line["step"]), None if line["loss"] is None else _finite(line["loss"])))
            elif line[metric.name] is not None:
                evaluations.append(_evaluation(line, metric))
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            raise ValueError(f"{path.name} cannot be read at line {number}") from None
    expected = [*range(config.log_every, steps + 1, config.log_every)]
    if steps % config.log_every:
        expected.append(steps)
    if [step for step, _ in losses] != expected:
        raise ValueError(f"{path.name} has {len(losses)} lines of losses, but {steps} steps log {len(expected)}")
    if not evaluations or evaluations[-1]["step"] != steps:
        raise ValueError(f"{path.name} lacks the evaluation after the last step")
    history = History(tuple((step, loss) for step, loss in losses if loss is not None), tuple(evaluations))
    if not history.losses_of_last_epoch:
        raise ValueError(f"{path.name} has no finite loss in the last epoch")
    return history


def _evaluation(line: dict[str, Any], metric: Metric) -> dict[str, Any]:
    optional = (*metric.secondary.values(), "deviation", "test_loss")
    given = [name for name in optional if line.get(name) is not None]
    numbers = {name: _finite(line[name]) for name in ("epoch", metric.name, *given)}
    if numbers["epoch"] <= 0:
        raise ValueError("an evaluation comes after a step")
    norms = (
        {"weight_norms": [_finite(line["weight_norms"][part]) for part in range(5)]} if "weight_norms" in line else {}
    )
    return {"step": int(line["step"]), **numbers, **norms}


def read_environment(path: Path) -> dict[str, Any]:
    """Read the environment of a run; raise DamageError if it is malformed."""
    found = read_json(path)
    for part in ("code", "data", "packages"):
        if not isinstance(found.get(part, {}), dict):
            raise DamageError(f"{path.name}: {part} is not an object")
    if "data" in found and not {"name", "origin"} <= found["data"].keys():
        raise DamageError(f"{path.name}: data lacks a name or an origin")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that contains one JSON object; raise DamageError if it cannot be read."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise DamageError(f"{path.name} is missing") from None
    except (ValueError, OSError, RecursionError) as error:
        raise DamageError(f"{path.name} cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise DamageError(f"{path.name} is not a JSON object")
    return found


def _means(points: Iterable[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return the mean of the values at each x, in ascending order."""
    found: dict[int, list[float]] = {}
    for x, value in points:
        found.setdefault(x, []).append(value)
    return [(float(x), mean(values)) for x, values in sorted(found.items())]


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond all floats
        return False


def _short(value: object) -> str:
    return repr(value)[:40]
