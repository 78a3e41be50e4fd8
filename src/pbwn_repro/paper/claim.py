"""A claim of the paper."""

from __future__ import annotations

from dataclasses import dataclass

from pbwn_repro.paper.criteria import Criterion


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, as the paper words it, with what decides it.

    Args:
        name: unique among all claims.
        words: the claim in a few words of ours, with the margin where the test has one.
        contradicted: the cells of the paper's own table that speak against it, by row (the one that should win or
            cost) and column.
        remark: what else has to be known about the paper's own numbers.
    """

    name: str
    artefact: str
    quote: str
    words: str
    criterion: Criterion
    contradicted: tuple[tuple[str, str], ...] = ()
    remark: str = ""
