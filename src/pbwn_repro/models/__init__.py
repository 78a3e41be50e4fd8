"""The networks, each in a file with its recipe and special cases; every file in this package is registered.

`find` looks up a network by name, or a user's own model (MODULE:CALLABLE), and `build` constructs it.
"""

import pkgutil
import re
from importlib import import_module
from typing import Any

from torch import nn

from pbwn_repro.errors import UsageError, suggest
from pbwn_repro.importing import is_own
from pbwn_repro.models.family import Family, Init, Layers, Network, OwnModel, Scope, TaskName
from pbwn_repro.models.initialisation import Scheme, initialise
from pbwn_repro.models.ladder import Ladder

__all__ = [
    "Family",
    "Init",
    "Ladder",
    "Layers",
    "Network",
    "OwnModel",
    "Scheme",
    "Scope",
    "TaskName",
    "build",
    "find",
    "initialise",
    "names",
    "recipe",
]

FAMILIES: tuple[Family, ...] = tuple(
    family
    for module in pkgutil.iter_modules(__path__)
    for family in getattr(import_module(f"{__name__}.{module.name}"), "FAMILIES", ())
)


def names() -> tuple[str, ...]:
    """Return the names of the networks; resnet-<6n+2> and wrn-<6n+4>-<width> can be built too."""
    return tuple(name for family in FAMILIES for name in family.members)


def find(name: str) -> Network:
    """Look up a network, or a user's own model, by name; the error for an unknown name lists the choices."""
    if is_own(name):
        return OwnModel(name)
    for family in FAMILIES:
        if match := re.fullmatch(family.pattern, name):
            return Network(name, family, tuple(map(int, match.groups())))
    general = "or any resnet-<6n+2> or wrn-<6n+4>-<width>"
    raise UsageError(f"unknown model {name!r}: {suggest(name, names())}, {general}")


def recipe(name: str) -> dict[str, Any]:
    """Return the configuration fields of the network's experiment, without method and seed."""
    return find(name).recipe


def build(name: str, *, init: str | Scheme | None = "paper", **options: Any) -> nn.Module:
    """Build the network `name`, initialised from torch's default generator.

    An option that is omitted or None takes its value from the network's experiment in the paper. `options` are the
    arguments that follow from the data (`num_classes`, `in_channels`, `image_size`, `context`) and the network's own.

    >>> sum(parameter.numel() for parameter in build("resnet-20").parameters())
    269722
    """
    return find(name).build(init=init, **options)
