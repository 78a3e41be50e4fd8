"""Hugging Face's layout: local folders of parquet files, and names of the hub."""

import dataclasses
import shutil

import pytest
import torch
from pyarrow import parquet

from pbwn_repro.data import DamagedFileError, DataError, DownloadError, MemorySplit, MissingFileError, load, original
from pbwn_repro.data.loading import inventory
from pbwn_repro.data.published import KNOWN_SETS, KnownSplit
from pbwn_repro.runs.resolution import Sources, parse_sources, resolve


@pytest.mark.parametrize("columns", [("img", "label"), ("image", "label"), ("image", "labels"), ("img", "fine_label")])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_and_labels_come_out_of_parquet_files(tmp_path, cache, make, columns, channels):
    folder = make.parquet_folder(tmp_path / "tiny", channels=channels, columns=columns)
    dataset = load(f"hf:{folder}", cache_dir=cache)
    assert torch.equal(dataset.train.images, torch.from_numpy(make.pixels(20, channels, 8, 0)))
    assert dataset.test.labels.tolist() == list(range(10))
    assert list(dataset.splits) == ["train", "test"]


@pytest.mark.parametrize(("kind", "name"), [("PNG", "tiny-png"), ("JPEG", "tiny-jpeg")])
def test_the_name_says_the_encoding_and_never_the_path(tmp_path, cache, make, kind, name):
    dataset = load(f"hf:{make.parquet_folder(tmp_path / 'tiny', kind)}", cache_dir=cache)
    moved = load(f"hf:{make.parquet_folder(tmp_path / 'other' / 'tiny', kind)}", cache_dir=cache)
    assert (dataset.name, dataset.digest) == (moved.name, moved.digest) == (name, dataset.digest)


@pytest.fixture
def small_cifar10(monkeypatch, make):
    """A set named cifar10 whose images are those of `make.parquet_folder(..., size=32)` in another order."""
    splits, content = {}, {}
    for seed, (split, count) in enumerate((("train", 20), ("test", 10))):
        images, labels = torch.from_numpy(make.pixels(count, 3, 32, seed)), torch.arange(count) % 10
        order = torch.arange(count).flip(0)
        splits[split], content[split] = KnownSplit(count, ()), MemorySplit(images[order], labels[order]).content
    known = dataclasses.replace(KNOWN_SETS["cifar10"], splits=splits, content=content)
    monkeypatch.setattr("pbwn_repro.data.published.KNOWN_SETS", {"cifar10": known})


@pytest.mark.parametrize(
    ("kind", "folder", "name"), [("PNG", "any", "cifar10-lossless"), ("JPEG", "cifar10", "cifar10-jpeg")]
)
def test_a_copy_of_a_set_counts_as_the_set(tmp_path, cache, make, small_cifar10, kind, folder, name):
    folder = make.parquet_folder(tmp_path / folder, kind, size=32)
    config, dataset = resolve({"model": "resnet-20", "data": f"hf:{folder}"}, cache_dir=cache)
    assert (config.data.normalisation, config.data.augmentation) == ("cifar", "authors")
    assert config.data.name == dataset.name == name
    assert original(name) == "cifar10"
    found = Sources({"cifar10": f"hf:{folder}"}, cache_dir=cache).load("cifar10", ["train", "test"])
    assert (found.name, found.digest) == (name, config.data.digest)


def test_a_lossless_copy_has_the_class_names_of_the_set_and_tells_its_order(tmp_path, cache, make, small_cifar10):
    dataset = load(f"hf:{make.parquet_folder(tmp_path / 'any', size=32)}", cache_dir=cache)
    assert dataset.classes[:2] == ("airplane", "automobile")
    assert dataset.origin == "parquet files, in an order of their own"
    [entry] = [entry for entry in inventory(cache) if entry.origin == dataset.origin]
    assert (entry.name, entry.contents) == ("cifar10-lossless", "20 train, 10 test")


@pytest.mark.parametrize("changed", ["pixel", "label", "one image less"])
def test_other_images_or_labels_without_loss_are_another_set(tmp_path, cache, make, small_cifar10, changed):
    folder = make.parquet_folder(tmp_path / "cifar10", size=32)
    images, labels = make.pixels(10, 3, 32, 1), list(range(10))
    if changed == "pixel":
        images[3, 0, 5, 5] ^= 1
    elif changed == "label":
        labels[3] = 4
    else:
        images, labels = images[1:], labels[1:]
    make.write_parquet(folder / "test-00000-of-00001.parquet", [make.encoded(image) for image in images], labels)
    assert load(f"hf:{folder}", cache_dir=cache).name == "cifar10-png"
    assert original("cifar10-png") == "cifar10-png"
    with pytest.raises(ValueError, match=r"that is cifar10-png, not a copy of cifar10"):
        Sources({"cifar10": f"hf:{folder}"}, cache_dir=cache).load("cifar10", ["train", "test"])


def test_the_content_of_images_does_not_depend_on_their_order_but_on_which_label_is_whose():
    images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1)
    content = MemorySplit(images, torch.tensor([0, 0, 1, 2])).content
    assert MemorySplit(images.flip(0), torch.tensor([2, 1, 0, 0])).content == content
    assert MemorySplit(images.flip(0), torch.tensor([0, 0, 1, 2])).content != content


def test_paths_of_sources_hold_in_any_folder(tmp_path, make, monkeypatch):
    make.parquet_folder(tmp_path / "cifar10")
    monkeypatch.chdir(tmp_path)
    assert parse_sources(["hf:cifar10"], ["cifar10"]) == {"cifar10": f"hf:{tmp_path}/cifar10"}
    assert parse_sources(["hf:uoft-cs/cifar10"], ["cifar10"]) == {"cifar10": "hf:uoft-cs/cifar10"}


def test_the_second_load_comes_out_of_the_cache_and_changed_files_do_not(tmp_path, cache, make):
    folder = make.parquet_folder(tmp_path / "tiny")
    first = load(f"hf:{folder}", cache_dir=cache)
    written = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    assert load(f"hf:{folder}", cache_dir=cache).digest == first.digest
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")} == written
    images = [make.encoded(array) for array in make.pixels(20, 3, 8, 5)]
    make.write_parquet(folder / "train-00000-of-00001.parquet", images, [0] * 20)
    assert load(f"hf:{folder}", cache_dir=cache).digest != first.digest


def test_class_names_come_out_of_the_metadata(tmp_path, cache, make):
    names = [f"class {number}" for number in range(12)]
    assert load(f"hf:{make.parquet_folder(tmp_path / 'a', names=names)}", cache_dir=cache).classes == tuple(names)
    assert load(f"hf:{make.parquet_folder(tmp_path / 'b')}", cache_dir=cache).classes == tuple("0123456789")


def test_many_files_of_a_split_are_read_in_order_and_validation_serves_as_test(tmp_path, cache, make):
    folder = make.parquet_folder(tmp_path / "tiny")
    shutil.move(folder / "test-00000-of-00001.parquet", folder / "validation-00000-of-00001.parquet")
    shutil.copy(folder / "validation-00000-of-00001.parquet", folder / "train-00001-of-00002.parquet")
    dataset = load(f"hf:{folder}", cache_dir=cache)
    assert (len(dataset.train), len(dataset.test)) == (30, 10)
    assert torch.equal(dataset.train.images[20:], dataset.test.images)


def test_the_order_of_the_columns_does_not_matter(tmp_path, cache, make):
    folder = make.parquet_folder(tmp_path / "tiny")
    expected = load(f"hf:{folder}", cache_dir=cache).digest
    for path in folder.iterdir():
        parquet.write_table(parquet.read_table(path).select(["label", "img"]), path)
    assert load(f"hf:{folder}", cache_dir=cache).digest == expected


def damage_the_middle(folder, make):
    path = folder / "test-00000-of-00001.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)


def cut(folder, make):
    path = folder / "train-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def other_columns(folder, make):
    make.parquet_folder(folder, columns=("photo", "label"))


def no_labels(folder, make):
    make.parquet_folder(folder, columns=("img", "name"))


def broken_image(folder, make):
    images = [make.encoded(array) for array in make.pixels(20, 3, 8)]
    images[7] = images[7][:60]
    make.write_parquet(folder / "train-00000-of-00001.parquet", images, range(20))


def missing_image(folder, make):
    images = [make.encoded(make.pixels(1, 3, 8)[0]), None]
    make.write_parquet(folder / "train-00000-of-00001.parquet", images, range(2))


def missing_label(folder, make):
    images = [make.encoded(array) for array in make.pixels(2, 3, 8)]
    make.write_parquet(folder / "train-00000-of-00001.parquet", images, [3, None])


def two_sizes(folder, make):
    images = [make.encoded(make.pixels(1, 3, size)[0]) for size in (8, 9)]
    make.write_parquet(folder / "train-00000-of-00001.parquet", images, range(2))


def no_test(folder, make):
    (folder / "test-00000-of-00001.parquet").unlink()


def two_configurations(folder, make):
    make.parquet_folder(folder / "other")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_the_middle, "test-00000-of-00001.parquet: expected a parquet file, found [0-9,]+ bytes that cannot be"),
        (cut, "train-00000-of-00001.parquet: expected a parquet file, found [0-9,]+ bytes that cannot be read"),
        (other_columns, "train-00000-of-00001.parquet: expected a column img or image, found columns photo, label"),
        (no_labels, "expected a column label or labels or fine_label, found columns img, name"),
        (broken_image, r"parquet, row 7 \(7.png\): expected an encoded image, found"),
        (missing_image, r"row 1 \(1.png\): expected an encoded image, found no bytes"),
        (missing_label, r"row 1 \(1.png\): expected an integer label, found None"),
        (two_sizes, r"row 1 \(1.png\): expected 8x8 pixels like the first image, found 9x9"),
        (no_test, "expected parquet files train-.*.parquet and test-.*, found train-00000-of-00001.parquet"),
        (two_configurations, "expected the parquet files of one configuration, found files in ., other"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_file_is_named_and_leaves_nothing_in_the_cache(tmp_path, cache, make, damage, message):
    folder = make.parquet_folder(tmp_path / "tiny")
    damage(folder, make)
    with pytest.raises(DataError, match=message):
        load(f"hf:{folder}", cache_dir=cache)
    assert not [path for path in cache.rglob("*") if path.is_file() and path.name != "lock"]


def test_labels_beyond_the_class_names_are_an_error(tmp_path, cache, make):
    folder = make.parquet_folder(tmp_path / "tiny", names=["a", "b"])
    with pytest.raises(DataError, match=r"labels of tiny-png, split train: expected 0..1, found 0..9"):
        load(f"hf:{folder}", cache_dir=cache)
    assert not list(cache.rglob("*.npy"))


def test_a_path_that_is_not_there_is_not_taken_for_a_name(tmp_path):
    with pytest.raises(MissingFileError, match=r"expected a folder of parquet files, found no such folder"):
        load(f"hf:{tmp_path}/nowhere")


def test_a_name_of_the_hub_is_downloaded_and_keeps_its_short_name(tmp_path, cache, make, monkeypatch):
    folder, asked = make.parquet_folder(tmp_path / "0123abc"), []

    def snapshot_download(name, **options):
        asked.append((name, options))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load("hf:somebody/tiny", cache_dir=cache).name == "tiny-png"
    assert asked == [("somebody/tiny", {"repo_type": "dataset", "allow_patterns": "*.parquet"})]


def test_a_hub_that_cannot_be_reached_is_told(monkeypatch):
    def snapshot_download(name, **options):
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(DownloadError, match=r"hf:somebody/tiny: expected a local folder or a data set.*no route"):
        load("hf:somebody/tiny")


def test_without_the_extra_the_install_line_is_told(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"expected the package pyarrow, found none. pip install 'pbwn\[hf\]'"):
        load("hf:somebody/tiny")


def test_a_truncated_first_image_is_named_before_anything_is_decoded(tmp_path, cache, make):
    folder = make.parquet_folder(tmp_path / "tiny")
    make.write_parquet(folder / "train-00000-of-00001.parquet", [b"no image"], [0])
    with pytest.raises(DamagedFileError, match=r"row 0"):
        load(f"hf:{folder}", cache_dir=cache)
