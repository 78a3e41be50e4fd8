"""A set's files: out of the cache, from the published addresses in turn, or by a fallback."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pooch
import requests

from pbwn_repro.data.errors import DamagedFileError, DataError, DownloadError
from pbwn_repro.data.known_sets import KnownSet, SourceFile
from pbwn_repro.data.progress import Quiet
from pbwn_repro.data.verification import locate, verify

SECONDS_TO_ANSWER = 20
CHUNK = 1 << 18


def fetch(
    known: KnownSet, wanted: Sequence[SourceFile], folder: Path, partial: Path, progress: Quiet
) -> tuple[dict[SourceFile, Path], str]:
    """Return verified files in the folder and where the last of them came from; fetch those that are not there.

    partial: where files grow; what stands in `folder` is whole.
    """
    missing, origin = [file for file in wanted if not cached(folder, file, progress)], "the cache"
    if missing:
        origin, paths = from_any_source(known, missing, partial, progress)
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            path.replace(folder / path.name)
    found = {file: locate(folder, file) for file in wanted}
    return {file: path for file, path in found.items() if path}, origin


def cached(folder: Path, file: SourceFile, progress: Quiet) -> bool:
    """Return whether the folder holds the right file; take a damaged one away."""
    path = locate(folder, file)
    if path is None:
        return False
    try:
        verify(path, file, remedy="It is fetched anew.")
    except DamagedFileError as error:
        progress.say(str(error))
        path.unlink()
        return False
    return True


def from_any_source(
    known: KnownSet, files: Sequence[SourceFile], partial: Path, progress: Quiet
) -> tuple[str, list[Path]]:
    """Return where verified files came from, and the files: from the addresses, or all by one fallback."""
    failures: list[str] = []
    try:
        unreachable: set[str] = set()
        downloads = [download(file, partial, unreachable, progress) for file in files]
        return ", ".join(sorted({host for host, _ in downloads})), [path for _, path in downloads]
    except DownloadError as error:
        failures.append(str(error))
    for fallback in known.fallbacks:
        progress.say(f"No address answers; trying the {fallback.origin}.")
        try:
            paths = fallback.provide([file.name for file in files], partial)
            for file in files:
                verify(locate(partial, file) or partial / file.name, file, remedy="It is not used.")
            return fallback.origin, paths
        except (DataError, OSError) as error:
            failures.append(f"{fallback.origin}: {error}")
    names = ", ".join(file.name for file in files)
    tried = "\n  ".join("\n".join(failures).splitlines())
    raise DownloadError(
        f"{known.name}: expected {names}, found no source that gives it:\n  {tried}\n"
        "Connect to the internet, or put the files into a folder and pass it by --data-dir."
    )


def download(file: SourceFile, partial: Path, unreachable: set[str], progress: Quiet) -> tuple[str, Path]:
    """Return the host and the verified file; try its addresses in turn, those of unreachable hosts not again."""
    failures = []
    for address in file.addresses:
        host = urlsplit(address).netloc
        if host in unreachable:
            continue
        bar = progress.bar(file.name)
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=SECONDS_TO_ANSWER)
        try:
            with quiet_pooch():
                path = pooch.retrieve(address, f"md5:{file.md5}", file.name, partial, downloader=downloader)
            return host, Path(path)
        except (requests.ConnectionError, requests.Timeout):
            unreachable.add(host)
            failures.append(f"{address}: no connection")
        except requests.HTTPError as error:
            failures.append(f"{address}: the server answered {error.response.status_code}")
        except (ValueError, OSError) as error:
            failures.append(f"{address}: {error}")
        finally:
            if bar:
                bar.close()
    raise DownloadError("\n".join(failures) or f"{file.name}: no connection")


@contextmanager
def quiet_pooch() -> Iterator[None]:
    """Keep pooch's own announcements off the terminal."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
