"""The published formats, read out of small files that are made in them; and each way in which they can be wrong."""

import dataclasses
import gzip
import shutil

import numpy
import pytest
import torch
from scipy.io import savemat

from pbwn_repro.data import DamagedFileError, MissingFileError, UnknownSetError, join
from pbwn_repro.data.cache import load_cached
from pbwn_repro.data.download import Quiet
from pbwn_repro.data.published import KNOWN_SETS, PublishedSource
from pbwn_repro.data.readers import read_idx, read_idx_split, read_members, read_svhn_split


def load(known, cache, data_dir=None, splits=None, damaged="error"):
    return load_cached(PublishedSource(known, data_dir), cache, splits=splits, damaged=damaged, progress=Quiet())


def test_idx_files_give_the_pixels_and_labels_that_were_written(published, cache, make):
    dataset = load(make.idx_set(published), cache, published)
    assert torch.equal(dataset.train.images, torch.from_numpy(make.pixels(20, 1, 28, 0)))
    assert torch.equal(dataset.test.images, torch.from_numpy(make.pixels(10, 1, 28, 1)))
    assert dataset.train.labels.tolist() == [*range(10), *range(10)]


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_records_give_pixels_and_the_fine_label(published, cache, make, label_bytes):
    dataset = load(make.cifar_set(published, label_bytes), cache, published)
    assert dataset.train.images.shape == (20, 3, 32, 32)
    assert torch.equal(dataset.test.images, torch.from_numpy(make.pixels(10, 3, 32, 99)))
    assert dataset.test.labels.tolist() == list(range(10))


def test_svhn_turns_its_axes_and_reads_label_ten_as_zero(published, cache, make):
    dataset = load(make.svhn_set(published), cache, published)
    assert torch.equal(dataset.train.images, torch.from_numpy(make.pixels(20, 3, 32, 0)))
    assert dataset.train.labels.tolist() == [*range(10), *range(10)]
    assert len(join(dataset.train, dataset["extra"])) == 50


def test_a_chosen_split_needs_only_its_own_files(published, cache, make):
    known = make.svhn_set(published)
    (published / "extra_32x32.mat").unlink()
    assert set(load(known, cache, published, splits=("train", "test")).splits) == {"train", "test"}
    with pytest.raises(UnknownSetError, match=r"split 'valid'.*expected train or test or extra"):
        load(known, cache, published, splits=("valid",))


def test_the_digest_is_of_the_content_wherever_it_came_from(published, tmp_path, make):
    known = make.idx_set(published)
    unpacked = tmp_path / "unpacked" / known.name
    unpacked.mkdir(parents=True)
    for file in known.files():
        (unpacked / file.name.removesuffix(".gz")).write_bytes(gzip.decompress((published / file.name).read_bytes()))
    packed_digest = load(known, tmp_path / "one", published).digest
    assert load(known, tmp_path / "one").digest == packed_digest  # out of the cache, without the files
    assert load(known, tmp_path / "two", unpacked.parent).digest == packed_digest
    (published / "other").mkdir()
    assert load(make.svhn_set(published / "other"), tmp_path / "three", published / "other").digest != packed_digest


def test_the_unpacked_files_of_a_cifar_archive_are_taken_in_its_place(published, tmp_path, make):
    known = make.cifar_set(published)
    digest = load(known, tmp_path / "one", published).digest
    shutil.unpack_archive(published / "cifar.tar.gz", tmp_path / "unpacked")
    assert load(known, tmp_path / "two", tmp_path / "unpacked").digest == digest
    damaged = tmp_path / "unpacked" / "cifar-10-batches-bin" / "data_batch_3.bin"
    alter(damaged)
    with pytest.raises(DamagedFileError, match=r"data_batch_3.bin: expected content with sha256"):
        load(known, tmp_path / "three", tmp_path / "unpacked")
    damaged.unlink()
    with pytest.raises(MissingFileError, match=r"expected cifar.tar.gz here"):
        load(known, tmp_path / "three", tmp_path / "unpacked")


def test_another_gzip_packing_of_the_same_content_is_taken(published, cache, make):
    known = make.idx_set(published)
    file = known.files()[0]
    path = published / file.name
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=1, mtime=1))
    assert len(load(known, cache, published).train) == 20


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def alter(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("maker", ["idx_set", "cifar_set", "svhn_set"])
@pytest.mark.parametrize("damage", [cut, alter])
def test_a_cut_or_altered_file_is_named_with_expected_and_found(published, cache, make, maker, damage):
    known = getattr(make, maker)(published)
    file = known.files()[0]
    damage(published / file.name)
    size = (published / file.name).stat().st_size
    with pytest.raises(DamagedFileError) as error:
        load(known, cache, published)
    for part in (str(published / file.name), f"{file.size:,} bytes with md5 {file.md5}", f"found {size:,} bytes with"):
        assert part in str(error.value)
    assert not list(cache.glob("*/decoded/*"))
    assert not list(cache.glob("*/partial"))


def test_a_damaged_unpacked_file_is_told_by_its_sha256(published, cache, make):
    known = make.idx_set(published)
    file = known.files()[0]
    path = published / file.name
    unpacked = published / file.name.removesuffix(".gz")
    unpacked.write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()
    alter(unpacked)
    with pytest.raises(DamagedFileError, match=rf"expected content with sha256 {file.contents[unpacked.name]}"):
        load(known, cache, published)


def test_swapped_files_are_an_error_that_names_them(published, cache, make, monkeypatch):
    known = make.idx_set(published)
    train, test = (published / known.splits[split].files[0].name for split in ("train", "test"))
    shutil.move(train, published / "aside")
    shutil.move(test, train)
    shutil.move(published / "aside", test)
    monkeypatch.setattr("pbwn_repro.data.published.KNOWN_SETS", {known.name: known})
    with pytest.raises(DamagedFileError, match=rf"{train.name}: expected .* {train.name} is {test.name} of tiny-mnist"):
        load(known, cache, published)


def test_a_file_that_is_not_there_is_named_with_the_folder(published, cache, make):
    known = make.idx_set(published)
    (published / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(MissingFileError, match=r"published: expected t10k-labels-idx1-ubyte\.gz"):
        load(known, cache, published)


def test_a_file_with_too_few_images_is_an_error_even_with_the_right_checksum(published, cache, make):
    known = make.cifar_set(published)
    more = {split: dataclasses.replace(part, count=part.count + 1) for split, part in known.splits.items()}
    with pytest.raises(DamagedFileError, match=r"expected 21 images, found 20"):
        load(dataclasses.replace(known, splits=more), cache, published)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "beginning with nothing"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x05", "expected an idx file of 3 dimensions"),
        (b"\x00\x00\x08\x03" + b"\x00\x00\x00\x02" * 3 + b"1234567", "expected 24 bytes for shape .2, 2, 2., found 23"),
        (gzip.compress(b"1" * 100, mtime=0)[:-9], "cannot be unpacked"),
    ],
)
def test_bytes_that_are_no_idx_file_are_an_error(tmp_path, content, message):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=message):
        read_idx(path, 3)


def test_images_and_labels_of_different_numbers_are_an_error(tmp_path, make):
    (tmp_path / "images").write_bytes(make.idx_bytes(make.pixels(3, 1, 28)[:, 0]))
    (tmp_path / "labels").write_bytes(make.idx_bytes(numpy.arange(4)))
    with pytest.raises(DamagedFileError, match=r"labels: expected 3 labels.*found 4"):
        read_idx_split("train", [tmp_path / "images", tmp_path / "labels"])


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"X": numpy.zeros((32, 32, 3, 4)), "z": numpy.ones((4, 1))}, "expected variables X .* and y"),
        ({"X": numpy.zeros((32, 32, 3, 4)), "y": numpy.ones((5, 1))}, r"y \(5, 1\)"),
        ({"X": numpy.zeros((32, 32, 3, 4)), "y": numpy.full((4, 1), 11)}, "expected labels 1..10, found 11..11"),
    ],
)
def test_a_mat_file_of_another_kind_is_an_error(tmp_path, variables, message):
    savemat(tmp_path / "train_32x32.mat", variables)
    with pytest.raises(DamagedFileError, match=message):
        read_svhn_split("train", [tmp_path / "train_32x32.mat"])


def test_a_file_that_is_no_mat_file_is_an_error(tmp_path):
    (tmp_path / "train_32x32.mat").write_bytes(b"no matrix" * 100)
    with pytest.raises(DamagedFileError, match=r"expected a MATLAB file"):
        read_svhn_split("train", [tmp_path / "train_32x32.mat"])


def test_the_published_counts_are_those_of_the_paper():
    counts = {name: {split: part.count for split, part in known.splits.items()} for name, known in KNOWN_SETS.items()}
    assert counts["cifar10"] == counts["cifar100"] == {"train": 50_000, "test": 10_000}
    assert counts["mnist"] == counts["fashion-mnist"] == {"train": 60_000, "test": 10_000}
    assert counts["svhn"] == {"train": 73_257, "test": 26_032, "extra": 531_131}
    assert counts["svhn"]["train"] + counts["svhn"]["extra"] == 604_388
    assert {len(known.classes) for known in KNOWN_SETS.values()} == {10, 100}


def test_the_named_members_are_read(tmp_path, make):
    archive = make.tar_gz(tmp_path / "a.tar.gz", {"d/one": b"1", "d/two": b"22", "three": b"333"})
    assert dict(read_members(archive, ["d/two", "three"])) == {"d/two": b"22", "three": b"333"}


def test_a_missing_member_is_named(tmp_path, make):
    archive = make.tar_gz(tmp_path / "a.tar.gz", {"one": b"1"})
    with pytest.raises(DamagedFileError, match=r"expected the members one, two, found no two"):
        list(read_members(archive, ["one", "two"]))


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_file_that_is_no_whole_archive_is_an_error(tmp_path, make, content):
    archive = make.tar_gz(tmp_path / "a.tar.gz", {"one": bytes(range(256)) * 100})
    archive.write_bytes(archive.read_bytes()[:60] if content is None else content)
    with pytest.raises(DamagedFileError, match=r"expected a complete tar.gz archive"):
        list(read_members(archive, ["one"]))
