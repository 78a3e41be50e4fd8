"""Data sets by name: load one, check one, or list them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from pbwn_repro.data import folder, generated, parquet, text
from pbwn_repro.data.cache import (
    Damaged,
    Source,
    Store,
    cache_root,
    configuration_name,
    load_cached,
    read_decoded,
    read_manifest,
)
from pbwn_repro.data.download import Quiet, SourceFile
from pbwn_repro.data.published import KNOWN_SETS, KnownSet, PublishedSource
from pbwn_repro.data.splits import DataSet, Split
from pbwn_repro.data.text import KnownText, TextSet
from pbwn_repro.errors import DamagedFileError, DataError, MissingFileError, UnknownSetError, suggest

NAMES = ("digits", *KNOWN_SETS, "imagenet", *text.LENGTHS)
FORMS = ("folder:PATH", "hf:NAME_OR_PATH", "synthetic:NAME", "text:FILE")
LOCATION_PREFIXES = (folder.PREFIX, parquet.PREFIX, text.PREFIX)  # of sets that are identified by their location

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
    """Return a data set, downloaded, verified and decoded as needed.

    name: one of NAMES, or folder:PATH, hf:NAME_OR_PATH, synthetic:NAME, text:FILE.
    data_dir: a folder that already holds the files; nothing is downloaded then.
    cache_dir: where downloads and decoded sets are kept; by default $PBWN_CACHE or the system's cache folder.
    splits: the splits to load; by default all.
    damaged: what to do with a cached split that does not match its digest: raise an "error", or "replace" it.
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
    """Return the user's folder; raise if it does not exist, even if everything needed is cached."""
    if data_dir is None:
        return None
    path = Path(data_dir).expanduser()
    if not path.is_dir():
        remedy = "Correct --data-dir."
        raise MissingFileError.about(path, expected="a folder with data files", found="no such folder", remedy=remedy)
    return path


def find_source(name: str, data_dir: Path | None) -> Source | None:
    """Return the source that a set is decoded from; None if it does not go through the cache."""
    if name in KNOWN_SETS:
        return PublishedSource(KNOWN_SETS[name], data_dir)
    if name.startswith(parquet.PREFIX):
        return parquet.find_parquet(name.removeprefix(parquet.PREFIX))
    return None


def default_preparation(name: str) -> Mapping[str, str]:
    """Return the fields of a configuration's `data` that prepare a set's images where no recipe states them."""
    if name == "imagenet":
        return folder.IMAGENET_PREPARATION
    return KNOWN_SETS[name].preparation if name in KNOWN_SETS else {}


def load_uncached(name: str, data_dir: Path | None) -> DataSet | TextSet:
    """Load a built-in set, an image folder or a text."""
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
        f"unknown data set {name!r}: {suggest(name, (*NAMES, *FORMS))}. `pbwn data list` describes them"
    )


def verify_user_files(name: str, data_dir: Path | str | None, splits: Sequence[str] | None) -> None:
    """Raise if the user's own files are not the published ones, even if the set is cached."""
    source = find_source(name, existing_folder(data_dir))
    if isinstance(source, PublishedSource) and source.data_dir:
        source.user_files(source.known.files(splits))


@dataclass(frozen=True)
class Finding:
    """The result of checking one part of a set."""

    part: str
    passed: bool
    detail: str


def check(name: str, *, data_dir: Path | str | None = None, cache_dir: Path | str | None = None) -> Iterator[Finding]:
    """Yield a finding for each file, decoded split or image set that is present; nothing is downloaded or changed.

    Raise MissingFileError if no part of the set is present.
    """
    root, data_dir = cache_root(cache_dir), existing_folder(data_dir)
    checks = list(_checks(name, root, data_dir))
    if not checks:
        raise MissingFileError.about(
            name,
            expected=f"files in {data_dir or root / name}",
            found="none",
            remedy=f"Run `pbwn data get {name}` first.",
        )
    for part, run in checks:
        try:
            yield Finding(part, True, run())
        except DataError as error:
            yield Finding(part, False, str(error))


def _checks(name: str, root: Path, data_dir: Path | None) -> Iterator[Check]:
    """Yield the checks of a set's source files and decoded splits, or of its images or characters."""
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
        decoded = store.decoded_folder(split, digests)
        if decoded.is_dir():
            yield f"decoded {split}", partial(_check_decoded, decoded, source.given)


def _check_text(known: KnownText, store: Store, data_dir: Path | None) -> str:
    found = known.load(store, data_dir, Quiet())
    return f"{sum(map(len, found.splits.values())):,} characters, the published content"


def _check_file(paths: Sequence[Path], file: SourceFile, given: str) -> str:
    file.verify(paths, remedy=f"Replace it; `pbwn data get {given}` does that in the cache.")
    return f"{sum(path.stat().st_size for path in paths):,} bytes, the published content"


def _check_parquet(files: tuple[Path, ...]) -> str:
    return f"{len(parquet.read_split(files)):,} images decode"


def _check_decoded(path: Path, given: str) -> str:
    decoded = read_decoded(path, remedy=f"Run `pbwn data get {given}` to decode it again.")
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
    """A row of the list of data sets."""

    name: str
    contents: str
    state: str
    origin: str
    cached_bytes: int = 0


BUILT_IN = (
    Entry("digits", "1,437 train, 360 test", "built in", "scikit-learn"),
    Entry(text.SENTENCES, "a text", "built in", "generated"),
)
USER_PROVIDED = (
    Entry("imagenet", "as found", "your own", "--data-dir with train/ and val/"),
    Entry("folder:PATH", "as found", "your own", "train/<class>/*, val/<class>/*"),
    Entry("hf:NAME_OR_PATH", "as found", "your own", "the Hugging Face Hub, or parquet files"),
    Entry("text:FILE", "as found", "your own", "the characters of a file"),
    Entry("synthetic:NAME", "1,000 train, 500 test", "built in", "generated, shaped like NAME"),
)


def inventory(cache_dir: Path | str | None = None) -> list[Entry]:
    """Return an entry for every named set: its contents, its state in the cache, and its origin."""
    root = cache_root(cache_dir)
    others = sorted(path.name for path in root.glob("*") if (path / "decoded").is_dir() and path.name not in KNOWN_SETS)
    entries = [_set_entry(Store(root, name), KNOWN_SETS.get(name)) for name in (*KNOWN_SETS, *others)]
    texts = [_text_entry(Store(root, name), known) for name, known in text.KNOWN_TEXTS.items()]
    return [*BUILT_IN, *entries, *texts, *USER_PROVIDED]


def _text_entry(store: Store, known: KnownText) -> Entry:
    if path := known.find(store.files):
        return Entry(store.name, "a text", "verified", known.about, path.stat().st_size)
    return Entry(store.name, "a text", ABSENT, f"{known.file.size / 1e6:,.0f} MB to download")


def _set_entry(store: Store, known: KnownSet | None) -> Entry:
    """Return the entry of an image set; digests are verified by `check`, not here."""
    size = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
    published = {split: part.count for split, part in known.splits.items()} if known else {}
    decoded = sorted(path for path in store.folder.glob("decoded/*") if path.is_dir())
    if not decoded:
        to_fetch = sum(file.size for file in known.files()) / 1e6 if known else 0
        return Entry(store.name, _format_counts(published), ABSENT, f"{to_fetch:,.0f} MB to download", size)
    try:
        manifests = {path.name.rpartition("-")[0]: read_manifest(path, remedy="") for path in decoded}
    except DamagedFileError:
        return Entry(store.name, _format_counts(published), DAMAGED, f"run `pbwn data check {store.name}`", size)
    counts = published or {split: manifest["count"] for split, manifest in manifests.items()}
    missing = [split for split in counts if split not in manifests]
    state = "verified" + (f", {' and '.join(missing)} missing" if missing else "")
    name = configuration_name(store.name, {manifest.get("copy_of") for manifest in manifests.values()})
    origins = sorted({manifest["origin"] for manifest in manifests.values()})
    return Entry(name, _format_counts(counts), state, ", ".join(origins), size)


def _format_counts(counts: Mapping[str, int]) -> str:
    """Format the number of images of each split, train first."""
    return ", ".join(f"{counts[split]:,} {split}" for split in sorted(counts, key=lambda split: split != "train"))


def absolute(source: str) -> str:
    """Return a source with its path, if any, made absolute, for a process that runs in another folder."""
    for prefix in LOCATION_PREFIXES:
        path = Path(source.removeprefix(prefix)).expanduser()
        if source.startswith(prefix) and path.exists():
            return f"{prefix}{path.resolve()}"
    return source
