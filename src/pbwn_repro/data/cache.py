"""The cache folder: verified files, and splits that are decoded once and load fast.

    <root>/<set>/lock                              held while anything below is written
    <root>/<set>/partial/                          work in progress; emptied whenever the lock is taken
    <root>/<set>/files/                            verified downloads
    <root>/<set>/decoded/<split>-<key>/            images.npy, labels.npy, manifest.json

What stands under `files` and `decoded` is whole: it got there by a rename.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy
import pooch
import torch
from filelock import FileLock, Timeout

from pbwn_repro.data.download import Quiet
from pbwn_repro.data.splits import DataSet, MemorySplit, combined_digest, tensor_digest
from pbwn_repro.errors import DamagedFileError, UnknownSetError, require_word

FORMAT = 1
LOSSLESS = "-lossless"  # a copy that was recognised by its content
ENVIRONMENT_VARIABLE = "PBWN_CACHE"

Damaged = Literal["error", "replace"]


@dataclass(frozen=True)
class Decoded:
    """A split out of the cache, with what is known of it.

    copy_of: the published set whose images these are, in an order of their own.
    """

    split: MemorySplit
    classes: tuple[str, ...]
    origin: str
    copy_of: str | None = None


@dataclass(frozen=True)
class Store:
    """The part of the cache folder that belongs to one set."""

    root: Path
    name: str

    @property
    def folder(self) -> Path:
        """The set's folder."""
        return self.root / self.name

    @property
    def files(self) -> Path:
        """The folder of verified downloads."""
        return self.folder / "files"

    def decoded_folder(self, split: str, source: Sequence[str]) -> Path:
        """Return the folder of a decoded split; it is named after the digests of the files it was decoded from."""
        return self.folder / "decoded" / f"{split}-{combined_digest([str(FORMAT), *source])[:16]}"

    @contextmanager
    def writing(self, progress: Quiet) -> Iterator[Path]:
        """Hold the set's lock, and give an empty folder to work in."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial, lock = self.folder / "partial", FileLock(self.folder / "lock")
        try:
            held = lock.acquire(blocking=False)
        except Timeout:
            progress.say(f"Waiting for another process that prepares {self.name}.")
            held = lock.acquire()
        with held:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                yield partial
            finally:
                shutil.rmtree(partial, ignore_errors=True)


def cache_root(cache_dir: Path | str | None = None) -> Path:
    """Return the cache folder: the given one, $PBWN_CACHE, or the operating system's usual place."""
    return Path(cache_dir or os.environ.get(ENVIRONMENT_VARIABLE) or pooch.os_cache("pbwn")).expanduser()


def write_decoded(folder: Path, partial: Path, decoded: Decoded) -> None:
    """Write a decoded split in one move; an older one in its place goes."""
    growing = partial / folder.name
    growing.mkdir()
    tensors = {"images": decoded.split.images, "labels": decoded.split.labels}
    for name, tensor in tensors.items():
        numpy.save(growing / f"{name}.npy", tensor.numpy())
    manifest = {
        "format": FORMAT,
        "count": len(decoded.split),
        "sha256": {name: tensor_digest(tensor) for name, tensor in tensors.items()},
        "classes": decoded.classes,
        "origin": decoded.origin,
        "copy_of": decoded.copy_of,
    }
    (growing / "manifest.json").write_text(json.dumps(manifest, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    growing.rename(folder)


def read_decoded(folder: Path, *, remedy: str) -> Decoded | None:
    """Return a decoded split after comparing its digests; None if there is none."""
    if not folder.is_dir():
        return None
    manifest = read_manifest(folder, remedy=remedy)
    tensors = {}
    for name, expected in manifest["sha256"].items():
        path = folder / f"{name}.npy"
        try:
            tensors[name] = torch.from_numpy(numpy.load(path, allow_pickle=False))
        except (OSError, ValueError, EOFError, TypeError) as error:
            found = f"none ({error})"
        else:
            found = tensor_digest(tensors[name])
        if found != expected:
            raise DamagedFileError.about(path, expected=f"sha256 {expected}", found=found, remedy=remedy)
    split = MemorySplit(tensors["images"], tensors["labels"], combined_digest(manifest["sha256"].values()))
    return Decoded(split, tuple(manifest["classes"]), manifest["origin"], manifest.get("copy_of"))


def read_manifest(folder: Path, *, remedy: str) -> dict[str, Any]:
    """Return what is written of a decoded split."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
        if manifest["sha256"].keys() == {"images", "labels"} and manifest.keys() >= {"count", "classes", "origin"}:
            return dict(manifest)
        found = "other keys"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
    raise DamagedFileError.about(
        path, expected="a manifest with digests of images and labels", found=found, remedy=remedy
    )


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
    ready = _read_ready(source, store, chosen, damaged, Quiet())
    if len(ready) < len(chosen):
        with store.writing(progress) as partial:
            # Another process may have been faster while this one waited for the lock.
            ready = _read_ready(source, store, chosen, damaged, progress)
            missing = [split for split in chosen if split not in ready]
            made = source.decode(missing, store, partial, progress) if missing else {}
            for split, decoded in made.items():
                DataSet(source.name, {split: decoded.split}, decoded.classes, decoded.origin)  # labels are checked
                write_decoded(store.decoded_folder(split, source.digests[split]), partial, decoded)
            ready |= made
    classes = max((decoded.classes for decoded in ready.values()), key=len)
    images = {split: ready[split].split for split in chosen}
    name = name_of(source.name, {decoded.copy_of for decoded in ready.values()})
    return DataSet(name, images, classes, ready[chosen[0]].origin)


def name_of(own: str, copies: Collection[str | None]) -> str:
    """The set's name in configurations: as that of which all splits are copies, or its own."""
    [copied] = copies if len(copies) == 1 else [None]
    return f"{copied}{LOSSLESS}" if copied else own


def _read_ready(
    source: Source, store: Store, splits: Sequence[str], damaged: Damaged, progress: Quiet
) -> dict[str, Decoded]:
    """Return the splits that stand decoded in the cache; a damaged one is an error, or counts as not there."""
    ready = {}
    remedy = f"Run `pbwn data get {source.given}` to decode it again." if damaged == "error" else "It is decoded again."
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
