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

ORIGIN_NOTE = "origin.txt"
SECONDS_TO_ANSWER = 20
CHUNK = 1 << 18


def fetch(
    known: KnownSet, wanted: Sequence[SourceFile], folder: Path, partial: Path, progress: Quiet
) -> tuple[dict[SourceFile, tuple[Path, ...]], str]:
    """Return verified files in the folder and where the last of them came from; fetch those that are not there.

    partial: where files grow; what stands in `folder` is whole.
    """
    missing = [file for file in wanted if not cached(folder, file, progress)]
    note = folder / ORIGIN_NOTE
    if missing:
        origin, paths = from_any_source(known, missing, partial, progress)
        folder.mkdir(parents=True, exist_ok=True)
        for fetched in paths:
            place = folder / fetched.relative_to(partial)
            place.parent.mkdir(exist_ok=True)
            fetched.replace(place)
        note.write_text(origin)
    return {file: locate(folder, file) for file in wanted}, note.read_text() if note.is_file() else "the cache"


def cached(folder: Path, file: SourceFile, progress: Quiet) -> bool:
    """Return whether the folder holds the right file; take a damaged one away."""
    paths = locate(folder, file)
    if not paths:
        return False
    try:
        verify(paths, file, remedy="It is fetched anew.")
    except DamagedFileError as error:
        progress.say(str(error))
        for path in paths:
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
        progress.say(f"No address gives the files; trying the {fallback.origin}.")
        try:
            paths = fallback.provide(files, partial, progress)
            for file in files:
                verify(locate(partial, file) or [partial / file.name], file, remedy="It is not used.")
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
def quiet_pooch() -> Iterator[None]:
    """Keep pooch's own announcements off the terminal."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
