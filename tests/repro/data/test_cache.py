"""The decoded form in the cache: whole, verified at each load, and replaced only when asked."""

import json
import re

import pytest
import torch

from pbwn_repro.data import DamagedFileError, MemorySplit
from pbwn_repro.data.cache import Decoded, Store, cache_root, load_cached, read_decoded, write_decoded
from pbwn_repro.data.download import Quiet
from pbwn_repro.data.published import PublishedSource


@pytest.fixture
def decoded():
    split = MemorySplit(torch.arange(48, dtype=torch.uint8).view(4, 3, 2, 2), torch.arange(4))
    return Decoded(split, ("a", "b", "c", "d"), "here")


def write(tmp_path, decoded):
    store = Store(tmp_path, "tiny")
    folder = store.decoded_folder("train", ["abc"])
    with store.writing(Quiet()) as partial:
        write_decoded(folder, partial, decoded)
    return folder


def test_a_split_comes_back_as_it_was_written(tmp_path, decoded):
    back = read_decoded(write(tmp_path, decoded), remedy="")
    assert torch.equal(back.split.images, decoded.split.images)
    assert torch.equal(back.split.labels, decoded.split.labels)
    assert back.split.digest == decoded.split.digest
    assert (back.classes, back.origin) == (decoded.classes, decoded.origin)


def test_other_source_files_have_another_folder(tmp_path):
    store = Store(tmp_path, "tiny")
    assert store.decoded_folder("train", ["abc"]) != store.decoded_folder("train", ["abd"])


def flip_pixel(folder):
    path = folder / "images.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_labels(folder):
    path = folder / "labels.npy"
    path.write_bytes(path.read_bytes()[:-3])


def empty_images(folder):
    (folder / "images.npy").write_bytes(b"")


def lose_labels(folder):
    (folder / "labels.npy").unlink()


def break_manifest(folder):
    (folder / "manifest.json").write_text("{")


def strip_manifest(folder):
    (folder / "manifest.json").write_text(json.dumps({"sha256": {}}))


@pytest.mark.parametrize(
    "damage",
    [flip_pixel, cut_labels, empty_images, lose_labels, break_manifest, strip_manifest],
    ids=lambda d: d.__name__,
)
def test_a_damaged_decoded_split_is_noticed_and_named(tmp_path, decoded, damage):
    folder = write(tmp_path, decoded)
    damage(folder)
    with pytest.raises(DamagedFileError, match=rf"{re.escape(str(folder))}.*: expected .*, found .*. Do this."):
        read_decoded(folder, remedy="Do this.")


def test_a_damaged_decoded_split_is_replaced_when_asked(published, cache, make):
    known = make.cifar_set(published)

    def load(damaged):
        return load_cached(PublishedSource(known, published), cache, splits=None, damaged=damaged, progress=Quiet())

    digest = load("error").digest
    flip_pixel(next(cache.glob("*/decoded/train-*")))
    with pytest.raises(DamagedFileError, match=r"Run `pbwn data get tiny-cifar` to decode it again"):
        load("error")
    assert load("replace").digest == digest
    assert load("error").digest == digest


def test_an_error_while_writing_leaves_nothing(tmp_path, decoded):
    store = Store(tmp_path, "tiny")
    with pytest.raises(RuntimeError), store.writing(Quiet()) as partial:  # noqa: PT012
        (partial / "half").write_bytes(b"half")
        raise RuntimeError
    assert [path.name for path in store.folder.iterdir()] == ["lock"]


def test_the_cache_folder_can_be_set(monkeypatch, tmp_path):
    monkeypatch.setenv("PBWN_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("PBWN_CACHE")
    assert cache_root().name == "pbwn"
