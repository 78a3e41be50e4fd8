"""Timings that stay comparable on a noisy machine: interleaved runs, with their median and spread."""

from __future__ import annotations

import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from pbwn_repro.runs.environment import processor, version_of

Result = TypeVar("Result")


@dataclass(frozen=True)
class Times:
    """Median and quartiles of repeated timings, in seconds."""

    median: float
    lower_quartile: float
    upper_quartile: float
    runs: int

    @classmethod
    def of(cls, seconds: list[float]) -> Times:
        """Summarise the seconds of single runs."""
        quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
        return cls(statistics.median(seconds), quartiles[0], quartiles[2], len(seconds))


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, seconds: float, min_rounds: int = 5, max_rounds: int = 2000
) -> dict[str, Times]:
    """Time all candidates in turn, in a new random order each round, for about the given number of seconds.

    Disturbances affect all candidates alike, and none always finds the caches as the same other one left them, so their
    ratios are more reliable than the single times.
    """
    for candidate in candidates.values():
        candidate()  # compiles, allocates, builds plans
    rounds: list[dict[str, float]] = []
    turns = in_turns({name: partial(_seconds_of, candidate) for name, candidate in candidates.items()})
    end = time.perf_counter() + seconds
    while len(rounds) < min_rounds or (time.perf_counter() < end and len(rounds) < max_rounds):
        rounds.append(next(turns))
    return {name: Times.of([times[name] for times in rounds]) for name in candidates}


def in_turns(candidates: Mapping[str, Callable[[], Result]]) -> Iterator[dict[str, Result]]:
    """Yield the results of one round after another: each calls all candidates once, in a new random order."""
    order = list(candidates)
    shuffle = random.Random(0).shuffle
    while True:
        shuffle(order)
        yield {name: candidates[name]() for name in order}


def _seconds_of(candidate: Callable[[], object]) -> float:
    start = time.perf_counter()
    candidate()
    return time.perf_counter() - start


def machine() -> dict[str, str | int | float | None]:
    """Describe the machine that the times depend on: processor, cores, threads, load and versions."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("torch", "numba", "geoopt")},
    }


def median_with_interval(values: Sequence[float], confidence: float = 0.95) -> dict[str, float | None]:
    """Return the median and its exact confidence interval from order statistics; None where there are too few values.

    >>> median_with_interval([3.0, 1.0, 2.0, 5.0, 4.0, 6.0])
    {'value': 3.5, 'low': 1.0, 'high': 6.0}
    """
    from scipy.stats import quantile_test  # takes a second to import

    interval = quantile_test(values, p=0.5, q=statistics.median(values)).confidence_interval(confidence)
    low, high = (None if math.isnan(end) else float(end) for end in (interval.low, interval.high))
    return {"value": statistics.median(values), "low": low, "high": high}
