"""From what a user calls a model to the model: a network of the suite, or anything that Python can import."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from pbwn_repro import models

HOW = "write MODULE:CALLABLE, such as mypackage.models:build, or the name of a network"


def load_model(target: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The model that `target` names: a network of the paper, or `module:name` of a model or of what returns one.

    The current folder can be imported from. Every mistake is a ValueError that says what to change.
    """
    if ":" not in target:
        return _network(target, arguments)
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise ValueError(f"{target!r} names no model: {HOW}")
    found: Any = _import(module_name)
    for name in path.split("."):
        found = _attribute(found, name, module_name)
    return _model(target, found, arguments)


def _network(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        models.scheme(name)
    except ValueError as error:
        raise ValueError(f"{error}. For a model of your own, {HOW}") from None
    try:
        return models.build(name, **arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be built: {error}") from error


def _import(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(
                f"there is no module {error.name!r}: install it, or start in the folder that holds it (this is {here})"
            ) from None
        raise ValueError(f"module {name!r} needs {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ValueError(
            f"module {name!r} cannot be imported ({said}): mend it, and keep scripts from running"
        ) from error


def _attribute(holder: Any, name: str, module_name: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError:
        public = [each for each in dir(holder) if not each.startswith("_")]
        nearest = difflib.get_close_matches(name, public, n=1)
        raise ValueError(
            f"module {module_name!r} has no {name!r}" + (f": did you mean {nearest[0]!r}?" if nearest else "")
        ) from None


def _model(target: str, found: Any, arguments: Mapping[str, Any]) -> nn.Module:
    if isinstance(found, nn.Module):
        if arguments:
            raise ValueError(f"{target} is a model already: it takes no --set {', '.join(arguments)}")
        return found
    if not callable(found):
        raise ValueError(f"{target} is of type {type(found).__name__}: a model, or what returns one, is needed")
    try:
        made = found(**arguments)
    except (Exception, SystemExit) as error:
        hint = ". Arguments are given as --set NAME=VALUE" if isinstance(error, TypeError) else ""
        raise ValueError(
            f"{target}({', '.join(f'{name}={value!r}' for name, value in arguments.items())}) failed with "
            f"{type(error).__name__}: {error}{hint}"
        ) from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"{target} returned something of type {type(made).__name__}: a torch.nn.Module is needed")
    return made
