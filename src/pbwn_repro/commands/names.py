"""The names that a shell completes: read from source files, because importing them takes seconds; a test compares."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pbwn_repro.errors import UnknownSetError, UsageError, listed

SUITE = Path(__file__).parents[1]

Completion = Callable[[str], list[str]]


def completing(*names: str, also: Callable[[], tuple[str, ...]] = tuple) -> Completion:
    """What typer calls with the word so far; `also` finds more names when they are needed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in (*names, *also()) if name.startswith(incomplete)]

    return complete


def networks() -> tuple[str, ...]:
    """The `members` of every family of networks."""
    files = sorted((SUITE / "models").glob("*.py"))
    return tuple(name for file in files for found in _assigned(file, "FAMILIES") for name in _members(found))


def methods() -> tuple[str, ...]:
    """The keys of every file's registry of methods."""
    files = sorted((SUITE / "methods").glob("*.py"))
    registries = [found for file in files for found in _assigned(file, "METHODS") if isinstance(found, ast.Dict)]
    return tuple(ast.literal_eval(key) for registry in registries for key in registry.keys if key is not None)


def artefacts() -> tuple[str, ...]:
    """The paper's tables and figures, which constants such as TABLE_3 hold, and then our own experiments."""
    files = sorted((SUITE / "catalog").glob("*.py"))
    defined = [assignment for file in files for assignment in _assignments(file)]
    numbered = {_in_words(constant) for constant, _ in defined if re.fullmatch(r"[A-Z]+_\d+[A-Z]?", constant)}
    others = {name for _, value in defined for name in _name_of_artefact(value)} - numbered - {"demo"}
    return (*sorted(numbered), *sorted(others))


def check_artefact(name: str) -> None:
    """Raise for a name that no table, figure or experiment has, before imports that take seconds."""
    known = artefacts()
    if name not in (*known, "demo"):
        raise UsageError(f"unknown table, figure or experiment {name!r}: {listed(name, known)}")


def check_data_set(name: str) -> None:
    """Raise for a name that is neither that of a set nor of the form KIND:PLACE, before imports that take seconds."""
    known = ("digits", *sets(), "sentences", "imagenet")
    if name not in known and ":" not in name and not name.startswith("synthetic-"):
        forms = ("folder:PATH", "hf:NAME_OR_PATH", "text:FILE", "synthetic:NAME")
        choices = listed(name, (*known, *forms))
        raise UnknownSetError(f"unknown data set {name!r}: {choices}. `pbwn data list` describes them")


def sets() -> tuple[str, ...]:
    """The published sets and texts."""
    known = (("published.py", "KNOWN_SETS"), ("text.py", "KNOWN_TEXTS"))
    found = [value for file, name in known for value in _assigned(SUITE / "data" / file, name)]
    listed = [next(node for node in ast.walk(value) if isinstance(node, ast.Tuple)) for value in found]
    return tuple(_in_words(each.id) for names in listed for each in names.elts if isinstance(each, ast.Name))


def data_sets() -> tuple[str, ...]:
    """The published sets, and those that are embedded."""
    return ("digits", "sentences", *sets())


def _in_words(constant: str) -> str:
    return constant.lower().replace("_", "-")


def _name_of_artefact(value: ast.AST) -> Iterator[str]:
    """The name that an artefact is made with; several in one value where they are made together."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Artefact"):
            yield from (ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg == "name")


def _members(families: ast.AST) -> Iterator[str]:
    for node in ast.walk(families):
        if isinstance(node, ast.keyword) and node.arg == "members":
            yield from ast.literal_eval(node.value)


def _assigned(file: Path, name: str) -> Iterator[Any]:
    """What is assigned to a name in a module."""
    return (value for target, value in _assignments(file) if target == name)


def _assignments(file: Path) -> Iterator[tuple[str, Any]]:
    """The names that a module assigns, and what to each."""
    for node in ast.parse(file.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and hasattr(node, "value"):
                yield target.id, node.value
