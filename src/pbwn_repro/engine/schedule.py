"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from pbwn_repro.config import Cosine, Exponential, LinearTail, RunConfig, Steps


def learning_rate(config: RunConfig, step: int, steps_per_epoch: int, total_steps: int) -> float:
    """The rate of a step, counted from 0."""
    initial, schedule = config.optimizer.lr, config.schedule
    epoch = step // steps_per_epoch + 1
    if isinstance(schedule, Steps):
        return initial * schedule.factor ** sum(epoch >= drop for drop in schedule.drops)
    if isinstance(schedule, Exponential):
        epochs = -(-total_steps // steps_per_epoch)
        rate: float = initial * schedule.final ** (epoch / epochs)
        return rate
    if isinstance(schedule, LinearTail):
        tail = total_steps - schedule.constant_steps
        return initial * min(1.0, (total_steps - step) / tail) if tail else initial
    if isinstance(schedule, Cosine):
        if step < schedule.warmup_steps:
            return initial * (step + 1) / schedule.warmup_steps
        share = (step - schedule.warmup_steps) / max(1, total_steps - schedule.warmup_steps)
        return initial * (schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * share)) / 2)
    return initial


def resets_momentum(config: RunConfig, step: int, steps_per_epoch: int) -> bool:
    """Whether the momentum buffers are set to zero before this step: where the rate drops, as the authors do."""
    schedule = config.schedule
    return (
        isinstance(schedule, Steps)
        and schedule.momentum == "reset"
        and step % steps_per_epoch == 0
        and step // steps_per_epoch + 1 in schedule.drops
        and step > 0
    )
