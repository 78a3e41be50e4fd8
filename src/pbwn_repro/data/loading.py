"""One door to all sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pbwn_repro.data import folder, hugging_face, synthetic
from pbwn_repro.data.caching import Damaged, Source, load_cached
from pbwn_repro.data.datasets import DataSet
from pbwn_repro.data.embedded import load_digits
from pbwn_repro.data.errors import MissingFileError, UnknownSetError
from pbwn_repro.data.known_sets import KNOWN_SETS
from pbwn_repro.data.progress import Quiet
from pbwn_repro.data.published import PublishedSource
from pbwn_repro.data.store import cache_root

NAMES = ("digits", *KNOWN_SETS, "imagenet")
FORMS = ("folder:PATH", "hf:NAME_OR_PATH", "synthetic:NAME")
PLACES = (folder.PREFIX, hugging_face.PREFIX)  # of sets that are given by where they are


def load(
    name: str,
    *,
    data_dir: Path | str | None = None,
    cache_dir: Path | str | None = None,
    splits: Sequence[str] | None = None,
    damaged: Damaged = "error",
    progress: Quiet | None = None,
) -> DataSet:
    """Return a data set, fetched, verified and decoded as far as needed.

    name: one of NAMES, or folder:PATH, hf:NAME_OR_PATH, synthetic:NAME.
    data_dir: a folder with files that are here already; nothing is downloaded then.
    cache_dir: where downloads and decoded sets are kept; $PBWN_CACHE or the system's usual place if not given.
    splits: only these; all if not given.
    damaged: what to do about a decoded split in the cache that fails its digest: an "error", or "replace" it.
    """
    data_dir = check_folder(data_dir)
    source = find_source(name, data_dir)
    if source is not None:
        root = cache_root(cache_dir)
        return load_cached(source, root, splits=splits, damaged=damaged, progress=progress or Quiet())
    dataset = load_uncached(name, data_dir)
    chosen = {split: dataset[split] for split in splits or dataset.splits}
    return DataSet(dataset.name, chosen, dataset.classes, dataset.origin)


def check_folder(data_dir: Path | str | None) -> Path | None:
    """Return the user's folder; a mistyped one is an error, even if everything needed is in the cache."""
    if data_dir is None:
        return None
    path = Path(data_dir).expanduser()
    if not path.is_dir():
        remedy = "Correct --data-dir."
        raise MissingFileError.about(path, expected="a folder with data files", found="no such folder", remedy=remedy)
    return path


def find_source(name: str, data_dir: Path | None) -> Source | None:
    """Return what the set is decoded from, if it goes through the cache."""
    if name in KNOWN_SETS:
        return PublishedSource(KNOWN_SETS[name], data_dir)
    if name.startswith(hugging_face.PREFIX):
        return hugging_face.find_source(name.removeprefix(hugging_face.PREFIX))
    return None


def load_uncached(name: str, data_dir: Path | None) -> DataSet:
    """Return a set that is embedded, made, or read from a folder of pictures."""
    if name == "digits":
        return load_digits()
    if name == "imagenet":
        return folder.load_folder(imagenet_folder(data_dir), name="imagenet")
    if name.startswith(folder.PREFIX):
        return folder.load_folder(Path(name.removeprefix(folder.PREFIX)))
    if name.startswith((synthetic.PREFIX, synthetic.STORED_PREFIX)):
        return synthetic.make_synthetic(name.removeprefix(synthetic.PREFIX).removeprefix(synthetic.STORED_PREFIX))
    raise UnknownSetError.about(
        f"data set {name!r}",
        expected=f"one of {', '.join((*NAMES, *FORMS))}",
        found="an unknown name",
        remedy="`pbwn data list` shows them all.",
    )


def imagenet_folder(data_dir: Path | None) -> Path:
    """Return the folder with ImageNet's train and val: the user's own, or imagenet/ in it."""
    if data_dir is None:
        raise MissingFileError.about(
            "imagenet",
            expected="a folder with train/<class>/*.JPEG and val/<class>/*.JPEG",
            found="no --data-dir",
            remedy="Pass --data-dir; ImageNet has to be had from its owners.",
        )
    return data_dir / "imagenet" if (data_dir / "imagenet").is_dir() else data_dir
