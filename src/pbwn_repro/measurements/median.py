"""A median with an interval that needs no word on how the values are distributed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def median_with_interval(values: Sequence[float], confidence: float = 0.95) -> dict[str, float | None]:
    """The median, and the exact interval from order statistics; None where there are too few values for one.

    >>> median_with_interval([3.0, 1.0, 2.0, 5.0, 4.0, 6.0])
    {'value': 3.5, 'low': 1.0, 'high': 6.0}
    """
    from scipy.stats import quantile_test  # takes a second to import

    interval = quantile_test(values, p=0.5, q=statistics.median(values)).confidence_interval(confidence)
    low, high = (None if math.isnan(end) else float(end) for end in (interval.low, interval.high))
    return {"value": statistics.median(values), "low": low, "high": high}
