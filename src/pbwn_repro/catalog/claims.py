"""A claim of the paper, and what decides it, as data: who is compared with whom, in which metric, what counts as equal.

Margins are ours: the paper says 'nearly identical', 'little' or 'no significant difference', a test needs a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OURS = ("pbwn-riem", "pbwn", "pbwn-epoch")
BASELINES = ("normal", "wn")
CURVES_MARGIN = 0.1  # of the mean
# Where batch normalisation follows every convolution.
WN_IS_NORMAL = (
    "Batch normalisation follows every convolution here, and undoes the scale of its weight: but for its epsilon and "
    "rounding, WN is Normal (in float64, without it, the losses of six steps of ResNet-20 agree to 2e-12). "
    "'Better than WN' is no second confirmation of 'better than Normal'."
)


@dataclass(frozen=True)
class Better:
    """Each of `rows` has a lower value than each of `than`, in every column.

    `beside` is another metric that a reader has to see with this one.
    """

    rows: tuple[str, ...]
    than: tuple[str, ...]
    metric: str = "test_error"
    beside: str = ""


@dataclass(frozen=True)
class Higher:
    """Each of `rows` has a higher value than each of `than`, in every column."""

    rows: tuple[str, ...]
    than: tuple[str, ...]
    metric: str = "test_error"


@dataclass(frozen=True)
class Alike:
    """Any two of `rows` differ by less than `margin`, in every column; a relative margin is a share of their mean."""

    rows: tuple[str, ...]
    margin: float
    metric: str = "test_error"
    relative: bool = False


@dataclass(frozen=True)
class NotWorse:
    """None of `rows` lies more than `margin` above any of `than`, in every column."""

    rows: tuple[str, ...]
    than: tuple[str, ...]
    margin: float
    metric: str = "test_error"


@dataclass(frozen=True)
class Grows:
    """By how much each of `rows` is better than `than` is more in the last column than in the first."""

    rows: tuple[str, ...]
    than: str
    metric: str = "test_error"


@dataclass(frozen=True)
class MostlyBest:
    """`row` has the lowest mean of `among` in more than half of the columns."""

    row: str
    among: tuple[str, ...]
    metric: str = "test_error"


@dataclass(frozen=True)
class Costs:
    """`row` takes at least `least`, at most `most` percent more time than the Normal network, in every column."""

    row: str
    least: float | None
    most: float | None


@dataclass(frozen=True)
class Conditioned:
    """The Hessian's condition number grows with the scale; after projection it is no larger than at equal magnitude."""

    what: Literal["scaled", "projected"]


@dataclass(frozen=True)
class BestSetting:
    """Of what was searched, `name` = `value` is the best for each of `rows`."""

    rows: tuple[str, ...]
    name: str
    value: float


@dataclass(frozen=True)
class BetterThanQuoted:
    """Each of `rows` has a lower value than the systems of others that the table quotes, in every column with both."""

    rows: tuple[str, ...]
    than: tuple[str, ...]
    metric: str = "test_error"


@dataclass(frozen=True)
class Trains:
    """Every run of `rows` ends with a value below `below`, at each value of what was searched, in the named columns."""

    rows: tuple[str, ...]
    name: str
    below: float
    columns: tuple[str, ...] = ()
    metric: str = "test_error"


@dataclass(frozen=True)
class Wider:
    """Each of `rows` is good at more of the searched values than each of `than`, in every column.

    A value is good where the mean lies at most `margin` above the lowest mean of all rows that are compared.
    """

    rows: tuple[str, ...]
    than: tuple[str, ...]
    name: str
    margin: float
    metric: str = "test_error"


@dataclass(frozen=True)
class Within:
    """What was measured of `row` lies between `least` and `most`, in every layer of every network."""

    row: str
    metric: str
    least: float
    most: float


Criterion = (
    BestSetting
    | Better
    | BetterThanQuoted
    | Higher
    | Alike
    | NotWorse
    | Grows
    | MostlyBest
    | Costs
    | Conditioned
    | Trains
    | Wider
    | Within
)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, as the paper words it, with what decides it.

    Args:
        name: unique among all claims.
        quote: the paper's words; empty where the claim is ours, of an experiment that the paper does not have.
        words: the claim in a few words of ours, with the margin where the test has one.
        contradicted: the cells of the paper's own table that speak against it, by row (the one that should win or
            cost) and column.
        remark: what else has to be known about the paper's own numbers.
        note: what has to be known about our test, wherever its outcome is shown: that it is ours and not the paper's
            words, or what it does not add.
    """

    name: str
    quote: str
    words: str
    criterion: Criterion
    contradicted: tuple[tuple[str, str], ...] = ()
    remark: str = ""
    note: str = ""
