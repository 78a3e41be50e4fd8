"""Which sets can be named, what of them is here, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pbwn_repro.data.errors import DamagedFileError
from pbwn_repro.data.known_sets import KNOWN_SETS, KnownSet
from pbwn_repro.data.names import LOSSLESS
from pbwn_repro.data.store import Store, cache_root, read_manifest


@dataclass(frozen=True)
class Entry:
    """A line of the list of sets."""

    name: str
    pictures: str
    state: str
    origin: str
    bytes_here: int = 0


ALWAYS_HERE = (Entry("digits", "1,437 train, 360 test", "always here", "scikit-learn"),)
USERS_OWN = (
    Entry("imagenet", "as found", "yours", "--data-dir with train/ and val/"),
    Entry("folder:PATH", "as found", "yours", "train/<class>/*, val/<class>/*"),
    Entry("hf:NAME_OR_PATH", "as found", "yours", "the hub, or parquet files"),
    Entry("synthetic:NAME", "1,000 train, 500 test", "always here", "a formula, shaped like NAME"),
)


def inventory(cache_dir: Path | str | None = None) -> list[Entry]:
    """Return all sets that can be named, and what of them is in the cache."""
    root = cache_root(cache_dir)
    others = sorted(path.name for path in root.glob("*") if (path / "decoded").is_dir() and path.name not in KNOWN_SETS)
    entries = [entry_of(Store(root, name), KNOWN_SETS.get(name)) for name in (*KNOWN_SETS, *others)]
    return [*ALWAYS_HERE, *entries, *USERS_OWN]


def entry_of(store: Store, known: KnownSet | None) -> Entry:
    """Return what the cache holds of one set; the digests are not compared here, `check` does that."""
    size = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
    published = {split: part.count for split, part in known.splits.items()} if known else {}
    decoded = sorted(path for path in store.folder.glob("decoded/*") if path.is_dir())
    if not decoded:
        to_fetch = sum(file.size for file in known.files()) / 1e6 if known else 0
        return Entry(store.name, counted(published), "not here", f"{to_fetch:,.0f} MB to fetch", size)
    try:
        manifests = {path.name.rpartition("-")[0]: read_manifest(path, remedy="") for path in decoded}
    except DamagedFileError:
        return Entry(store.name, counted(published), "damaged", f"run `pbwn data check {store.name}`", size)
    counts = published or {split: manifest["count"] for split, manifest in manifests.items()}
    missing = [split for split in counts if split not in manifests]
    state = "verified" + (f", but no {' and '.join(missing)}" if missing else "")
    copies = {manifest.get("copy_of") for manifest in manifests.values()}
    name = f"{copies.pop()}{LOSSLESS}" if len(copies) == 1 and None not in copies else store.name
    origins = sorted({manifest["origin"] for manifest in manifests.values()})
    return Entry(name, counted(counts), state, ", ".join(origins), size)


def counted(counts: Mapping[str, int]) -> str:
    """Return numbers of pictures in words, train first."""
    return ", ".join(f"{counts[split]:,} {split}" for split in sorted(counts, key=lambda split: split != "train"))
