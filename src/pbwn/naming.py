"""The names of a model's modules and parameters, without those that wrappers put in front."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

_TRANSPARENT = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_original_module"}
)
_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)


class NamedModule(NamedTuple):
    """A module under one of its names, and the module that holds it."""

    name: str
    module: nn.Module
    parent: nn.Module | None


class NamedParameter(NamedTuple):
    """A parameter under one of its names, and the module that holds it."""

    name: str
    module: nn.Module
    attribute: str
    parameter: nn.Parameter


def named_modules(model: nn.Module, name: str = "", holders: tuple[nn.Module, ...] = ()) -> Iterator[NamedModule]:
    """Every module under every name it can be reached by, in order of registration."""
    yield NamedModule(name, model, holders[-1] if holders else None)
    for child_name, child in model._modules.items():
        if child is None or child is model or child in holders:  # a module that holds itself ends here
            continue
        if child_name in _TRANSPARENT or (child_name == "module" and isinstance(model, _WRAPPERS)):
            yield from named_modules(child, name, (*holders, model))
        else:
            yield from named_modules(child, f"{name}.{child_name}" if name else child_name, (*holders, model))


def named_parameters(model: nn.Module) -> Iterator[NamedParameter]:
    """Every parameter under every name it can be reached by; a tied one comes several times."""
    for prefix, module, _ in named_modules(model):
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                yield NamedParameter(f"{prefix}.{attribute}" if prefix else attribute, module, attribute, parameter)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own model inside compile, data-parallel and averaging wrappers."""
    innermost = model
    for name, module, _ in named_modules(model):
        if name:
            break
        innermost = module
    return innermost


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern, or a name as it is, names a parameter or a module that holds it; `*` spans dots.

    >>> matches("layer1", "layer1.0.conv.weight"), matches("*.gate", "mlp.gate.weight")
    (True, True)
    >>> matches("gate", "mlp.gate.weight")
    False
    """
    parts = name.split(".")
    return any(is_name(pattern, ".".join(parts[:length])) for length in range(1, len(parts) + 1))


def is_name(pattern: str, name: str) -> bool:
    """Whether a pattern, or the name as it is, names exactly this."""
    return name == pattern or fnmatchcase(name, pattern)


def suggestion(name: str, known: list[str]) -> str:
    """Name the closest of the known names, or some of them."""
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(match) for match in close) + "?"
    return "there is " + ", ".join(repr(match) for match in known[:8]) + (", ..." if len(known) > 8 else "")
