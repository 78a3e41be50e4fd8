"""All claims of the paper, in its order."""

from __future__ import annotations

from pbwn_repro.paper.claim import Claim
from pbwn_repro.paper.figure_claims import FIGURE_CLAIMS
from pbwn_repro.paper.table_claims import TABLE_CLAIMS

CLAIMS: tuple[Claim, ...] = (*FIGURE_CLAIMS, *TABLE_CLAIMS)


def claims_on(artefact: str) -> tuple[Claim, ...]:
    """What the paper claims of one table or figure."""
    return tuple(claim for claim in CLAIMS if claim.artefact == artefact)
