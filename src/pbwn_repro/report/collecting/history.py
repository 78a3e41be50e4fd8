"""What a run's metrics.jsonl tells: the training loss by step, and the evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from pbwn_repro.config import RunConfig

_OPTIONAL = frozenset({"test_top5_error", "deviation"})


@dataclass(frozen=True)
class History:
    """The lines of metrics: of the loss (step, mean since the line before) and of evaluations, in order.

    Where no step had a finite loss, there is no line of it.
    """

    losses: tuple[tuple[int, float], ...]
    evaluations: tuple[Mapping[str, Any], ...]

    @cached_property
    def steps_per_epoch(self) -> float:
        """How many steps an epoch has; not a whole number where a run ends within one."""
        last = self.evaluations[-1]
        return float(last["step"] / last["epoch"])

    @property
    def losses_of_last_epoch(self) -> list[float]:
        """The training loss by the last epoch's lines."""
        start = self.evaluations[-1]["step"] - self.steps_per_epoch
        return [loss for step, loss in self.losses if step > start]

    @property
    def final_loss(self) -> float:
        """The training loss averaged over the last epoch's lines."""
        return _mean(self.losses_of_last_epoch)

    @property
    def mean_loss(self) -> float:
        """The training loss averaged over the whole run: the sooner it falls, the lower it is."""
        return _mean([loss for _, loss in self.losses])

    @property
    def early_jump(self) -> float:
        """The largest rise of the loss from one line to the next within the first epoch; 0 if it only falls."""
        early = [loss for step, loss in self.losses if step <= self.steps_per_epoch]
        return max((later - before for before, later in pairwise(early)), default=0.0)

    def losses_by_epoch(self) -> list[tuple[float, float]]:
        """The training loss averaged over each epoch's lines; a line counts where it ends."""
        epochs: dict[int, list[float]] = {}
        for step, loss in self.losses:
            epochs.setdefault(max(1, -int(-step // self.steps_per_epoch)), []).append(loss)
        return [(float(epoch), _mean(losses)) for epoch, losses in sorted(epochs.items())]

    def evaluation_at(self, step: int) -> Mapping[str, Any] | None:
        """The evaluation after a step."""
        return next((line for line in self.evaluations if line["step"] == step), None)


def read_history(path: Path, config: RunConfig, steps: int) -> History:
    """Read a finished run's metrics; ValueError says what is missing or wrong in them."""
    losses: list[tuple[int, float | None]] = []
    evaluations: list[dict[str, Any]] = []
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        try:
            line = json.loads(text)
            if "loss" in line:
                losses.append((int(line["step"]), None if line["loss"] is None else _finite(line["loss"])))
            else:
                evaluations.append(_evaluation(line))
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            raise ValueError(f"{path.name} cannot be read at line {number}") from None
    expected = [*range(config.log_every, steps + 1, config.log_every)]
    if steps % config.log_every:
        expected.append(steps)
    if [step for step, _ in losses] != expected:
        raise ValueError(f"{path.name} holds {len(losses)} lines of the loss, not the {len(expected)} of {steps} steps")
    if not evaluations or evaluations[-1]["step"] != steps:
        raise ValueError(f"{path.name} does not hold the evaluation after the last step")
    history = History(tuple((step, loss) for step, loss in losses if loss is not None), tuple(evaluations))
    if not history.losses_of_last_epoch:
        raise ValueError(f"{path.name} holds no loss of the last epoch: none was finite")
    return history


def _evaluation(line: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: _finite(line[name]) for name in ("epoch", "test_error", *_OPTIONAL.intersection(line))}
    if numbers["epoch"] <= 0:
        raise ValueError("an evaluation comes after a step")
    norms = (
        {"weight_norms": [_finite(line["weight_norms"][part]) for part in range(5)]} if "weight_norms" in line else {}
    )
    return {"step": int(line["step"]), **numbers, **norms}


def _finite(value: Any) -> float:
    number = float(value)
    if not isfinite(number):
        raise ValueError(f"{number} is not a number to average")
    return number


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
