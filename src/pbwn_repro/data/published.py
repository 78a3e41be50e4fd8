"""The published sets as sources of decoded splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pbwn_repro.data.errors import DamagedFileError, MissingFileError
from pbwn_repro.data.fetching import fetch
from pbwn_repro.data.known_sets import KnownSet, SourceFile
from pbwn_repro.data.progress import Quiet
from pbwn_repro.data.splits import MemorySplit
from pbwn_repro.data.store import Decoded, Store
from pbwn_repro.data.verification import locate_any, verify


@dataclass(frozen=True)
class PublishedSource:
    """A published set; its files are the user's own, or fetched."""

    known: KnownSet
    data_dir: Path | None = None

    @property
    def name(self) -> str:
        """The set's name."""
        return self.known.name

    given = name

    def called(self, copy_of: str | None) -> str:
        """Return the set's name."""
        return self.name

    @property
    def digests(self) -> Mapping[str, Sequence[str]]:
        """The published checksums."""
        return {split: [file.md5 for file in part.files] for split, part in self.known.splits.items()}

    def folders(self) -> list[Path]:
        """Return where the user's own files may be: in a folder of the set's name, or in the given one."""
        return [self.data_dir / self.name, self.data_dir] if self.data_dir else []

    def files_of_user(self, wanted: Sequence[SourceFile]) -> dict[SourceFile, tuple[Path, ...]]:
        """Return the user's own files, verified."""
        found = {}
        for file in wanted:
            paths = locate_any(self.folders(), file)
            if not paths:
                raise MissingFileError.about(
                    self.data_dir,
                    expected=f"{file.name} here or in {self.name}/",
                    found="no such file",
                    remedy="Put the published file there, or leave out --data-dir to download it.",
                )
            verify(paths, file, remedy="Replace it by the published file, or leave out --data-dir to download it.")
            found[file] = paths
        return found

    def decode(self, splits: Sequence[str], store: Store, partial: Path, progress: Quiet) -> dict[str, Decoded]:
        """Find or fetch the files, read them, and count the pictures."""
        wanted = self.known.files(splits)
        if self.data_dir is not None:
            files, origin = self.files_of_user(wanted), "your files"
        else:
            files, origin = fetch(self.known, wanted, store.files, partial, progress)
        decoded = {}
        for split in splits:
            part = self.known.splits[split]
            progress.say(f"Decoding {self.name}, {split}.")
            paths = [path for file in part.files for path in files[file]]
            pictures = MemorySplit(*self.known.read(split, paths))
            if len(pictures) != part.count:
                raise DamagedFileError.about(
                    ", ".join(map(str, paths)),
                    expected=f"{part.count:,} pictures",
                    found=f"{len(pictures):,}",
                    remedy="Fetch the files anew.",
                )
            decoded[split] = Decoded(pictures, self.known.classes, origin)
        return decoded
