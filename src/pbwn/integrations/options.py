"""The arguments that a callback passes to `attach` when training starts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pbwn.norm_projection import attach
from pbwn.selection.names import suggestion

_NAMES = [
    parameter.name
    for parameter in inspect.signature(attach).parameters.values()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
]


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check that options are arguments of `attach`, before training starts, and return them."""
    for name in options:
        if name not in _NAMES:
            raise TypeError(f"ProjectionCallback has no argument {name!r}: {suggestion(name, _NAMES)}")
    return dict(options)


def check_name(name: object) -> str:
    """Check that the callback's name can be part of a file name, and return it."""
    if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
        raise ValueError(f"name must be a word of letters, digits, '-' and '_', such as 'encoder'; got {name!r}")
    return name
