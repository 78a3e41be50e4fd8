"""What a run contributes to a cell, a curve or a verdict: one number each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pbwn_repro.report.collecting.reading import Record


def _top5_at_best(record: Record) -> float:
    """The top-5 error of the epoch whose top-1 error is the best."""
    line = record.history.evaluation_at(record.result["best_step"]) or {}
    return float(line.get("test_top5_error", float("nan")))


MEASURES: Mapping[str, Callable[[Record], float]] = {
    "test_error": lambda record: float(record.result["test_error"]),
    "best_test_error": lambda record: float(record.result["best_test_error"]),
    "top5_error": _top5_at_best,
    "final_training_loss": lambda record: record.history.final_loss,
    "mean_training_loss": lambda record: record.history.mean_loss,
    "early_jump": lambda record: record.history.early_jump,
}
# What the best of several settings is the lowest of, by what the artefact shows.
SEARCHED_BY: Mapping[str, str] = {
    "test_error": "test_error",
    "best_test_error": "best_test_error",
    "training_loss": "final_training_loss",
}
WORDS: Mapping[str, str] = {
    "test_error": "test error",
    "best_test_error": "best top-1 error",
    "top5_error": "top-5 error",
    "final_training_loss": "final training loss",
    "mean_training_loss": "mean training loss",
    "early_jump": "largest early rise of the loss",
}
UNITS: Mapping[str, str] = {
    "test_error": "points",
    "best_test_error": "points",
    "top5_error": "points",
    "cost": "%",
}
