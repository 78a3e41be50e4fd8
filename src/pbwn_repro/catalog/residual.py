"""What tables 3 and 4 have in common: residual networks of 20 to 110 layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pbwn_repro.catalog.artefact import INIT, UNIT_START, Axis, Control, Labels, Scale
from pbwn_repro.catalog.cifar import METHODS, on_cifar

# He's start has rows of norm 1.4 on average, which halves the effective rate against the sphere.
TWICE_THE_RATE = Control("normal-lr-0.2", "Normal, learning rate 0.2", "normal", {"lr": 0.2})
ROWS = replace(METHODS, controls=(TWICE_THE_RATE, UNIT_START))
DEPTHS = (20, 32, 44, 56, 110)
PROTOCOL = (
    "SGD with momentum 0.9, weight decay 0.0001, batch 128, learning rate 0.1 divided by 10 at epochs 80 and 120 of "
    "160; five seeds, error after the last epoch."
)


def axes(scale: Scale) -> tuple[Axis, ...]:
    """Method by depth."""
    return (ROWS, Axis("depth", DEPTHS[:2] if scale == "smoke" else DEPTHS, "column"), INIT)


def wishes(data: str, stand_in: str | None = None) -> Callable[[Labels, Scale], Mapping[str, Any]]:
    """The configurations of the runs on one of the CIFAR sets."""

    def wishes_of(labels: Labels, scale: Scale) -> Mapping[str, Any]:
        network = f"resnet-{labels['depth']}"
        return on_cifar(labels, scale, network=network, data=data, short_epochs=8, stand_in=stand_in)

    return wishes_of
