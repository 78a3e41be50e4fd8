"""A thorough look at a set: every file, every digest, every picture. Nothing is fetched or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pbwn_repro.data import parquet
from pbwn_repro.data.caching import Source
from pbwn_repro.data.errors import DamagedFileError, DataError, MissingFileError
from pbwn_repro.data.folder import FolderSplit, decode
from pbwn_repro.data.hugging_face import ParquetSource
from pbwn_repro.data.known_sets import SourceFile
from pbwn_repro.data.loading import check_folder, find_source, load_uncached
from pbwn_repro.data.published import PublishedSource
from pbwn_repro.data.splits import Split
from pbwn_repro.data.store import Store, cache_root, read_decoded
from pbwn_repro.data.verification import locate_any, verify

Look = tuple[str, Callable[[], str]]


@dataclass(frozen=True)
class Finding:
    """A thing, whether it is right, and what is known of it."""

    thing: str
    right: bool
    detail: str


def check(name: str, *, data_dir: Path | str | None = None, cache_dir: Path | str | None = None) -> Iterator[Finding]:
    """Yield a finding for each part of a set that is here; a set of which nothing is here is an error."""
    root = cache_root(cache_dir)
    folder = check_folder(data_dir)
    source = find_source(name, folder)
    looks = list(uncached_looks(name, folder) if source is None else cached_looks(source, root))
    if not looks:
        raise MissingFileError.about(
            name,
            expected=f"files in {folder or root / name}",
            found="none",
            remedy=f"Run `pbwn data get {name}` first.",
        )
    for thing, look in looks:
        try:
            yield Finding(thing, True, look())
        except DataError as error:
            yield Finding(thing, False, str(error))


def verify_own_files(name: str, data_dir: Path | str | None, splits: Sequence[str] | None) -> None:
    """Raise if the files that a user points at are not the published ones, even if the set is in the cache."""
    source = find_source(name, check_folder(data_dir))
    if isinstance(source, PublishedSource) and source.data_dir:
        source.files_of_user(source.known.files(splits))


def cached_looks(source: Source, root: Path) -> Iterator[Look]:
    """Yield the looks at a set's files and at its decoded form."""
    store = Store(root, source.name)
    if isinstance(source, PublishedSource):
        folders = source.folders() or [store.files]
        for file in source.known.files():
            if paths := locate_any(folders, file):
                yield ", ".join(path.name for path in paths), partial(look_at_file, paths, file, source.given)
    elif isinstance(source, ParquetSource):
        for split, files in source.files.items():
            yield f"pictures of {split}", partial(look_at_parquet, files)
    for split, digests in source.digests.items():
        place = store.decoded_folder(split, digests)
        if place.is_dir():
            yield f"decoded {split}", partial(look_at_decoded, place, source.given)


def uncached_looks(name: str, folder: Path | None) -> Iterator[Look]:
    """Yield the looks at the splits of a set that is embedded, made, or a folder of pictures."""
    for split, pictures in load_uncached(name, folder).splits.items():
        yield split, partial(look_at_split, pictures)


def look_at_file(paths: Sequence[Path], file: SourceFile, given: str) -> str:
    """Compare the checksums."""
    verify(paths, file, remedy=f"Replace it; `pbwn data get {given}` does that in the cache.")
    return f"{sum(path.stat().st_size for path in paths):,} bytes, the published content"


def look_at_parquet(files: tuple[Path, ...]) -> str:
    """Decode every picture."""
    return f"{len(parquet.read_split(files)):,} pictures decode"


def look_at_decoded(place: Path, given: str) -> str:
    """Compare the digests."""
    decoded = read_decoded(place, remedy=f"Run `pbwn data get {given}` to decode it anew.")
    assert decoded is not None
    return f"{len(decoded.split):,} pictures, sha256 {decoded.split.digest[:16]}, from {decoded.origin}"


def look_at_split(pictures: Split) -> str:
    """Decode every picture if they are files."""
    if isinstance(pictures, FolderSplit):
        damaged = [str(error) for path in pictures.paths if (error := damage(pictures.folder / path))]
        if damaged:
            raise DamagedFileError("\n       ".join(damaged))
    return f"{len(pictures):,} pictures, sha256 {pictures.digest[:16]}"


def damage(picture: Path) -> DamagedFileError | None:
    """Return why a picture does not decode, if it does not."""
    try:
        decode(picture)
    except DamagedFileError as error:
        return error
    return None
