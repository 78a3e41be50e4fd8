"""The names that the shell completes, parsed from source files because importing those takes seconds.

A test compares them with the registries.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pbwn_repro.errors import UnknownSetError, UsageError, suggest

SUITE = Path(__file__).parents[1]

Completion = Callable[[str], list[str]]


def completing(*names: str, also: Callable[[], tuple[str, ...]] = tuple) -> Completion:
    """Return a completion function for typer; `also` is called for further names when they are needed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in (*names, *also()) if name.startswith(incomplete)]

    return complete


def networks() -> tuple[str, ...]:
    """Return the `members` of every model family."""
    files = sorted((SUITE / "models").glob("*.py"))
    return tuple(name for file in files for found in _assigned(file, "FAMILIES") for name in _members(found))


def methods() -> tuple[str, ...]:
    """Return the keys of the method registry in each file."""
    files = sorted((SUITE / "methods").glob("*.py"))
    registries = [found for file in files for found in _assigned(file, "METHODS") if isinstance(found, ast.Dict)]
    return tuple(ast.literal_eval(key) for registry in registries for key in registry.keys if key is not None)


def artefacts() -> tuple[str, ...]:
    """Return the paper's tables and figures, from constants such as TABLE_3, and then our own experiments."""
    files = sorted((SUITE / "catalog").glob("*.py"))
    defined = [assignment for file in files for assignment in _assignments(file)]
    numbered = {_as_name(constant) for constant, _ in defined if re.fullmatch(r"[A-Z]+_\d+[A-Z]?", constant)}
    others = {name for _, value in defined for name in _name_of_artefact(value)} - numbered - {"demo"}
    return (*sorted(numbered), *sorted(others))


def check_artefact(name: str) -> None:
    """Raise for an unknown table, figure or experiment, before imports that take seconds."""
    known = artefacts()
    if name not in (*known, "demo"):
        raise UsageError(f"unknown table, figure or experiment {name!r}: {suggest(name, known)}")


def check_data_set(name: str) -> None:
    """Raise for an unknown data set that is not of the form KIND:LOCATION, before imports that take seconds."""
    known = ("digits", *sets(), "sentences", "imagenet")
    if name not in known and ":" not in name and not name.startswith("synthetic-"):
        forms = ("folder:PATH", "hf:NAME_OR_PATH", "text:FILE", "synthetic:NAME")
        choices = suggest(name, (*known, *forms))
        raise UnknownSetError(f"unknown data set {name!r}: {choices}. `pbwn data list` describes them")


def sets() -> tuple[str, ...]:
    """Return the published image sets and texts."""
    known = (("published.py", "KNOWN_SETS"), ("text.py", "KNOWN_TEXTS"))
    values = [value for file, name in known for value in _assigned(SUITE / "data" / file, name)]
    tuples = [next(node for node in ast.walk(value) if isinstance(node, ast.Tuple)) for value in values]
    return tuple(_as_name(each.id) for names in tuples for each in names.elts if isinstance(each, ast.Name))


def data_sets() -> tuple[str, ...]:
    """Return the embedded and the published sets."""
    return ("digits", "sentences", *sets())


def _as_name(constant: str) -> str:
    return constant.lower().replace("_", "-")


def _name_of_artefact(value: ast.AST) -> Iterator[str]:
    """Yield the `name` argument of every artefact that is constructed in an expression."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Artefact"):
            yield from (ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg == "name")


def _members(families: ast.AST) -> Iterator[str]:
    for node in ast.walk(families):
        if isinstance(node, ast.keyword) and node.arg == "members":
            yield from ast.literal_eval(node.value)


def _assigned(file: Path, name: str) -> Iterator[Any]:
    """Yield the values assigned to a name in a module."""
    return (value for target, value in _assignments(file) if target == name)


def _assignments(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the names that a module assigns, each with its value."""
    for node in ast.parse(file.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and hasattr(node, "value"):
                yield target.id, node.value
