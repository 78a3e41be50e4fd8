"""Times that can be compared on a machine that is never quite quiet: interleaved, medians, with their spread."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """The seconds that one thing took, over many runs: the median and the middle half."""

    median: float
    lower_quartile: float
    upper_quartile: float
    runs: int

    @classmethod
    def of(cls, seconds: list[float]) -> Times:
        """Sum up single runs."""
        quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
        return cls(statistics.median(seconds), quartiles[0], quartiles[2], len(seconds))


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, seconds: float, least: int = 5, most: int = 2000
) -> dict[str, Times]:
    """Run all candidates in turn, in an order that changes each round, for about so many seconds.

    What disturbs the machine disturbs all of them alike, and no candidate always finds the caches as one other left
    them: their ratios are worth more than any single time.
    """
    order = list(candidates)
    for name in order:
        candidates[name]()  # compiles, allocates, builds plans
    taken: dict[str, list[float]] = {name: [] for name in order}
    shuffle = random.Random(0).shuffle
    end = time.perf_counter() + seconds
    while len(taken[order[0]]) < least or (time.perf_counter() < end and len(taken[order[0]]) < most):
        shuffle(order)
        for name in order:
            start = time.perf_counter()
            candidates[name]()
            taken[name].append(time.perf_counter() - start)
    return {name: Times.of(taken[name]) for name in candidates}
