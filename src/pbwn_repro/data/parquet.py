"""Hugging Face's layout: parquet files with encoded pictures and labels, decoded into memory."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from pbwn_repro.data.errors import DamagedFileError, DataError, MissingFileError
from pbwn_repro.data.splits import MemorySplit, to_pixels

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label")
SPLIT_NAME = re.compile(r"^(train|test|validation|valid|val)(?![a-z])")
ROWS_AT_ONCE = 1_000


def split_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the parquet files of each split, by the beginnings of their names; validation serves where no test is."""
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


def pictures(file: Path) -> Iterator[tuple[str, bytes | None, int | None]]:
    """Yield where each picture stands, its encoded bytes and its label."""
    row = 0
    with _opened(file) as parquet:
        names = parquet.schema_arrow.names
        image, label = _column(file, names, IMAGE_COLUMNS), _column(file, names, LABEL_COLUMNS)
        for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=[image, label]):
            for picture, number in zip(batch[image].to_pylist(), batch[label].to_pylist(), strict=True):
                encoded = picture if isinstance(picture, dict) else {"bytes": picture}
                name = f" ({encoded['path']})" if encoded.get("path") else ""
                yield f"{file}, row {row}{name}", encoded.get("bytes"), number
                row += 1


def class_names(file: Path) -> tuple[str, ...] | None:
    """Return the names that Hugging Face's metadata gives to the labels, if it does."""
    with _opened(file) as parquet:
        metadata = (parquet.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(metadata).get("info", {}).get("features", {})
    return next((tuple(features[name]["names"]) for name in LABEL_COLUMNS if "names" in features.get(name, {})), None)


def picture_format(file: Path) -> str:
    """Return how the first picture is encoded: jpeg, png."""
    for place, content, _ in pictures(file):
        return str(_open_picture(place, content).format).lower()
    raise DamagedFileError.about(file, expected="pictures", found="no rows", remedy="Fetch the file anew.")


def read_split(files: Sequence[Path]) -> MemorySplit:
    """Decode all pictures; all must have the size of the first, and are grey if it is."""
    images, labels, mode = [], [], None
    for file in files:
        for place, content, label in pictures(file):
            picture = _open_picture(place, content)
            mode = mode or ("L" if picture.mode in ("L", "1") else "RGB")
            images.append(_decode(place, picture, mode))
            if images[-1].shape != images[0].shape:
                raise DataError.about(
                    place,
                    expected=f"{images[0].shape[2]}x{images[0].shape[1]} pixels like the first picture",
                    found=f"{picture.width}x{picture.height}",
                    remedy="Pictures of many sizes do not fit into one tensor: unpack them and use folder:PATH.",
                )
            if not isinstance(label, int):
                remedy = "Give every row a class number."
                raise DamagedFileError.about(
                    place, expected="a whole number as label", found=repr(label), remedy=remedy
                )
            labels.append(label)
    return MemorySplit(torch.stack(images), torch.tensor(labels))


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file) as parquet:
            yield parquet
    except (pyarrow.ArrowException, OSError) as error:
        size = f"{file.stat().st_size:,} bytes that do not read ({error})"
        remedy = "The file was cut or altered: fetch it anew."
        raise DamagedFileError.about(file, expected="a parquet file", found=size, remedy=remedy) from error


def _column(file: Path, names: Sequence[str], wanted: Sequence[str]) -> str:
    for name in wanted:
        if name in names:
            return name
    raise DamagedFileError.about(
        file,
        expected=f"a column {' or '.join(wanted)}",
        found=f"columns {', '.join(names)}",
        remedy="Rename the column, or choose a classification set of pictures.",
    )


def _open_picture(place: str, content: bytes | None) -> Image.Image:
    if not content:
        raise _undecodable(place, "no bytes")
    try:
        return Image.open(io.BytesIO(content))
    except (OSError, ValueError, SyntaxError) as error:
        raise _undecodable(place, f"{len(content):,} bytes that do not decode ({error})") from error


def _decode(place: str, picture: Image.Image, mode: str) -> torch.Tensor:
    try:
        return to_pixels(picture.convert(mode))
    except (OSError, ValueError, SyntaxError) as error:
        raise _undecodable(place, f"bytes that do not decode ({error})") from error


def _undecodable(place: str, found: str) -> DamagedFileError:
    return DamagedFileError.about(place, expected="an encoded picture", found=found, remedy="Fetch the file anew.")
