"""The paper's claims and the criteria that decide them, as data: rows compared, metric, and margin.

The margins are ours: the paper says 'nearly identical', 'little' or 'no significant difference', but a test needs a
number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OURS = ("pbwn-riem", "pbwn", "pbwn-epoch")
BASELINES = ("normal", "wn")
CURVES_MARGIN = 0.1  # relative to the mean
# A note for networks in which batch normalisation follows every convolution.
WN_IS_NORMAL = (
    "Here batch normalisation follows every convolution and cancels the scale of its weight, so that WN equals Normal "
    "up to rounding and the epsilon of BN (without that epsilon, in float64, the losses of six steps of ResNet-20 "
    "agree to 2e-12). 'Better than WN' is therefore no independent confirmation of 'better than Normal'."
)


@dataclass(frozen=True)
class Better:
    """Each of `rows` has a lower value than each of `than`, in every column.

    `beside` is another metric to report along with this one.
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
    """Any two of `rows` differ by less than `margin`, in every column; `relative` means relative to their mean."""

    rows: tuple[str, ...]
    margin: float
    metric: str = "test_error"
    relative: bool = False


@dataclass(frozen=True)
class NotWorse:
    """None of `rows` is more than `margin` above any of `than`, in any column."""

    rows: tuple[str, ...]
    than: tuple[str, ...]
    margin: float
    metric: str = "test_error"


@dataclass(frozen=True)
class Grows:
    """The gain of each of `rows` over `than` is larger in the last column than in the first."""

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
    """`row` takes between `least` and `most` percent more time than Normal, in every column; None sets no bound."""

    row: str
    least: float | None
    most: float | None


@dataclass(frozen=True)
class Conditioned:
    """The Hessian's condition number grows with alpha ("scaled"), or is no larger after projection ("projected")."""

    what: Literal["scaled", "projected"]


@dataclass(frozen=True)
class BestSetting:
    """`value` is the best searched value of the axis `name`, for each of `rows`."""

    rows: tuple[str, ...]
    name: str
    value: float


@dataclass(frozen=True)
class BetterThanQuoted:
    """Each of `rows` has a lower value than the quoted results `than`, in every column that has both."""

    rows: tuple[str, ...]
    than: tuple[str, ...]
    metric: str = "test_error"


@dataclass(frozen=True)
class Trains:
    """Every run of `rows` ends below `below`, at each searched value of `name`, in `columns` (all if empty)."""

    rows: tuple[str, ...]
    name: str
    below: float
    columns: tuple[str, ...] = ()
    metric: str = "test_error"


@dataclass(frozen=True)
class Wider:
    """Each of `rows` is good at more searched values of `name` than each of `than`, in every column.

    A value is good if the mean there is at most `margin` above the lowest mean of all compared rows.
    """

    rows: tuple[str, ...]
    than: tuple[str, ...]
    name: str
    margin: float
    metric: str = "test_error"


@dataclass(frozen=True)
class Within:
    """The measured `metric` of `row` lies between `least` and `most`, in every layer of every network."""

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
    """A claim of the paper, quoted, with the criterion that decides it.

    Args:
        name: an identifier, unique among all claims.
        quote: the paper's words; empty if the claim is ours, about an experiment that the paper does not have.
        words: a short paraphrase of the claim as tested, including the margin if there is one.
        criterion: the test that decides the claim.
        contradicted: the cells of the paper's own table that contradict the claim, as pairs of row (the one that
            should be better, or cost more) and column.
        remark: a remark on the paper's own numbers.
        note: a caveat about our test, shown with each of its outcomes.
    """

    name: str
    quote: str
    words: str
    criterion: Criterion
    contradicted: tuple[tuple[str, str], ...] = ()
    remark: str = ""
    note: str = ""
