"""The names that a shell completes: read from source files, because importing them takes seconds; a test compares."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SUITE = Path(__file__).parents[1]
ARTEFACTS = (
    *("figure-1", "figure-2a", "figure-2b", "figure-3a", "figure-3b"),
    *("table-1", "table-2", "table-3", "table-4", "table-5", "table-6", "table-7", "table-8"),
)
SETS = ("mnist", "fashion-mnist", "cifar10", "cifar100", "svhn")

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
    """The keys of the registry of methods."""
    [registry] = _assigned(SUITE / "methods" / "__init__.py", "METHODS")
    return tuple(ast.literal_eval(key) for key in registry.keys)


def _members(families: ast.AST) -> Iterator[str]:
    for node in ast.walk(families):
        if isinstance(node, ast.keyword) and node.arg == "members":
            yield from ast.literal_eval(node.value)


def _assigned(file: Path, name: str) -> Iterator[Any]:
    """What is assigned to a name in a module."""
    for node in ast.parse(file.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets) and hasattr(node, "value"):
            yield node.value
