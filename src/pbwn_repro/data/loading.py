"""Sets by name: load one, check one thoroughly, list them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from pbwn_repro.data import folder, generated, parquet, text
from pbwn_repro.data.cache import Damaged, Source, Store, cache_root, load_cached, name_of, read_decoded, read_manifest
from pbwn_repro.data.download import Quiet, SourceFile
from pbwn_repro.data.published import KNOWN_SETS, KnownSet, PublishedSource
from pbwn_repro.data.splits import DataSet, Split
from pbwn_repro.data.text import KnownText, TextSet
from pbwn_repro.errors import DamagedFileError, DataError, MissingFileError, UnknownSetError, listed

NAMES = ("digits", *KNOWN_SETS, "imagenet", *text.LENGTHS)
FORMS = ("folder:PATH", "hf:NAME_OR_PATH", "synthetic:NAME", "text:FILE")
PLACES = (folder.PREFIX, parquet.PREFIX, text.PREFIX)  # of sets that are given by where they are

Check = tuple[str, Callable[[], str]]


def load(
    name: str,
    *,
    data_dir: Path | str | None = None,
    cache_dir: Path | str | None = None,
    splits: Sequence[str] | None = None,
    damaged: Damaged = "error",
    progress: Quiet | None = None,
) -> DataSet | TextSet:
    """Return a data set, fetched, verified and decoded as far as needed.

    name: one of NAMES, or folder:PATH, hf:NAME_OR_PATH, synthetic:NAME, text:FILE.
    data_dir: a folder with files that are here already; nothing is downloaded then.
    cache_dir: where downloads and decoded sets are kept; $PBWN_CACHE or the system's usual place if not given.
    splits: only these; all if not given.
    damaged: what to do about a decoded split in the cache that fails its digest: an "error", or "replace" it.
    """
    data_dir, root = existing_folder(data_dir), cache_root(cache_dir)
    if name in text.KNOWN_TEXTS:
        return text.KNOWN_TEXTS[name].load(Store(root, name), data_dir, progress or Quiet())
    source = find_source(name, data_dir)
    if source is not None:
        return load_cached(source, root, splits=splits, damaged=damaged, progress=progress or Quiet())
    dataset = load_uncached(name, data_dir)
    if isinstance(dataset, TextSet):
        return dataset
    chosen = {split: dataset[split] for split in splits or dataset.splits}
    return DataSet(dataset.name, chosen, dataset.classes, dataset.origin)


def existing_folder(data_dir: Path | str | None) -> Path | None:
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
    if name.startswith(parquet.PREFIX):
        return parquet.find_parquet(name.removeprefix(parquet.PREFIX))
    return None


def usual_preparation(name: str) -> Mapping[str, str]:
    """How a set's images are prepared where no recipe says it: fields of a configuration's part on data."""
    if name == "imagenet":
        return folder.IMAGENET_PREPARATION
    return KNOWN_SETS[name].preparation if name in KNOWN_SETS else {}


def load_uncached(name: str, data_dir: Path | None) -> DataSet | TextSet:
    """Return a set that is always here, or read from a folder of images, or a text."""
    if text.is_text(name):
        return text.load_text(name)
    if name == "digits":
        return generated.load_digits()
    if name == "imagenet":
        return folder.load_imagenet(data_dir)
    if name.startswith(folder.PREFIX):
        return folder.load_folder(Path(name.removeprefix(folder.PREFIX)))
    for prefix in (generated.PREFIX, generated.STORED_PREFIX):
        if name.startswith(prefix):
            return generated.make_synthetic(name.removeprefix(prefix))
    raise UnknownSetError(
        f"unknown data set {name!r}: {listed(name, (*NAMES, *FORMS))}. `pbwn data list` describes them"
    )


def verify_files_of_user(name: str, data_dir: Path | str | None, splits: Sequence[str] | None) -> None:
    """Raise if the files that a user points at are not the published ones, even if the set is in the cache."""
    source = find_source(name, existing_folder(data_dir))
    if isinstance(source, PublishedSource) and source.data_dir:
        source.files_of_user(source.known.files(splits))


@dataclass(frozen=True)
class Finding:
    """A part of a set, whether it is right, and what is known of it."""

    thing: str
    right: bool
    detail: str


def check(name: str, *, data_dir: Path | str | None = None, cache_dir: Path | str | None = None) -> Iterator[Finding]:
    """Yield a finding for each file, digest and image of a set that is here; nothing is fetched or changed.

    A set of which nothing is here is an error.
    """
    root, own = cache_root(cache_dir), existing_folder(data_dir)
    checks = list(_checks(name, root, own))
    if not checks:
        raise MissingFileError.about(
            name,
            expected=f"files in {own or root / name}",
            found="none",
            remedy=f"Run `pbwn data get {name}` first.",
        )
    for thing, run in checks:
        try:
            yield Finding(thing, True, run())
        except DataError as error:
            yield Finding(thing, False, str(error))


def _checks(name: str, root: Path, data_dir: Path | None) -> Iterator[Check]:
    """Yield the checks of a set's files and of its decoded form, or of its images or characters."""
    source = find_source(name, data_dir)
    if name in text.KNOWN_TEXTS:
        known, store = text.KNOWN_TEXTS[name], Store(root, name)
        if path := known.find(data_dir or store.files):
            yield path.name, partial(_check_text, known, store, data_dir)
        return
    if source is None:
        for split, images in load_uncached(name, data_dir).splits.items():
            yield split, partial(_check_split, images)
        return
    store = Store(root, source.name)
    if isinstance(source, PublishedSource):
        for file in source.known.files():
            if paths := source.locate(file, store.files):
                yield ", ".join(path.name for path in paths), partial(_check_file, paths, file, source.given)
    elif isinstance(source, parquet.ParquetSource):
        for split, files in source.files.items():
            yield f"images of {split}", partial(_check_parquet, files)
    for split, digests in source.digests.items():
        place = store.decoded_folder(split, digests)
        if place.is_dir():
            yield f"decoded {split}", partial(_check_decoded, place, source.given)


def _check_text(known: KnownText, store: Store, data_dir: Path | None) -> str:
    found = known.load(store, data_dir, Quiet())
    return f"{sum(map(len, found.splits.values())):,} characters, the published content"


def _check_file(paths: Sequence[Path], file: SourceFile, given: str) -> str:
    file.verify(paths, remedy=f"Replace it; `pbwn data get {given}` does that in the cache.")
    return f"{sum(path.stat().st_size for path in paths):,} bytes, the published content"


def _check_parquet(files: tuple[Path, ...]) -> str:
    return f"{len(parquet.read_split(files)):,} images decode"


def _check_decoded(place: Path, given: str) -> str:
    decoded = read_decoded(place, remedy=f"Run `pbwn data get {given}` to decode it again.")
    assert decoded is not None
    return f"{len(decoded.split):,} images, sha256 {decoded.split.digest[:16]}, from {decoded.origin}"


def _check_split(images: Split | Tensor) -> str:
    if isinstance(images, Tensor):
        return f"{len(images):,} characters"
    if isinstance(images, folder.FolderSplit) and (damaged := images.damaged()):
        raise DamagedFileError("\n       ".join(damaged))
    return f"{len(images):,} images, sha256 {images.digest[:16]}"


ABSENT, DAMAGED = "not downloaded", "damaged"


@dataclass(frozen=True)
class Entry:
    """A line of the list of sets."""

    name: str
    contents: str
    state: str
    origin: str
    bytes_here: int = 0


ALWAYS_HERE = (
    Entry("digits", "1,437 train, 360 test", "built in", "scikit-learn"),
    Entry(text.SENTENCES, "a text", "built in", "generated"),
)
USERS_OWN = (
    Entry("imagenet", "as found", "your own", "--data-dir with train/ and val/"),
    Entry("folder:PATH", "as found", "your own", "train/<class>/*, val/<class>/*"),
    Entry("hf:NAME_OR_PATH", "as found", "your own", "the Hugging Face Hub, or parquet files"),
    Entry("text:FILE", "as found", "your own", "the characters of a file"),
    Entry("synthetic:NAME", "1,000 train, 500 test", "built in", "generated, shaped like NAME"),
)


def inventory(cache_dir: Path | str | None = None) -> list[Entry]:
    """Return all sets that can be named, what of them is in the cache, and where it came from."""
    root = cache_root(cache_dir)
    others = sorted(path.name for path in root.glob("*") if (path / "decoded").is_dir() and path.name not in KNOWN_SETS)
    entries = [_entry_of(Store(root, name), KNOWN_SETS.get(name)) for name in (*KNOWN_SETS, *others)]
    texts = [_entry_of_text(Store(root, name), known) for name, known in text.KNOWN_TEXTS.items()]
    return [*ALWAYS_HERE, *entries, *texts, *USERS_OWN]


def _entry_of_text(store: Store, known: KnownText) -> Entry:
    if path := known.find(store.files):
        return Entry(store.name, "a text", "verified", known.about, path.stat().st_size)
    return Entry(store.name, "a text", ABSENT, f"{known.file.size / 1e6:,.0f} MB to download")


def _entry_of(store: Store, known: KnownSet | None) -> Entry:
    """Return what the cache holds of one set; the digests are not compared here, `check` does that."""
    size = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
    published = {split: part.count for split, part in known.splits.items()} if known else {}
    decoded = sorted(path for path in store.folder.glob("decoded/*") if path.is_dir())
    if not decoded:
        to_fetch = sum(file.size for file in known.files()) / 1e6 if known else 0
        return Entry(store.name, _counted(published), ABSENT, f"{to_fetch:,.0f} MB to download", size)
    try:
        manifests = {path.name.rpartition("-")[0]: read_manifest(path, remedy="") for path in decoded}
    except DamagedFileError:
        return Entry(store.name, _counted(published), DAMAGED, f"run `pbwn data check {store.name}`", size)
    counts = published or {split: manifest["count"] for split, manifest in manifests.items()}
    missing = [split for split in counts if split not in manifests]
    state = "verified" + (f", but no {' and '.join(missing)}" if missing else "")
    name = name_of(store.name, {manifest.get("copy_of") for manifest in manifests.values()})
    origins = sorted({manifest["origin"] for manifest in manifests.values()})
    return Entry(name, _counted(counts), state, ", ".join(origins), size)


def _counted(counts: Mapping[str, int]) -> str:
    """Return numbers of images in words, train first."""
    return ", ".join(f"{counts[split]:,} {split}" for split in sorted(counts, key=lambda split: split != "train"))


def absolute(source: str) -> str:
    """The same source for a process that works in another folder: paths from the root."""
    for prefix in PLACES:
        path = Path(source.removeprefix(prefix)).expanduser()
        if source.startswith(prefix) and path.exists():
            return f"{prefix}{path.resolve()}"
    return source
