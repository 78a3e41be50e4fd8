"""Data sets in Hugging Face's layout: parquet files of encoded images and labels, in a folder or on the Hub."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pooch
import torch
from PIL import Image

from pbwn_repro.data.cache import Decoded, Store
from pbwn_repro.data.download import Quiet
from pbwn_repro.data.published import copy_of
from pbwn_repro.data.splits import MemorySplit, to_pixels
from pbwn_repro.errors import DamagedFileError, DataError, DownloadError, MissingFileError

PREFIX = "hf:"
IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label")
SPLIT_NAME = re.compile(r"^(train|test|validation|valid|val)(?![a-z])")
ROWS_AT_ONCE = 1_000
DECODING = "2"  # incremented to invalidate decoded splits


@dataclass(frozen=True)
class ParquetSource:
    """Parquet files as a source of decoded splits, named after their image encoding, such as cifar10-jpeg.

    A lossless copy of a published set is named after that set, such as cifar100-lossless.
    """

    given: str
    name: str
    files: Mapping[str, tuple[Path, ...]]
    digests: Mapping[str, Sequence[str]]

    def decode(self, splits: Sequence[str], store: Store, partial: Path, progress: Quiet) -> dict[str, Decoded]:
        """Decode every image, and recognise copies of the published sets."""
        decoded = {}
        for split in splits:
            progress.say(f"Decoding {self.name}, {split}.")
            images = read_split(self.files[split])
            if known := copy_of(split, images):
                origin = "parquet files, in an order of their own"
                decoded[split] = Decoded(images, known.classes, origin, known.name)
            else:
                numbers = tuple(str(label) for label in range(int(images.labels.max()) + 1))
                decoded[split] = Decoded(images, _class_names(self.files[split][0]) or numbers, "parquet files")
        return decoded


def find_parquet(name_or_path: str) -> ParquetSource:
    """Return the source that hf:NAME_OR_PATH refers to."""
    short, folder = _locate_folder(name_or_path)
    files = _split_files(folder)
    name = f"{short}-{_image_format(files['train'][0])}"
    digests = {
        split: [DECODING, *(pooch.file_hash(file, alg="sha256") for file in parts)] for split, parts in files.items()
    }
    return ParquetSource(PREFIX + name_or_path, name, files, digests)


def read_split(files: Sequence[Path]) -> MemorySplit:
    """Decode all images; all must have the size of the first, and are greyscale if it is."""
    images, labels, mode = [], [], None
    for file in files:
        for location, content, label in _rows(file):
            image = _open_image(location, content)
            mode = mode or ("L" if image.mode in ("L", "1") else "RGB")
            try:
                images.append(to_pixels(image.convert(mode)))
            except (OSError, ValueError, SyntaxError) as error:
                raise _undecodable(location, f"bytes that cannot be decoded ({error})") from error
            if images[-1].shape != images[0].shape:
                raise DataError.about(
                    location,
                    expected=f"{images[0].shape[2]}x{images[0].shape[1]} pixels like the first image",
                    found=f"{image.width}x{image.height}",
                    remedy="Images of different sizes do not fit into one tensor: unpack them and use folder:PATH.",
                )
            if not isinstance(label, int):
                remedy = "Give every row an integer class label."
                raise DamagedFileError.about(location, expected="an integer label", found=repr(label), remedy=remedy)
            labels.append(label)
    return MemorySplit(torch.stack(images), torch.tensor(labels))


def _locate_folder(name_or_path: str) -> tuple[str, Path]:
    """Return the set's short name and the folder of its parquet files, downloading a set that is on the Hub."""
    try:
        import huggingface_hub
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        raise DataError.about(
            "hf: data sets", expected=f"the package {error.name}", found="none", remedy="pip install 'pbwn[hf]'"
        ) from error
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path.resolve().name, path
    if path.is_absolute() or name_or_path.startswith(("~", ".")):
        raise MissingFileError.about(
            PREFIX + name_or_path,
            expected="a folder of parquet files",
            found="no such folder",
            remedy="Correct the path, or give a name of the Hugging Face Hub such as hf:uoft-cs/cifar10.",
        )
    try:
        folder = huggingface_hub.snapshot_download(name_or_path, repo_type="dataset", allow_patterns="*.parquet")
    except Exception as error:  # the Hub's client raises many types, for names, network and permissions
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DownloadError.about(
            PREFIX + name_or_path,
            expected="a local folder or a data set on the Hugging Face Hub",
            found=f"neither ({reason})",
            remedy="Correct the name, connect to the internet, or give a local folder of parquet files.",
        ) from error
    return name_or_path.rpartition("/")[2], Path(folder)


def _split_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the parquet files of each split by file name prefix; validation serves as test if there is none."""
    files = sorted(folder.rglob("*.parquet"))
    folders = sorted({str(file.parent.relative_to(folder)) for file in files})
    if len(folders) > 1:
        raise DataError.about(
            folder,
            expected="the parquet files of one configuration",
            found=f"files in {', '.join(folders)}",
            remedy=f"Name one of these folders, for instance {folders[0]}.",
        )
    splits: dict[str, tuple[Path, ...]] = {}
    for file in files:
        if match := SPLIT_NAME.match(file.name):
            part = "validation" if match[1].startswith("val") else match[1]
            splits[part] = (*splits.get(part, ()), file)
    if "test" not in splits and "validation" in splits:
        splits["test"] = splits.pop("validation")
    if not splits.keys() >= {"train", "test"}:
        raise MissingFileError.about(
            folder,
            expected="parquet files train-*.parquet and test-*.parquet",
            found=", ".join(file.name for file in files) or "none",
            remedy="Give a folder in Hugging Face's layout.",
        )
    return {part: splits[part] for part in ("train", "test", "validation") if part in splits}


def _rows(file: Path) -> Iterator[tuple[str, bytes | None, int | None]]:
    """Yield the location, the encoded bytes and the label of each image."""
    row = 0
    with _open_parquet(file) as parquet:
        names = parquet.schema_arrow.names
        image, label = _column(file, names, IMAGE_COLUMNS), _column(file, names, LABEL_COLUMNS)
        for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=[image, label]):
            for value, number in zip(batch[image].to_pylist(), batch[label].to_pylist(), strict=True):
                encoded = value if isinstance(value, dict) else {"bytes": value}
                name = f" ({encoded['path']})" if encoded.get("path") else ""
                yield f"{file}, row {row}{name}", encoded.get("bytes"), number
                row += 1


def _class_names(file: Path) -> tuple[str, ...] | None:
    """Return the class names from Hugging Face's metadata, if any."""
    with _open_parquet(file) as parquet:
        metadata = (parquet.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(metadata).get("info", {}).get("features", {})
    return next((tuple(features[name]["names"]) for name in LABEL_COLUMNS if "names" in features.get(name, {})), None)


def _image_format(file: Path) -> str:
    """Return the encoding of the first image, such as jpeg or png."""
    for location, content, _ in _rows(file):
        return str(_open_image(location, content).format).lower()
    raise DamagedFileError.about(file, expected="images", found="no rows", remedy="Download the file again.")


@contextmanager
def _open_parquet(file: Path) -> Iterator[Any]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file) as parquet:
            yield parquet
    except (pyarrow.ArrowException, OSError) as error:
        size = f"{file.stat().st_size:,} bytes that cannot be read ({error})"
        remedy = "The file is truncated or altered: download it again."
        raise DamagedFileError.about(file, expected="a parquet file", found=size, remedy=remedy) from error


def _column(file: Path, names: Sequence[str], candidates: Sequence[str]) -> str:
    for name in candidates:
        if name in names:
            return name
    raise DamagedFileError.about(
        file,
        expected=f"a column {' or '.join(candidates)}",
        found=f"columns {', '.join(names)}",
        remedy="Rename the column, or choose a set of images with labels.",
    )


def _open_image(location: str, content: bytes | None) -> Image.Image:
    if not content:
        raise _undecodable(location, "no bytes")
    try:
        return Image.open(io.BytesIO(content))
    except (OSError, ValueError, SyntaxError) as error:
        raise _undecodable(location, f"{len(content):,} bytes that cannot be decoded ({error})") from error


def _undecodable(location: str, found: str) -> DamagedFileError:
    remedy = "Download the file again."
    return DamagedFileError.about(location, expected="an encoded image", found=found, remedy=remedy)
