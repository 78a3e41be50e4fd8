"""What the tables on CIFAR have in common: the five methods, the protocol, and where it departs from the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pbwn_repro.catalog.artefact import INIT, Axis, Labels, Scale
from pbwn_repro.catalog.scales import shortened

METHODS = Axis("method", ("normal", "wn", "pbwn-riem", "pbwn", "pbwn-epoch"), "row")
# What stands in for a set at the smoke scale: nothing is downloaded, and a run takes seconds.
STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "epochs": {"data": "synthetic:tiny10", "epochs": 2, "schedule.drops": [2], "batch_size": 16, "log_every": 1},
    "cifar10": {"data": "synthetic:tiny10", "steps": 3, "batch_size": 4, "log_every": 1},
    "cifar100": {"data": "synthetic:tiny100", "steps": 3, "batch_size": 4, "log_every": 1},
}
DEPARTURES = (
    "All methods of a network start from the same weights, initialised as the paper states for it. In the authors' "
    "code the initialiser passes over the layers of some methods, and the scales of BN in VGG-E and Inception start "
    "uniform in (0, 1), here at 1; `--only init=authors` does as the code does.",
    "Pictures are augmented as in the authors' code: padded by reflection, one crop for a whole batch, half of each "
    "batch flipped. The paper speaks of zero padding and of a crop for each picture.",
    "The momentum is set to zero when the rate drops, as in the authors' code; the paper does not say so.",
)


def both_sets(scale: Scale) -> tuple[Axis, ...]:
    """Method by data set: the axes of tables 1 and 2."""
    return (METHODS, Axis("data", ("cifar10", "cifar100"), "column"), INIT)


def on_both_sets(network: str, *, short_epochs: int) -> Callable[[Labels, Scale], Mapping[str, Any]]:
    """The configurations of a network's runs on both sets."""

    def wishes(labels: Labels, scale: Scale) -> Mapping[str, Any]:
        return on_cifar(labels, scale, network=network, data=str(labels["data"]), short_epochs=short_epochs)

    return wishes


def on_cifar(
    labels: Labels, scale: Scale, *, network: str, data: str, short_epochs: int, stand_in: str | None = None
) -> Mapping[str, Any]:
    """The configuration of a run on CIFAR: the network's recipe, shortened at the short scale, replaced at smoke."""
    shared = {"model": network, "method": labels["method"], "init": labels["init"]}
    if scale == "smoke":
        return {**shared, **STAND_INS[stand_in or data]}
    return {**shared, "data": data, **(shortened(network, short_epochs) if scale == "short" else {})}
