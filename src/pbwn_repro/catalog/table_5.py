"""Table 5: the training time of each method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import Column, MeasuredArtefact, Scale, read_table
from pbwn_repro.catalog.cifar import METHODS
from pbwn_repro.catalog.claims import OURS, Better, Claim, Costs
from pbwn_repro.models import recipe

NETWORKS = ("inception", "vgg-e", "resnet-110")
ROUNDS: Mapping[Scale, int] = {"smoke": 2, "short": 25, "paper": 25}
SMALL_BATCHES: Mapping[Scale, int] = {"smoke": 2, "short": 16}
PAPERS_METHODS = [str(name) for name in METHODS.values]


def _options(scale: Scale) -> Mapping[str, Any]:
    return _timing([*PAPERS_METHODS, "pbwn-riem-nxn"], scale)


def _timing(methods: list[str], scale: Scale) -> Mapping[str, Any]:
    batch_sizes = {name: SMALL_BATCHES.get(scale, recipe(name)["batch_size"]) for name in NETWORKS}
    return {"networks": list(NETWORKS), "methods": methods, "batch_sizes": batch_sizes, "rounds": ROUNDS[scale]}


TABLE_5 = MeasuredArtefact(
    name="table-5",
    title="Time cost",
    about="Training time of Inception, VGG-E and the residual network with 110 layers with each of the five methods, "
    "in hours and as the increase over normal training.",
    protocol="Whole training steps, all methods in turn in each round; batch 64 for Inception, 128 for the others; 120 "
    "and 160 epochs of 50,000 images.",
    departures=(
        "Hours are extrapolated from single steps on this machine's processor; the paper trained on one Tesla K80. "
        "Hours are not comparable; percentages over normal training also depend on device and batch, but less so.",
        "Images are random values kept in memory: reading and augmenting them, the same for all methods, is not timed.",
        "PBWN-Riem computes only the inner product of each row with its gradient. The row 'PBWN-Riem, n x n' computes "
        "the whole product of weight and gradient, as the authors' code does; the paper's times of PBWN-Riem are of "
        "this form.",
        "The FLOPs of a convolution are counted at its output positions.",
        "Below paper scale, batches are smaller, which increases the projection's share of a step, because its cost "
        "does not depend on the batch.",
    ),
    table=read_table(
        "training time (hours, one Tesla K80)",
        (
            Column("Inception", "inception", "cost"),
            Column("VGG", "vgg-e", "cost"),
            Column("Res-110", "resnet-110", "cost"),
        ),
        """
        normal     | Normal     | 20.96 | 4.20 | 5.96
        wn         | WN         | 23.33 | 5.27 | 6.42
        pbwn-riem  | PBWN-Riem  | 23.92 | 5.01 | 7.49
        pbwn       | PBWN       | 21.21 | 4.23 | 6.29
        pbwn-epoch | PBWN-Epoch | 20.97 | 4.20 | 5.97
        """,
        seeds=None,
    ),
    claims=(
        Claim(
            "table-5-epoch",
            "`PBWN-epoch' costs almost the same time as `Normal' on all architectures",
            "PBWN-Epoch takes at most 2 % more time than Normal",
            Costs("pbwn-epoch", None, 2.0),
        ),
        Claim(
            "table-5-pbwn",
            "`PBWN' also requires little extra time cost",
            "PBWN takes at most 10 % more time than Normal",
            Costs("pbwn", None, 10.0),
        ),
        Claim(
            "table-5-riem",
            "`PBWN-Riem' needs non-ignorable extra time",
            "PBWN-Riem, with the authors' n x n product, takes at least 10 % more time than Normal",
            Costs("pbwn-riem-nxn", 10.0, None),
            remark="The authors' code computes the whole n x n product of weight and gradient and keeps its diagonal, "
            "which costs more than the method needs.",
        ),
        Claim(
            "table-5-riem-rows",
            "`PBWN-Riem' needs non-ignorable extra time",
            "PBWN-Riem, computed row by row, takes at least 10 % more time than Normal",
            Costs("pbwn-riem", 10.0, None),
            note="The paper's sentence is about the n x n form of its code; this claim tests whether the method itself "
            "needs the time.",
        ),
        Claim(
            "table-5-wn",
            "our method outperforms weight normalization, in terms of both the effectiveness and computation "
            "efficiency",
            "the training time is shorter than that of WN",
            Better(OURS, ("wn",), "cost"),
            contradicted=(("pbwn-riem", "Inception"), ("pbwn-riem", "Res-110")),
            remark="PBWN-Riem takes longer than WN on Inception (23.92 and 23.33 hours) and on Res-110 (7.49 and "
            "6.42).",
        ),
    ),
    measurement="time-cost",
    options=_options,
    earlier=lambda scale: (_timing(PAPERS_METHODS, scale),),  # without the n x n form
)
