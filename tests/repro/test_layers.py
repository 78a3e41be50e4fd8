"""Imports run one way: the suite on top of the library, and each part of the suite on those below it."""

import ast
from pathlib import Path

import pbwn
import pbwn_repro

LIBRARY, SUITE = (Path(package.__file__).parent for package in (pbwn, pbwn_repro))
# Bottom to top: a part may import itself and those before it.
PARTS = [
    *("errors", "importing", "data", "models", "methods", "metrics", "config", "tasks", "engine", "runs", "bench"),
    *("catalog", "planning", "report", "doctor", "exit_codes", "commands", "cli"),
]


def imported_by(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ([f"{node.module}.{alias.name}" for alias in node.names])
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_library_knows_nothing_of_the_suite():
    for path in LIBRARY.rglob("*.py"):
        assert not [name for name in imported_by(path) if name.startswith("pbwn_repro")], path


def test_each_part_of_the_suite_imports_from_those_below_alone():
    assert {path.stem for path in SUITE.iterdir() if not path.name.startswith("__")} == set(PARTS)
    for position, part in enumerate(PARTS):
        files = [SUITE / f"{part}.py"] if (SUITE / f"{part}.py").exists() else (SUITE / part).rglob("*.py")
        for path in files:
            for name in imported_by(path):
                if name.startswith("pbwn_repro."):
                    assert name.split(".")[1] in PARTS[: position + 1], f"{path.name} imports {name}"
