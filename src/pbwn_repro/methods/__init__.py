"""The compared methods: each changes a model, chooses its optimizer, and attaches a projection to it.

The `METHODS` of every module of this package are registered. A custom method is a class derived from `Method` in any
importable module: `pbwn train --method mypackage.mymethods:Mine`.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from importlib import import_module

import pbwn
from pbwn_repro.errors import UsageError, suggest
from pbwn_repro.importing import import_object, is_own, user_location
from pbwn_repro.methods.method import Decay, Method, OptimizerSettings
from pbwn_repro.methods.projections import Projection, ProjectionByProducts, UnitStart
from pbwn_repro.methods.reparametrizations import WeightNormalization

__all__ = [
    "METHODS",
    "OWN_EXAMPLE",
    "Decay",
    "Method",
    "OptimizerSettings",
    "Projection",
    "ProjectionByProducts",
    "UnitStart",
    "WeightNormalization",
    "check_name",
    "method",
    "names",
    "title",
]

METHODS: Mapping[str, Method] = {
    name: registered
    for module in pkgutil.iter_modules(__path__)
    for name, registered in getattr(import_module(f"{__name__}.{module.name}"), "METHODS", {}).items()
}
_INTERVAL = re.compile(r"pbwn-t([1-9]\d*)")
_LIMIT = re.compile(r"max-norm-(\d+(?:\.\d+)?)")
OWN_EXAMPLE = "MODULE:CLASS, such as mypackage.mymethods:Mine"


def names() -> tuple[str, ...]:
    """Return the registered names; pbwn-t<k> and max-norm-<c> are valid too, for any interval k and limit c."""
    return tuple(METHODS)


def check_name(name: str) -> None:
    """Raise an error if no method has this name; a custom method (MODULE:CLASS) is not imported."""
    if not is_own(name):
        method(name)


def title(name: str) -> str:
    """Return the title of a method in tables: for a custom method its class name, without importing it."""
    return name.rpartition(":")[2] if is_own(name) else method(name).title


def method(name: str) -> Method:
    """Look up a method by name: pbwn-t<k> projects after every k steps, max-norm-<c> keeps norms at most c.

    >>> method("pbwn-t20").title
    'PBWN-T20'
    >>> method("max-norm-0.5").constraint
    MaxNorm(limit=0.5)
    """
    if is_own(name):
        return _own(name)
    interval = _INTERVAL.fullmatch(name)
    if interval:
        return Projection(f"PBWN-T{interval[1]}", pbwn.UnitNorm(), every=int(interval[1]))
    limit = _LIMIT.fullmatch(name)
    if limit and float(limit[1]) > 0:
        return Projection(f"Max-norm {limit[1]}", pbwn.MaxNorm(float(limit[1])))
    if name not in METHODS:
        raise UsageError(
            f"unknown method {name!r}: {suggest(name, METHODS)}, pbwn-t<k> such as pbwn-t20, "
            f"and max-norm-<c> such as max-norm-1.5. For a method of your own, write {OWN_EXAMPLE}"
        )
    return METHODS[name]


def _own(name: str) -> Method:
    found = import_object(name, kind="method", example=OWN_EXAMPLE)
    if isinstance(found, type) and issubclass(found, Method):
        try:
            found = found()
        except Exception as error:
            raise UsageError(f"{name}() failed with {type(error).__name__}: {error}{user_location(error)}") from error
    if not isinstance(found, Method):
        raise UsageError(
            f"{name} is {found!r}: a class derived from pbwn_repro.methods.Method, or an instance of one, is needed"
        )
    return found
