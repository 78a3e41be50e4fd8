"""The names that a shell completes; written down because the catalog takes seconds to load, and compared by a test."""

from __future__ import annotations

from collections.abc import Callable

ARTEFACTS = (
    *("figure-1", "figure-2a", "figure-2b", "figure-3a", "figure-3b"),
    *("table-1", "table-2", "table-3", "table-4", "table-5", "table-6", "table-7", "table-8"),
)
METHODS = ("normal", "wn", "pbwn-riem", "pbwn", "pbwn-epoch", "pbwn-riem-nxn", "unit-start", "max-norm")
NETWORKS = (
    *("mlp", "inception", "vgg-e", "resnet-20", "resnet-32", "resnet-44", "resnet-56", "resnet-110", "wrn-16-4"),
    *(f"imagenet-{kind}-{depth}" for kind in ("resnet", "preresnet") for depth in (18, 34, 50)),
    "ladder",
)
SETS = ("mnist", "fashion-mnist", "cifar10", "cifar100", "svhn")


Completion = Callable[[str], list[str]]


def completing(*names: str) -> Completion:
    """What typer calls with the word so far."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete
