"""Every number and claim of the paper as data."""

from pbwn_repro.paper.claim import Claim
from pbwn_repro.paper.claims import CLAIMS, claims_on
from pbwn_repro.paper.criteria import (
    Alike,
    BestSetting,
    Better,
    Conditioned,
    Costs,
    Criterion,
    Grows,
    Higher,
    MostlyBest,
    NotWorse,
)
from pbwn_repro.paper.numbers import Column, Number, PaperTable
from pbwn_repro.paper.tables import TABLES

__all__ = [
    "CLAIMS",
    "TABLES",
    "Alike",
    "BestSetting",
    "Better",
    "Claim",
    "Column",
    "Conditioned",
    "Costs",
    "Criterion",
    "Grows",
    "Higher",
    "MostlyBest",
    "NotWorse",
    "Number",
    "PaperTable",
    "claims_on",
]
