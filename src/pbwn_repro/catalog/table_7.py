"""Table 7: residual networks with 34 layers on ImageNet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import Axis, Labels, Scale, TrainedArtefact
from pbwn_repro.catalog.scales import shortened

NETWORKS = ("imagenet-resnet-34", "imagenet-preresnet-34")


def _axes(scale: Scale) -> tuple[Axis, ...]:
    return (
        Axis("method", ("normal", "pbwn-epoch"), "row"),
        Axis("network", NETWORKS, "column"),
        Axis("lr", (0.1, 0.05) if scale == "paper" else (0.1,), "searched"),
    )


def _wishes(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    shared = {"model": labels["network"], "method": labels["method"], "lr": labels["lr"]}
    if scale == "smoke":
        small = {"batch_size": 4, "log_every": 1}
        return {**shared, "data": "synthetic:tiny100", "steps": 2, **small}
    return {**shared, **(shortened(str(labels["network"]), 5) if scale == "short" else {})}


TABLE_7 = TrainedArtefact(
    name="table-7",
    title="ResNet-34 on ImageNet",
    about="Top-1 and top-5 error of a residual network with 34 layers and of its pre-activation version, with and "
    "without PBWN-Epoch.",
    protocol="SGD with Nesterov momentum 0.9, weight decay 0.0001, batch 64, learning rate falling exponentially to a "
    "hundredth over 50 epochs; initial rates 0.05 and 0.1, the best shown; best epoch on the centre crop.",
    departures=(
        "Nesterov's momentum and the choice of the best epoch are those of the authors' code; the paper names neither.",
        "Pictures are resized by Pillow's bicubic filter, which averages when it shrinks; Torch7's does not.",
        "The paper does not say how many seeds it used: one here, as the cost suggests. To decide its claims takes two "
        "(`--seeds 2`).",
    ),
    axes=_axes,
    wishes=_wishes,
    seeds={"smoke": 1, "short": 1, "paper": 1},
    value="best_test_error",
)
