"""Table 5: the time that each method's training takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import MeasuredArtefact, Scale
from pbwn_repro.catalog.cifar import METHODS
from pbwn_repro.models import recipe

NETWORKS = ("inception", "vgg-e", "resnet-110")
ROUNDS: Mapping[Scale, int] = {"smoke": 2, "short": 25, "paper": 25}
SMALL_BATCHES: Mapping[Scale, int] = {"smoke": 2, "short": 16}


def _options(scale: Scale) -> Mapping[str, Any]:
    return _timing([str(name) for name in METHODS.values] + ["pbwn-riem-nxn"], scale)


def _timing(methods: list[str], scale: Scale) -> Mapping[str, Any]:
    batch_sizes = {name: SMALL_BATCHES.get(scale, recipe(name)["batch_size"]) for name in NETWORKS}
    return {"networks": list(NETWORKS), "methods": methods, "batch_sizes": batch_sizes, "rounds": ROUNDS[scale]}


TABLE_5 = MeasuredArtefact(
    name="table-5",
    title="Time cost",
    about="Hours of training of Inception, VGG-E and the residual network with 110 layers with each of the five "
    "methods, and what each takes longer than normal training.",
    protocol="Whole training steps, all methods in turn in each round; batch 64 for Inception, 128 for the others; 120 "
    "and 160 epochs of 50,000 pictures.",
    departures=(
        "Hours are extrapolated from single steps on this machine's processor; the paper trained on one Tesla K80. "
        "Hours cannot be compared; percentages over normal training depend on device and batch too, if less.",
        "Pictures are random numbers and stay in memory: reading and augmenting them, the same for all methods, is not "
        "timed.",
        "PBWN-Riem forms the inner product of each row and its gradient alone. The row n x n forms the whole product "
        "of weight and gradient, as the authors' code does: the paper's times of PBWN-Riem are those of that form.",
        "Below paper scale batches are smaller, which makes the projection's share larger: its cost does not depend on "
        "the batch.",
    ),
    measurement="time-cost",
    options=_options,
    earlier=lambda scale: (_timing([str(name) for name in METHODS.values], scale),),  # without the n x n form
)
