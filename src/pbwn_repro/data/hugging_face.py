"""Data sets of the Hugging Face hub, or local folders of their parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pbwn_repro.data import parquet
from pbwn_repro.data.digests import file_digest
from pbwn_repro.data.errors import DataError, DownloadError, MissingFileError
from pbwn_repro.data.known_sets import KNOWN_SETS, copy_of
from pbwn_repro.data.names import LOSSLESS
from pbwn_repro.data.progress import Quiet
from pbwn_repro.data.store import Decoded, Store

PREFIX = "hf:"
DECODING = "2"  # raised when decoded splits have to be made anew


def locate_folder(name_or_path: str) -> tuple[str, Path]:
    """Return the set's short name and the folder of its parquet files; a hub name is downloaded first."""
    require_extra()
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path.resolve().name, path
    if path.is_absolute() or name_or_path.startswith(("~", ".")):
        raise MissingFileError.about(
            PREFIX + name_or_path,
            expected="a folder of parquet files",
            found="no such folder",
            remedy="Correct the path, or give a name of the hub like hf:uoft-cs/cifar10.",
        )
    return name_or_path.rpartition("/")[2], download_snapshot(name_or_path)


def require_extra() -> None:
    """Raise with the install line unless the extra is there."""
    try:
        import huggingface_hub  # noqa: F401
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        raise DataError.about(
            "sets named hf:", expected="the package " + str(error.name), found="none", remedy="pip install 'pbwn[hf]'"
        ) from error


def download_snapshot(name: str) -> Path:
    """Return the folder with the parquet files of a data set on the hub."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns="*.parquet"))
    except Exception as error:  # the hub's client raises many kinds, for the name, the network and the permission
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DownloadError.about(
            PREFIX + name,
            expected="a local folder or a data set on the hub",
            found=f"neither ({reason})",
            remedy="Correct the name, connect to the internet, or give a local folder of parquet files.",
        ) from error


@dataclass(frozen=True)
class ParquetSource:
    """Parquet files as a source of decoded splits; the name says how the images are encoded: cifar10-jpeg.

    Files without loss that hold the images of a published set have its name: cifar100-lossless.
    """

    given: str
    name: str
    files: Mapping[str, tuple[Path, ...]]
    digests: Mapping[str, Sequence[str]]

    def called(self, copy_of: str | None) -> str:
        """Return the name of the published set that this is a copy of, or the files' own name."""
        return f"{copy_of}{LOSSLESS}" if copy_of else self.name

    def decode(self, splits: Sequence[str], store: Store, partial: Path, progress: Quiet) -> dict[str, Decoded]:
        """Decode every picture."""
        decoded = {}
        for split in splits:
            progress.say(f"Decoding {self.name}, {split}.")
            pictures = parquet.read_split(self.files[split])
            if known := copy_of(split, pictures.images, pictures.labels):
                origin = "parquet files, in an order of their own"
                decoded[split] = Decoded(pictures, KNOWN_SETS[known].classes, origin, known)
                continue
            names = parquet.class_names(self.files[split][0])
            numbers = (str(label) for label in range(int(pictures.labels.max()) + 1))
            decoded[split] = Decoded(pictures, names or tuple(numbers), "parquet files")
        return decoded


def find_source(name_or_path: str) -> ParquetSource:
    """Return the source behind hf:NAME_OR_PATH."""
    short, folder = locate_folder(name_or_path)
    files = parquet.split_files(folder)
    name = f"{short}-{parquet.picture_format(files['train'][0])}"
    digests = {split: [DECODING, *(file_digest(file, "sha256") for file in parts)] for split, parts in files.items()}
    return ParquetSource(PREFIX + name_or_path, name, files, digests)
