"""All checks together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pbwn_repro.doctor import machine, packages, storage
from pbwn_repro.doctor.finding import Finding
from pbwn_repro.doctor.importing import Import


def examine(out: Path, cache_dir: Path | None = None) -> Iterator[Finding]:
    """Look at packages, machine and storage; `out` is the folder that runs are to be kept in.

    What may crash is imported by another process, which works while the rest is looked at.
    """
    torchvision = Import.begin("torchvision")
    yield from packages.installed()
    yield from machine.threads()
    yield from machine.compiled_projection()
    yield machine.memory()
    yield machine.accelerator()
    yield from storage.output(out)
    yield from storage.data_sets(cache_dir)
    if torchvision is not None:
        yield packages.torchvision(torchvision)
