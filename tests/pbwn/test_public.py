"""The public surface, and that importing it stays light."""

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pbwn

LIBRARY = Path(pbwn.__file__).parent
# Bottom to top: each module may import those before it.
LAYERS = [
    "axes",
    "layout",
    "warning",
    "constraint",
    "functional",
    "forward",
    "paths.torch",
    "paths.dtensor",
    "selection.names",
    "selection.rules",
    "selection.table",
    "selection.trace",
    "selection.output_layer",
    "selection.weights",
    "selection.zeros",
    "selection.selector",
    "selection.reuse",
    "selection",
    "flops",
    "invariance",
    "paths.numba",
    "paths.compile",
    "paths.batch",
    "optimizer_hooks",
    "masters",
    "radii",
    "state",
    "certificate",
    "monitor",
    "batch_statistics",
    "driver",
    "norm_projection",
]
# On top of the library, beside each other; nothing in it imports them.
INTEGRATIONS = {
    "__init__": set(),
    "options": set(),
    "lightning": {"lightning", "pbwn.integrations.options"},
    "transformers": {"transformers", "pbwn.integrations.options"},
}
# What is imported only when it is used: the compiled path, and the monitor's plot.
OPTIONAL = {"paths.numba": {"numba", "numpy"}, "monitor": {"matplotlib"}}


def test_the_public_names_are_these():
    assert pbwn.__all__ == [
        "Axes",
        "Certificate",
        "Cost",
        "Invariance",
        "MaxNorm",
        "NormProjection",
        "Selection",
        "UnitNorm",
        "attach",
        "cost",
        "invariance",
        "project_",
        "register",
        "select",
    ]
    assert [name for name in dir(pbwn.NormProjection) if not name.startswith("_")] == [
        "backend",
        "check",
        "constraint",
        "detach",
        "every",
        "gradient",
        "load_state_dict",
        "model",
        "monitor",
        "project",
        "rebind",
        "selection",
        "state_dict",
        "step",
    ]


def test_the_arguments_of_attach_and_their_defaults_are_these():
    parameters = inspect.signature(pbwn.attach).parameters.values()
    assert {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} == {
        "every": 1,
        "gradient": "ordinary",
        "step": "plain",
        "constraint": pbwn.UnitNorm(1.0),
        "only": (),
        "also": (),
        "skip": (),
        "axes": None,
        "output_layer": "auto",
        "direction": "incoming",
        "per": "neuron",
        "selection": None,
        "initial": True,
        "follow": "auto",
        "state": None,
        "strict": False,
        "backend": "auto",
    }


NEW_MODULES = """
import sys, torch
before = set(sys.modules)
{statement}
roots = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(roots - set(sys.stdlib_module_names) - {{"torch"}}))
"""


def roots_imported_by(statement):
    program = NEW_MODULES.format(statement=statement)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_the_library_imports_torch_and_the_standard_library_alone():
    assert roots_imported_by("import pbwn") == ["pbwn"]


def test_the_test_above_can_fail():
    assert "hypothesis" in roots_imported_by("import pbwn, hypothesis")


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            if node.module in ("pbwn", "pbwn.paths", "pbwn.selection"):
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (name if name.partition(".")[2] in LAYERS else node.module for name in inside)
            else:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_modules_import_only_from_those_below():
    files = {layer: LIBRARY / f"{layer.replace('.', '/')}.py" for layer in LAYERS}
    files["selection"] = LIBRARY / "selection" / "__init__.py"
    found = {path for folder in ("", "paths/", "selection/") for path in LIBRARY.glob(f"{folder}*.py")}
    assert found == {LIBRARY / "__init__.py", LIBRARY / "paths" / "__init__.py", *files.values()}
    for position, layer in enumerate(LAYERS):
        for imported in imports_of(files[layer]):
            root, _, name = imported.partition(".")
            allowed = {"pbwn", "torch"} | OPTIONAL.get(layer, set()) | sys.stdlib_module_names
            assert root in allowed, f"{layer} imports {imported}"
            assert root != "pbwn" or name in LAYERS[:position], f"{layer} imports {imported}"


def test_each_integration_imports_the_library_and_its_own_framework_alone():
    assert {path.stem for path in (LIBRARY / "integrations").glob("*.py")} == set(INTEGRATIONS)
    for name, permitted in INTEGRATIONS.items():
        for imported in imports_of(LIBRARY / "integrations" / f"{name}.py"):
            root, _, below = imported.partition(".")
            allowed = {"torch"} | sys.stdlib_module_names
            assert {imported, root} & permitted or root in allowed or (root == "pbwn" and below in LAYERS), imported


HIDING = """
import sys
sys.modules["{framework}"] = None  # as if it were not installed
try:
    import pbwn.integrations.{framework}
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_an_integration_without_its_framework_names_the_extra(framework):
    program = HIDING.format(framework=framework)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"pip install 'pbwn[{framework}]'" in done.stdout


@pytest.mark.parametrize("layer", LAYERS)
def test_the_examples_in_docstrings_run(layer):
    module = importlib.import_module(f"pbwn.{layer}")
    names = {"torch": torch, "nn": nn}
    known = dict(importlib.import_module("pbwn.axes")._KNOWN)
    try:
        assert doctest.testmod(module, extraglobs=names).failed == 0
    finally:
        importlib.import_module("pbwn.axes")._KNOWN.clear()
        importlib.import_module("pbwn.axes")._KNOWN.update(known)
