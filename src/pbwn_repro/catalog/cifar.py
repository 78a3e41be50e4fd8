"""The shared parts of tables 1 to 4: five methods on CIFAR, their departures and claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import INIT, Axis, Column, Labels, Scale
from pbwn_repro.catalog.claims import BASELINES, OURS, Alike, Better, Claim, Grows, MostlyBest

ERROR = "test error (%)"
METHODS = Axis("method", ("normal", "wn", "pbwn-riem", "pbwn", "pbwn-epoch"), "row")
SETS = (Column("CIFAR-10", "cifar10"), Column("CIFAR-100", "cifar100"))
DEPTHS = (20, 32, 44, 56, 110)
RESIDUAL_COLUMNS = tuple(Column(f"Res-{depth}", str(depth)) for depth in DEPTHS)
VARIANTS_MARGIN = 0.5  # percentage points; slightly above the largest difference between variants in tables 3 and 4
# Replacements for the data sets at the smoke scale: nothing is downloaded, and a run takes seconds.
STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "epochs": {"data": "synthetic:tiny10", "epochs": 2, "schedule.drops": [2], "batch_size": 16, "log_every": 1},
    "cifar10": {"data": "synthetic:tiny10", "steps": 3, "batch_size": 4, "log_every": 1},
    "cifar100": {"data": "synthetic:tiny100", "steps": 3, "batch_size": 4, "log_every": 1},
}
DEPARTURES = (
    "All methods start from the same weights, initialised as the paper states for each network. In the authors' code "
    "the initialiser skips the layers of some methods, and the BN scales of VGG-E and Inception are drawn uniformly "
    "from (0, 1) instead of starting at 1; `--only init=authors` follows the code.",
    "Images are augmented as in the authors' code: reflection padding, one crop for a whole batch, half of each "
    "batch flipped. The paper follows He et al., who pad with zeros and crop each image separately.",
    "The momentum buffer is reset to zero when the learning rate drops, as in the authors' code; the paper does not "
    "mention this.",
    "The reported error is that after the last epoch. This is our reading: the paper says 'test errors after training' "
    "for VGG-E only.",
)
RESIDUAL_DEPARTURES = (
    *DEPARTURES,
    "The paper states that it follows 'exactly the same protocol' as He et al.: 64,000 iterations (164 epochs) with "
    "drops at 32,000 and 48,000, and for 110 layers a warm-up at learning rate 0.01 until the training error is below "
    "80 %. The authors' code, which we follow, trains for 160 epochs (62,400 iterations) with drops at epochs 80 and "
    "120 (iterations 31,200 and 46,800) and no warm-up.",
)


def both_sets(scale: Scale) -> tuple[Axis, ...]:
    """Return the axes of tables 1 and 2: method by data set."""
    return (METHODS, Axis("data", ("cifar10", "cifar100"), "column"), INIT)


def on_cifar(
    labels: Labels, scale: Scale, *, network: str, data: str, lr: float, short: Mapping[str, Any], stand_in: str = ""
) -> Mapping[str, Any]:
    """Return the overrides of a run: the network's recipe, changed by `short` or by a smoke-scale replacement."""
    shared = {"model": network, "method": labels["method"], "init": labels["init"], "lr": lr}
    if scale == "smoke":
        return {**shared, **STAND_INS[stand_in or data]}
    return {**shared, "data": data, **(short if scale == "short" else {})}


def residual_claims(
    table: str, note: str, contradicted: Mapping[str, tuple[tuple[str, str], ...]], remarks: Mapping[str, str]
) -> tuple[Claim, ...]:
    """Return the four claims that the paper makes for each of tables 3 and 4."""

    def claim(kind: str, quote: str, words: str, criterion: Better | Grows | Alike | MostlyBest) -> Claim:
        return Claim(
            *(f"{table}-{kind}", quote, words, criterion, contradicted.get(kind, ()), remarks.get(kind, "")),
            note=note if kind == "better" else "",
        )

    return (
        claim(
            "better",
            "our methods consistently achieve better performance when using different depths",
            "the test error is lower than that of Normal and WN",
            Better(OURS, BASELINES),
        ),
        claim(
            "grows",
            "with the depth increasing, our methods obtain more performance gains",
            "the gain over Normal is larger in the deepest network than in the shallowest",
            Grows(OURS, "normal"),
        ),
        claim(
            "alike",
            "there is no significant difference among the performance of different norm projection methods",
            f"the three variants differ by less than {VARIANTS_MARGIN:g} points",
            Alike(OURS, VARIANTS_MARGIN),
        ),
        claim(
            "epoch",
            "`PBWN-Epoch' works the best for most cases",
            "PBWN-Epoch has the lowest mean of the three in more than half of the columns",
            MostlyBest("pbwn-epoch", OURS),
        ),
    )
