"""What is installed, in which version, and whether it goes together."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from pbwn_repro.doctor.finding import Finding
from pbwn_repro.doctor.importing import Import

NEEDED = ("", "repro")  # the library's own requirements, and the suite's
OPTIONAL = {
    "fast": "a compiled projection on the CPU",
    "gpu": "one kernel launch on a GPU",
    "hf": "data sets from Hugging Face",
    "tensorboard": "event files of runs",
    "lightning": "the callback for Lightning",
    "transformers": "the callback for Transformers",
    "accelerate": "the projection under Accelerate",
    "cluster": "sweeps on a Ray cluster",
}


def installed(distribution: str = "pbwn") -> Iterator[Finding]:
    """Python, this package, what it needs, and what its extras need."""
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    try:
        declared = [Requirement(line) for line in requires(distribution) or []]
    except PackageNotFoundError:
        yield Finding("warn", distribution, "runs from a folder, not installed", "pip install -e '.[repro]'")
        return
    yield Finding("ok", distribution, version(distribution))
    for extra in NEEDED:
        yield from (_needed(requirement) for requirement in declared if _belongs(requirement, extra))
    for extra, purpose in OPTIONAL.items():
        belonging = [requirement for requirement in declared if _belongs(requirement, extra)]
        if belonging:
            yield _optional(extra, purpose, belonging)


def torchvision(importing: Import) -> Finding:
    """Whether torchvision can be imported beside this torch: it fails if it was built for another one."""
    found = f"{_version('torchvision') or 'of unknown version'} beside torch {_version('torch')}"
    problem = importing.problem()
    if problem is None:
        return Finding("ok", "torchvision", found)
    return Finding(
        "fail",
        "torchvision",
        f"{found} cannot be imported: {problem}",
        "nothing here needs it, but Lightning and Transformers import it where it is there: install the build that "
        "belongs to this torch, or `pip uninstall torchvision`",
    )


def _needed(requirement: Requirement) -> Finding:
    found = _version(requirement.name)
    if found is None:
        return Finding("fail", requirement.name, "not installed", "pip install 'pbwn[repro]'")
    if not requirement.specifier.contains(found, prereleases=True):
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        return Finding("fail", requirement.name, f"{found}, but {requirement.specifier} is needed", remedy)
    return Finding("ok", requirement.name, found)


def _optional(extra: str, purpose: str, belonging: list[Requirement]) -> Finding:
    found = {requirement.name: _version(requirement.name) for requirement in belonging}
    topic, remedy = f"extra {extra}", f"pip install 'pbwn[{extra}]'"
    missing = [name for name, here in found.items() if here is None]
    if missing:
        return Finding("ok", topic, f"not installed ({purpose}): {', '.join(missing)}", remedy)
    for requirement in belonging:
        if not requirement.specifier.contains(str(found[requirement.name]), prereleases=True):
            detail = f"{requirement.name} {found[requirement.name]}, but {requirement.specifier} is needed"
            return Finding("warn", topic, detail, remedy)
    return Finding("ok", topic, ", ".join(f"{name} {here}" for name, here in found.items()))


def _belongs(requirement: Requirement, extra: str) -> bool:
    """Whether a requirement comes with an extra, here."""
    if requirement.name == "pbwn":
        return False
    if requirement.marker is None:
        return extra == ""
    without = requirement.marker.evaluate({"extra": ""})
    return without if extra == "" else requirement.marker.evaluate({"extra": extra}) and not without


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
