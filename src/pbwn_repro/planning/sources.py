"""Where the data of a sweep come from: each set is loaded once, and a copy of it may stand in its place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pbwn_repro.data import DataError, DataSet, TextSet, UnknownSetError, load, original
from pbwn_repro.data.cache import Store, cache_root
from pbwn_repro.data.download import Quiet
from pbwn_repro.data.loading import PLACES, find_source
from pbwn_repro.data.text import SHAKESPEARE, find_shakespeare


@dataclass(frozen=True)
class Sources:
    """What stands in for which set, and where files are.

    given: by the name of a set, what to load in its place.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    data_dir: Path | None = None
    cache_dir: Path | None = None
    progress: Quiet = field(default_factory=Quiet)
    _loaded: dict[tuple[str, ...], DataSet | TextSet] = field(default_factory=dict)

    def source_of(self, name: str) -> str:
        """What is loaded for a set."""
        return self.given.get(name, name)

    def load(self, name: str, splits: Sequence[str]) -> DataSet | TextSet:
        """The set, or its copy, fetched if need be; a set that is no copy of it is an error."""
        source, key = self.source_of(name), (name, *splits)
        if key not in self._loaded:
            try:
                found = load(
                    source, data_dir=self.data_dir, cache_dir=self.cache_dir, splits=splits, progress=self.progress
                )
            except UnknownSetError:
                raise
            except DataError as error:
                raise type(error)(f"{error}{_remedy(name, source)}") from None
            if original(found.name) != original(name):
                raise ValueError(f"--data {name}={source}: that is {found.name}, and no copy of {name}")
            self._loaded[key] = found
        return self._loaded[key]

    def has(self, name: str, splits: Sequence[str]) -> bool:
        """Whether the set can be had without a download."""
        source = self.source_of(name)
        found = find_source(source, self.data_dir)
        if source == SHAKESPEARE and self.data_dir is None:
            return find_shakespeare(Store(cache_root(self.cache_dir), source).files) is not None
        if found is None:
            return source != "imagenet" or self.data_dir is not None
        if self.data_dir is not None or source != name:
            return True
        store = Store(cache_root(self.cache_dir), found.name)
        return all(store.decoded_folder(split, found.digests[split]).is_dir() for split in splits)


def parse_sources(words: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """Read `NAME=SOURCE`, or a source alone where there is one set only that it can stand for."""
    given: dict[str, str] = {}
    for word in words:
        name, separator, source = word.partition("=")
        if not separator:
            if len(names) != 1:
                raise ValueError(f"--data {word!r}: for which set? Write NAME=SOURCE with one of {', '.join(names)}")
            [name], source = names, word
        if name not in names:
            raise ValueError(f"--data {word!r}: no run needs {name!r}; they need {', '.join(names)}")
        given[name] = _anywhere(source)
    return given


def _anywhere(source: str) -> str:
    """The same source for a process that works in another folder: paths from the root."""
    for prefix in PLACES:
        path = Path(source.removeprefix(prefix)).expanduser()
        if source.startswith(prefix) and path.exists():
            return f"{prefix}{path.resolve()}"
    return source


def _remedy(name: str, source: str) -> str:
    if name == "imagenet" or source != name:
        return ""  # the error itself says what to do
    return f" `pbwn data get {name}` fetches the set; a copy can be named with --data {name}=SOURCE."
