"""Reading run folders: what is whole, what is unfinished, and what cannot be trusted and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from pbwn_repro.config import ConfigError, RunConfig, read_config
from pbwn_repro.report.collecting.history import History, read_history
from pbwn_repro.runs.folder import RunFolder, is_version_1

_COUNTS = ("best_step", "steps", "skipped_steps")
_NUMBERS = ("test_error", "test_error_exported", "best_test_error")
_MOST_STEPS = 10**9
_OTHERS = ("run", "test_top5_error", "deviation", "deviation_exported", "parameters", "constrained_weights")


@dataclass(frozen=True)
class Record:
    """A run folder that was read whole; result and history are those of a finished run."""

    path: Path
    config: RunConfig
    state: Literal["done", "diverged", "unfinished"]
    environment: Mapping[str, Any]
    result: Mapping[str, Any]
    history: History

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config.seed


class DamageError(Exception):
    """A run folder that cannot be trusted, with the reason."""


def read_record(path: Path) -> Record:
    """Read a run folder; DamageError names what is wrong with it."""
    folder = RunFolder(path)
    config = _config(folder)
    nothing = History((), ())
    if not folder.result.exists():
        if (path / "diverged.json").exists():
            return Record(
                path,
                config,
                "diverged",
                read_environment(folder.environment),
                read_json(path / "diverged.json"),
                nothing,
            )
        return Record(path, config, "unfinished", {}, {}, nothing)
    result = _result(folder, config)
    try:
        history = read_history(folder.metrics, config, result["steps"])
        _compare(result, history)
    except FileNotFoundError:
        raise DamageError("metrics.jsonl is missing") from None
    except (ValueError, ArithmeticError, OSError) as error:
        raise DamageError(str(error)) from None
    return Record(path, config, "done", read_environment(folder.environment), result, history)


def _config(folder: RunFolder) -> RunConfig:
    fields = read_json(folder.config)
    if is_version_1(fields):
        raise DamageError(f"written by an earlier version: run `pbwn migrate {folder.path.parent}`")
    try:
        config = read_config(fields)
    except (ConfigError, ValueError) as error:
        raise DamageError(f"config.json is no configuration of a run that this version knows ({error})") from None
    if config.run_name != folder.path.name:
        raise DamageError(f"config.json is not that of this folder: its run would be called {config.run_name}")
    return config


def _result(folder: RunFolder, config: RunConfig) -> dict[str, Any]:
    result = read_json(folder.result)
    missing = [name for name in (*_NUMBERS, *_COUNTS, *_OTHERS) if name not in result]
    if missing:
        raise DamageError(f"result.json lacks {', '.join(missing)}")
    if result["run"] != config.hash:
        raise DamageError(f"result.json belongs to the run {str(result['run'])[:8]}, not to {config.hash[:8]}")
    for name in _NUMBERS:
        if isinstance(result[name], bool) or not isinstance(result[name], int | float) or not _is_finite(result[name]):
            raise DamageError(f"result.json: {name} is {_short(result[name])}, not a number")
    for name in _COUNTS:
        if isinstance(result[name], bool) or not isinstance(result[name], int) or not 0 <= result[name] <= _MOST_STEPS:
            raise DamageError(f"result.json: {name} is {_short(result[name])}, not a number of steps")
    return result


def _is_finite(number: float) -> bool:
    try:
        return isfinite(number)
    except OverflowError:  # an integer beyond all floats
        return False


def _short(value: object) -> str:
    return repr(value)[:40]


def _compare(result: Mapping[str, Any], history: History) -> None:
    """The numbers that tables show stand twice, in the result and in the metrics: both have to agree."""
    last = history.evaluations[-1]
    best = min(history.evaluations, key=lambda line: (line["test_error"], line["step"]))
    twice = {
        "test_error": last["test_error"],
        "test_top5_error": last.get("test_top5_error"),
        "best_test_error": best["test_error"],
        "best_step": best["step"],
    }
    for name, logged in twice.items():
        if result[name] != logged:
            raise ValueError(f"result.json says {name} {result[name]}, metrics.jsonl says {logged}")


def read_environment(path: Path) -> dict[str, Any]:
    """What a run was made with; DamageError where its parts are not what they have to be."""
    found = read_json(path)
    for part in ("data", "packages"):
        if not isinstance(found.get(part, {}), dict):
            raise DamageError(f"{path.name}: {part} holds no object")
    if "data" in found and not {"name", "origin"} <= found["data"].keys():
        raise DamageError(f"{path.name}: data lacks a name or an origin")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; DamageError names what is wrong with it."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise DamageError(f"{path.name} is missing") from None
    except (ValueError, OSError, RecursionError) as error:
        raise DamageError(f"{path.name} cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise DamageError(f"{path.name} holds no object")
    return found
