"""What decides a claim, as data: who is compared with whom, in which measure, and what counts as the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pbwn_repro.paper.numbers import Measure

IntervalKind = Literal["welch", "bootstrap", "paired"]


@dataclass(frozen=True)
class Better:
    """Each of `rows` has a lower value than each of `than`, in every column."""

    rows: tuple[str, ...]
    than: tuple[str, ...]
    measure: Measure = "test_error"
    interval: IntervalKind = "welch"


@dataclass(frozen=True)
class Higher:
    """Each of `rows` has a higher value than each of `than`, in every column."""

    rows: tuple[str, ...]
    than: tuple[str, ...]
    measure: Measure = "test_error"
    interval: IntervalKind = "welch"


@dataclass(frozen=True)
class Alike:
    """Any two of `rows` differ by less than `margin`, in every column; a relative margin is a share of their mean."""

    rows: tuple[str, ...]
    margin: float
    measure: Measure = "test_error"
    relative: bool = False
    interval: IntervalKind = "welch"


@dataclass(frozen=True)
class NotWorse:
    """None of `rows` lies more than `margin` above any of `than`, in every column."""

    rows: tuple[str, ...]
    than: tuple[str, ...]
    margin: float
    measure: Measure = "test_error"
    interval: IntervalKind = "welch"


@dataclass(frozen=True)
class Grows:
    """By how much each of `rows` is better than `than` is more in the last column than in the first."""

    rows: tuple[str, ...]
    than: str
    measure: Measure = "test_error"


@dataclass(frozen=True)
class MostlyBest:
    """`row` has the lowest mean of `among` in more than half of the columns."""

    row: str
    among: tuple[str, ...]
    measure: Measure = "test_error"


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


Criterion = BestSetting | Better | Higher | Alike | NotWorse | Grows | MostlyBest | Costs | Conditioned
