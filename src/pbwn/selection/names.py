"""The names of a model's modules and parameters, without the prefixes of wrappers, and patterns over them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import translate
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

_TRANSPARENT = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_original_module"}
)
_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)
_MOST_NAMES = 64  # of one module


class NamedModule(NamedTuple):
    """A module under one of its names."""

    name: str
    module: nn.Module


class NamedParameter(NamedTuple):
    """A parameter under one of its names, and the module that holds it."""

    name: str
    module: nn.Module
    attribute: str
    parameter: nn.Parameter


def named_modules(model: nn.Module) -> Iterator[NamedModule]:
    """Yield every module under each of its names, in order of registration, up to a number of names per module.

    Modules that share modules that share modules have more names than could be listed.
    """
    return _named_below(model, "", (), Counter())


def _named_below(
    module: nn.Module, name: str, holders: tuple[nn.Module, ...], visits: Counter[nn.Module]
) -> Iterator[NamedModule]:
    if module in holders or visits[module] == _MOST_NAMES:  # a module that holds itself, or has too many names
        return
    visits[module] += 1
    yield NamedModule(name, module)
    for child_name, child in module._modules.items():
        is_wrapped = child_name in _TRANSPARENT or (child_name == "module" and isinstance(module, _WRAPPERS))
        if child is not None:
            own_name = name if is_wrapped else f"{name}.{child_name}" if name else child_name
            yield from _named_below(child, own_name, (*holders, module), visits)


def named_parameters(model: nn.Module) -> Iterator[NamedParameter]:
    """Yield every parameter under each of its names; a tied one several times."""
    for prefix, module in named_modules(model):
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                yield NamedParameter(f"{prefix}.{attribute}" if prefix else attribute, module, attribute, parameter)


def by_object(parameters: Iterable[NamedParameter]) -> list[list[NamedParameter]]:
    """Group names by parameter."""
    found: dict[int, list[NamedParameter]] = {}
    for named in parameters:
        found.setdefault(id(named.parameter), []).append(named)
    return list(found.values())


def unwrap(model: nn.Module) -> nn.Module:
    """Return the user's own model inside compile, data-parallel and averaging wrappers."""
    return [module for name, module in named_modules(model) if not name][-1]


def is_scripted(module: nn.Module) -> bool:
    """Whether a module was scripted or traced by `torch.jit`; False in a torch without it."""
    return isinstance(module, getattr(getattr(torch, "jit", None), "ScriptModule", ()))


def layer_name(module: nn.Module) -> str:
    """Return the name of a module's type as its author wrote it, without the prefixes that torch adds.

    >>> layer_name(nn.MultiheadAttention(4, 2).out_proj)
    'Linear'
    >>> layer_name(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    'Linear'
    """
    if is_scripted(module):
        return str(getattr(module, "original_name", type(module).__name__))
    names = [kind.__name__ for kind in type(module).__mro__]
    for prefix in ("NonDynamicallyQuantizable", "Parametrized", "FSDP"):
        if names[0].removeprefix(prefix) in names[1:]:
            return names[0].removeprefix(prefix)
    return names[0]


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern, or a literal name, matches a parameter or a module that holds it; `*` spans dots.

    Braces are read as the tables write them, so that what is printed can be used as a pattern.

    >>> matches("layer1", "layer1.0.conv.weight"), matches("*.gate", "mlp.gate.weight")
    (True, True)
    >>> matches("gate", "mlp.gate.weight"), matches("blocks.{0..11}.{q, v}", "blocks.10.q.weight")
    (False, True)
    """
    return name == pattern or name.startswith(f"{pattern}.") or _expression(pattern).match(name) is not None


@lru_cache(maxsize=1024)
def _expression(pattern: str) -> re.Pattern[str]:
    """Compile a pattern to match what it names and, after a dot, all that this holds."""
    pieces = re.split(r"\{([^{}]*)\}", pattern)  # every second piece was in braces
    body = "".join(_choice(piece) if index % 2 else _glob(piece) for index, piece in enumerate(pieces))
    return re.compile(rf"(?s:{body})(?:\..*)?\Z")


def _glob(pattern: str) -> str:
    return translate(pattern).removeprefix("(?s:").rpartition(")")[0]


def _choice(inside: str) -> str:
    """Translate the inside of braces: names, and ranges of indices such as 0..11."""
    choices: list[str] = []
    for item in inside.split(","):
        ends = re.fullmatch(r"(\d+)\.\.(\d+)", item.strip())
        choices += map(str, range(int(ends[1]), int(ends[2]) + 1)) if ends else [_glob(item.strip())]
    return f"(?:{'|'.join(choices)})"


def suggestion(name: str, known: Sequence[str]) -> str:
    """Suggest the closest of the known names and of the modules that hold them, or list some.

    >>> suggestion("blok*", ["head.weight", "blocks.0.fc.weight", "blocks.1.fc.weight"])
    "did you mean 'blocks'?"
    """
    paths = [path.split(".") for path in known]
    names = dict.fromkeys(".".join(path[:end]) for path in paths for end in range(1, len(path) + 1))
    outer_first = sorted(names, key=lambda path: path.count("."))
    close = get_close_matches(name, outer_first, n=3, cutoff=0.5)
    prefixes = tuple(f"{match}." for match in close)
    close = [match for index, match in enumerate(close) if not match.startswith(prefixes[:index])]
    if close:
        return "did you mean " + " or ".join(repr(match) for match in close) + "?"
    return "there is " + ", ".join(map(repr, outer_first[:8])) + (", ..." if len(outer_first) > 8 else "")


def check_word(argument: str, value: object, *allowed: str) -> None:
    """Refuse a value that is none of the words allowed for an argument."""
    if value not in allowed:
        *others, last = (f'"{word}"' for word in allowed)
        raise ValueError(f"{argument} must be {', '.join(others)} or {last}; got {value!r}")
