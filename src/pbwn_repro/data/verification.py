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


def locate(folder: Path, file: SourceFile) -> Path | None:
    """Return where a folder holds a file, packed as published or unpacked; None if it does not."""
    names = [file.name] + ([file.name.removesuffix(".gz")] if file.unpacked_sha256 else [])
    return next((folder / name for name in names if (folder / name).is_file()), None)


def verify(path: Path, file: SourceFile, *, remedy: str) -> None:
    """Raise DamagedFileError unless the file, or what is packed in it, is the published one."""
    md5 = file_digest(path, "md5")
    if md5 == file.md5 or (file.unpacked_sha256 and unpacked_sha256(path) == file.unpacked_sha256):
        return
    if path.name == file.name:
        expected = f"{file.size:,} bytes with md5 {file.md5}"
    else:
        expected = f"content with sha256 {file.unpacked_sha256}"
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


def locate_any(folders: Sequence[Path], file: SourceFile) -> Path | None:
    """Return the first place in several folders that holds a file."""
    return next((path for folder in folders if (path := locate(folder, file))), None)
