"""The networks, each in a file with its recipe and what is special about it: a file that is here is known.

`find` looks one up by name, also one of the user's own (MODULE:CALLABLE), and `build` makes it.
"""

import pkgutil
import re
from importlib import import_module
from typing import Any

from torch import nn

from pbwn_repro.errors import UsageError, listed
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
    for found in pkgutil.iter_modules(__path__)
    for family in getattr(import_module(f"{__name__}.{found.name}"), "FAMILIES", ())
)


def names() -> tuple[str, ...]:
    """The networks by name; resnet-<6n+2> and wrn-<6n+4>-<width> build too."""
    return tuple(name for family in FAMILIES for name in family.members)


def find(name: str) -> Network:
    """Look up a network, or a model of the user's own; an error lists what there is."""
    if is_own(name):
        return OwnModel(name)
    for family in FAMILIES:
        if match := re.fullmatch(family.pattern, name):
            return Network(name, family, tuple(map(int, match.groups())))
    general = "also resnet-<6n+2> and wrn-<6n+4>-<width>"
    raise UsageError(f"unknown model {name!r}: {listed(name, names())}, {general}")


def recipe(name: str) -> dict[str, Any]:
    """The fields of a configuration that the network's experiment has; method and seed are open."""
    return find(name).recipe


def build(name: str, *, init: str | Scheme | None = "paper", **options: Any) -> nn.Module:
    """The network `name`, initialised from torch's default generator.

    What is not given, or None, takes the value of the network's experiment in the paper. `options` are what the data
    tell (`num_classes`, `in_channels`, `image_size`, `context`) and the network's own.

    >>> sum(parameter.numel() for parameter in build("resnet-20").parameters())
    269722
    """
    return find(name).build(init=init, **options)
