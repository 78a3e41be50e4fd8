"""The cache folder: verified files, and decoded splits that load fast.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pooch
import torch
from filelock import FileLock, Timeout

from pbwn_repro.data.digests import combined_digest, tensor_digest
from pbwn_repro.data.errors import DamagedFileError
from pbwn_repro.data.progress import Quiet
from pbwn_repro.data.splits import MemorySplit

FORMAT = 1
ENVIRONMENT_VARIABLE = "PBWN_CACHE"


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
