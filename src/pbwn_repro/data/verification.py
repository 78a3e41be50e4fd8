"""Whether a file is the published one."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from pbwn_repro.data.digests import file_digest, stream_digest
from pbwn_repro.data.errors import DamagedFileError
from pbwn_repro.data.known_sets import KNOWN_SETS, SourceFile
from pbwn_repro.data.readers.idx import GZIP_MAGIC


def locate(folder: Path, file: SourceFile) -> tuple[Path, ...]:
    """Return where a folder holds a file as published, or else all of its contents; nothing if it holds neither."""
    for names in ([file.name], list(file.contents)):
        paths = tuple(folder / name for name in names)
        if paths and all(path.is_file() for path in paths):
            return paths
    return ()


def verify(paths: Sequence[Path], file: SourceFile, *, remedy: str) -> None:
    """Raise DamagedFileError unless these are the published file, or its contents, unpacked or packed otherwise."""
    contents = list(file.contents.values())
    for position, path in enumerate(paths):
        md5 = file_digest(path, "md5")
        whole = path.name == file.name
        if whole and (md5 == file.md5 or [unpacked_sha256(path)] == contents):
            continue
        if not whole and unpacked_sha256(path) == contents[position]:
            continue
        expected = f"{file.size:,} bytes with md5 {file.md5}" if whole else f"content with sha256 {contents[position]}"
        found = f"{path.stat().st_size:,} bytes with md5 {md5}"
        if known := recognise(md5):
            found += f", which is {known}"
        raise DamagedFileError.about(path, expected=expected, found=found, remedy=remedy)


def unpacked_sha256(path: Path) -> str | None:
    """Return the sha256 of a file's content behind gzip, or of the file; None if it does not unpack."""
    with path.open("rb") as stream:
        packed = stream.read(2) == GZIP_MAGIC
    try:
        with gzip.open(path) if packed else path.open("rb") as content:
            return stream_digest(content, "sha256")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return None


def recognise(md5: str) -> str | None:
    """Return which published file has this md5: swapped files are told by it."""
    return next(
        (f"{file.name} of {known.name}" for known in KNOWN_SETS.values() for file in known.files() if file.md5 == md5),
        None,
    )


def locate_any(folders: Sequence[Path], file: SourceFile) -> tuple[Path, ...]:
    """Return where the first of several folders that has a file holds it."""
    return next((paths for folder in folders if (paths := locate(folder, file))), ())
