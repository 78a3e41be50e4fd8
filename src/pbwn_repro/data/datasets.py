"""A data set: splits with a name and a digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pbwn_repro.data.digests import combined_digest
from pbwn_repro.data.errors import DataError
from pbwn_repro.data.splits import Split


@dataclass(frozen=True, eq=False)
class DataSet:
    """Splits of pictures with common classes.

    name: stands in a run's configuration together with the digest; never a path.
    origin: where the files came from, for people.
    """

    name: str
    splits: Mapping[str, Split]
    classes: tuple[str, ...] = field(repr=False)
    origin: str

    def __post_init__(self) -> None:
        """Refuse labels outside of the classes: a swapped or foreign label file."""
        for split_name, split in self.splits.items():
            if len(split) and not 0 <= int(split.labels.min()) <= int(split.labels.max()) < len(self.classes):
                raise DataError.about(
                    f"labels of {self.name}, split {split_name}",
                    expected=f"0..{len(self.classes) - 1}",
                    found=f"{int(split.labels.min())}..{int(split.labels.max())}",
                    remedy="Replace the label file.",
                )

    def __getitem__(self, split: str) -> Split:
        """Return a split by name."""
        if split not in self.splits:
            raise DataError.about(
                f"split {split!r} of {self.name}",
                expected=" or ".join(self.splits),
                found="no such split",
                remedy="Choose one of these.",
            )
        return self.splits[split]

    @property
    def train(self) -> Split:
        """The pictures to train on."""
        return self["train"]

    @property
    def test(self) -> Split:
        """The pictures to test on."""
        return self["test"]

    @property
    def digest(self) -> str:
        """The sha256 of the content of the loaded splits and of the class names."""
        digests = {name: split.digest for name, split in self.splits.items()}
        return combined_digest({**digests, "classes": combined_digest(self.classes)})
