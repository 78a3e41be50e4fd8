"""The cache folder: verified downloads, and splits that are decoded once.

    <root>/<set>/lock                              held while anything below is written
    <root>/<set>/partial/                          work in progress; emptied whenever the lock is acquired
    <root>/<set>/files/                            verified downloads
    <root>/<set>/decoded/<split>-<key>/            images.npy, labels.npy, manifest.json

Entries of `files` and `decoded` are complete: they are moved there by a rename.
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
LOSSLESS = "-lossless"  # suffix of a copy that is recognised by its content
ENVIRONMENT_VARIABLE = "PBWN_CACHE"

Damaged = Literal["error", "replace"]


@dataclass(frozen=True)
class Decoded:
    """A decoded split with its metadata.

    copy_of: the published set that has the same images in another order, if any.
    """

    split: MemorySplit
    classes: tuple[str, ...]
    origin: str
    copy_of: str | None = None


@dataclass(frozen=True)
class Store:
    """The part of the cache folder that belongs to one data set."""

    root: Path
    name: str

    @property
    def folder(self) -> Path:
        """The folder of the set."""
        return self.root / self.name

    @property
    def files(self) -> Path:
        """The folder of verified downloads."""
        return self.folder / "files"

    def decoded_folder(self, split: str, source: Sequence[str]) -> Path:
        """Return the folder of a decoded split, named after the digests of the files it was decoded from."""
        return self.folder / "decoded" / f"{split}-{combined_digest([str(FORMAT), *source])[:16]}"

    @contextmanager
    def writing(self, progress: Quiet) -> Iterator[Path]:
        """Hold the lock of the set, and yield an empty working folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial, lock = self.folder / "partial", FileLock(self.folder / "lock")
        try:
            held = lock.acquire(blocking=False)
        except Timeout:
            progress.say(f"Waiting for another process that is preparing {self.name}.")
            held = lock.acquire()
        with held:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                yield partial
            finally:
                shutil.rmtree(partial, ignore_errors=True)


def cache_root(cache_dir: Path | str | None = None) -> Path:
    """Return the cache folder: the given one, $PBWN_CACHE, or the default of the operating system."""
    return Path(cache_dir or os.environ.get(ENVIRONMENT_VARIABLE) or pooch.os_cache("pbwn")).expanduser()


def write_decoded(folder: Path, partial: Path, decoded: Decoded) -> None:
    """Write a decoded split and move it into place, replacing an older one."""
    staging = partial / folder.name
    staging.mkdir()
    tensors = {"images": decoded.split.images, "labels": decoded.split.labels}
    for name, tensor in tensors.items():
        numpy.save(staging / f"{name}.npy", tensor.numpy())
    manifest = {
        "format": FORMAT,
        "count": len(decoded.split),
        "sha256": {name: tensor_digest(tensor) for name, tensor in tensors.items()},
        "classes": decoded.classes,
        "origin": decoded.origin,
        "copy_of": decoded.copy_of,
    }
    (staging / "manifest.json").write_text(json.dumps(manifest, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(folder)


def read_decoded(folder: Path, *, remedy: str) -> Decoded | None:
    """Return a decoded split after verifying its digests; None if there is none."""
    if not folder.is_dir():
        return None
    manifest = read_manifest(folder, remedy=remedy)
    tensors = {}
    for name, expected in manifest["sha256"].items():
        path = folder / f"{name}.npy"
        try:
            tensors[name] = torch.from_numpy(numpy.load(path, allow_pickle=False))
        except (OSError, ValueError, EOFError, TypeError) as error:
            found = f"no readable array ({error})"
        else:
            found = tensor_digest(tensors[name])
        if found != expected:
            raise DamagedFileError.about(path, expected=f"sha256 {expected}", found=found, remedy=remedy)
    split = MemorySplit(tensors["images"], tensors["labels"], combined_digest(manifest["sha256"].values()))
    return Decoded(split, tuple(manifest["classes"]), manifest["origin"], manifest.get("copy_of"))


def read_manifest(folder: Path, *, remedy: str) -> dict[str, Any]:
    """Return the manifest of a decoded split."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
        if manifest["sha256"].keys() == {"images", "labels"} and manifest.keys() >= {"count", "classes", "origin"}:
            return dict(manifest)
        found = "different keys"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
    raise DamagedFileError.about(
        path, expected="a manifest with digests of images and labels", found=found, remedy=remedy
    )


class Source(Protocol):
    """A data set that can be decoded from files."""

    @property
    def name(self) -> str:
        """The name of the set in the cache."""

    @property
    def given(self) -> str:
        """The name by which the user refers to the set."""

    @property
    def digests(self) -> Mapping[str, Sequence[str]]:
        """The digests of the source files of each split."""

    def decode(self, splits: Sequence[str], store: Store, partial: Path, progress: Quiet) -> dict[str, Decoded]:
        """Decode splits from verified files; `partial` is a folder for intermediate files."""


def load_cached(
    source: Source, root: Path, *, splits: Sequence[str] | None, damaged: Damaged, progress: Quiet
) -> DataSet:
    """Return the splits of a set; concurrent processes download and decode it only once."""
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
            # Another process may have finished while this one waited for the lock.
            ready = _read_ready(source, store, chosen, damaged, progress)
            missing = [split for split in chosen if split not in ready]
            new = source.decode(missing, store, partial, progress) if missing else {}
            for split, decoded in new.items():
                DataSet(source.name, {split: decoded.split}, decoded.classes, decoded.origin)  # validates the labels
                write_decoded(store.decoded_folder(split, source.digests[split]), partial, decoded)
            ready |= new
    classes = max((decoded.classes for decoded in ready.values()), key=len)
    loaded = {split: ready[split].split for split in chosen}
    name = configuration_name(source.name, {decoded.copy_of for decoded in ready.values()})
    return DataSet(name, loaded, classes, ready[chosen[0]].origin)


def configuration_name(name: str, copies: Collection[str | None]) -> str:
    """Return the name of a set in configurations: after the one set that all its splits are copies of, or its own."""
    [copied] = copies if len(copies) == 1 else [None]
    return f"{copied}{LOSSLESS}" if copied else name


def _read_ready(
    source: Source, store: Store, splits: Sequence[str], damaged: Damaged, progress: Quiet
) -> dict[str, Decoded]:
    """Return the splits that are decoded in the cache; a damaged one is an error, or counts as missing."""
    ready = {}
    again = f"Run `pbwn data get {source.given}` to decode it again."
    remedy = again if damaged == "error" else "It will be decoded again."
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
