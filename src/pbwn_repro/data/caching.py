"""Sets that are decoded once: out of the cache if they are there, else made under the set's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from pbwn_repro.data.datasets import DataSet
from pbwn_repro.data.errors import DamagedFileError, UnknownSetError
from pbwn_repro.data.progress import Quiet
from pbwn_repro.data.store import Decoded, Store, read_decoded, write_decoded
from pbwn_repro.data.words import require_word

Damaged = Literal["error", "replace"]


class Source(Protocol):
    """A set that can be decoded from files."""

    @property
    def name(self) -> str:
        """The set's name in the cache."""

    @property
    def given(self) -> str:
        """The name that a user types."""

    @property
    def digests(self) -> Mapping[str, Sequence[str]]:
        """For each split the digests of the files that it is decoded from."""

    def called(self, copy_of: str | None) -> str:
        """The set's name in configurations, given the published set that it turned out to be a copy of."""

    def decode(self, splits: Sequence[str], store: Store, partial: Path, progress: Quiet) -> dict[str, Decoded]:
        """The splits, from verified files; `partial` is a folder for files in the making."""


def load_cached(
    source: Source, root: Path, *, splits: Sequence[str] | None, damaged: Damaged, progress: Quiet
) -> DataSet:
    """Return the splits of a set; two processes that ask at once fetch and decode once."""
    require_word("damaged", damaged, ("error", "replace"))
    chosen = tuple(splits or source.digests)
    for split in chosen:
        if split not in source.digests:
            expected, remedy = " or ".join(source.digests), "Choose one of these."
            thing = f"split {split!r} of {source.given}"
            raise UnknownSetError.about(thing, expected=expected, found="no such split", remedy=remedy)
    store = Store(root, source.name)
    ready = read_ready(source, store, chosen, damaged, Quiet())
    if len(ready) < len(chosen):
        with store.writing(progress) as partial:
            # Another process may have been faster while this one waited for the lock.
            ready = read_ready(source, store, chosen, damaged, progress)
            missing = [split for split in chosen if split not in ready]
            made = source.decode(missing, store, partial, progress) if missing else {}
            for split, decoded in made.items():
                DataSet(source.name, {split: decoded.split}, decoded.classes, decoded.origin)  # labels are checked
                write_decoded(store.decoded_folder(split, source.digests[split]), partial, decoded)
            ready |= made
    classes = max((decoded.classes for decoded in ready.values()), key=len)
    pictures = {split: ready[split].split for split in chosen}
    copies = {decoded.copy_of for decoded in ready.values()}
    name = source.called(copies.pop() if len(copies) == 1 else None)
    return DataSet(name, pictures, classes, ready[chosen[0]].origin)


def read_ready(
    source: Source, store: Store, splits: Sequence[str], damaged: Damaged, progress: Quiet
) -> dict[str, Decoded]:
    """Return the splits that stand decoded in the cache; a damaged one is an error, or counts as not there."""
    ready = {}
    remedy = f"Run `pbwn data get {source.given}` to decode it anew." if damaged == "error" else "It is decoded anew."
    for split in splits:
        try:
            decoded = read_decoded(store.decoded_folder(split, source.digests[split]), remedy=remedy)
        except DamagedFileError as error:
            if damaged == "error":
                raise
            progress.say(str(error))
            continue
        if decoded is not None:
            ready[split] = decoded
    return ready
