"""The sets that are always here, and the rules that all sets share."""

import pytest
import torch

from pbwn_repro import data
from pbwn_repro.data import Batches, DataError, MemorySplit, UnknownSetError, augmentations, load
from pbwn_repro.data.cache import cache_root
from pbwn_repro.data.published import KNOWN_SETS

SYNTHETIC = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "svhn": ((3, 32, 32), 10),
    "imagenet": ((3, 224, 224), 1000),
}


def test_digits_are_all_there_and_divided_once_and_for_all():
    digits = load("digits")
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert digits.digest == "d7b5244e1822ad2e385953f071cba8fb0897832aaabbcd97d75649c504bf1662"
    assert digits.train.images.max() == 255
    assert digits.train.labels.bincount().min() > 130


@pytest.mark.parametrize("name", SYNTHETIC)
def test_made_sets_have_the_shape_of_the_real_ones(name):
    made = load(f"synthetic:{name}")
    shape, classes = SYNTHETIC[name]
    assert made.name == f"synthetic-{name}"
    assert made.train.images.shape[1:] == made.test.images.shape[1:] == shape
    assert len(made.classes) == classes
    assert made.train.images.min() < 50
    assert made.train.images.max() > 200


def test_made_sets_are_the_same_everywhere():
    assert load("synthetic:mnist").digest == "ef21afd88107941aa38759db761019cd16c516f7c9c1fb144e70ab8da4cf2de2"
    assert load("synthetic:cifar10").digest == "dd1162374e37aa0cc59a07d48875482ab253c7ab013854a3c0a1fe0a8ca45153"


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "imagenet"])
def test_made_sets_can_be_learned_and_not_at_sight(name):
    made = load(f"synthetic:{name}")
    train = made.train.images.float().flatten(1)
    means = torch.stack([train[made.train.labels == label].mean(0) for label in made.train.labels.unique()])
    nearest = torch.cdist(made.test.images.float().flatten(1), means).argmin(1)
    assert (nearest == made.test.labels).float().mean() > 0.95
    assert not torch.equal(made.train.images[0], made.test.images[0])


@pytest.mark.parametrize("name", ["imagnet", "", "mnist ", "synthetic:nothing", "synthetic:"])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    with pytest.raises(UnknownSetError, match=r"([Cc]hoose from|one of) .*mnist, .*cifar10, "):
        load(name)


def test_a_data_dir_that_is_not_there_is_an_error_for_every_set(tmp_path):
    for name in ("digits", "mnist", "imagenet"):
        with pytest.raises(DataError, match=r"nowhere: expected a folder with data files, found no such folder"):
            load(name, data_dir=tmp_path / "nowhere", cache_dir=tmp_path)


def test_splits_can_be_chosen_and_unknown_ones_are_refused():
    assert list(load("digits", splits=["test"]).splits) == ["test"]
    assert list(load("digits", splits=[]).splits) == ["train", "test"]
    with pytest.raises(DataError, match=r"split 'valid' of digits: expected train or test"):
        load("digits", splits=["valid"])


def test_tensors_that_do_not_belong_together_are_refused():
    images, labels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(DataError, match=r"images: expected uint8 .* found torch.float32"):
        MemorySplit(images.float(), labels)
    with pytest.raises(DataError, match=r"labels: expected int64 of shape \(3,\), found torch.int64 of shape \(2,\)"):
        MemorySplit(images, labels[:2])


def test_the_public_names_are_these():
    errors = {"DataError", "DamagedFileError", "DownloadError", "MissingFileError", "UnknownSetError"}
    sets = {"DataSet", "MemorySplit", "Split", "join", "load", "original"}
    batches = {"Augmentation", "Batch", "Batches", "augmentations", "generator", "random_seed"}
    ladder, text = {"balanced_indices", "labeled_and_unlabeled"}, {"TextSet", "is_text"}
    assert set(data.__all__) == errors | sets | batches | ladder | text
    assert all(hasattr(data, name) for name in data.__all__)


REAL = {
    "mnist": ("0849d5ec0e70ea8c40a07a74d9de4569ff045591312b5f4946a961c0f6f337aa", [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]),
    "cifar10": ("b392c874bd1b639ae727280dfe02b97c8c80ccb9c88f37fd841219e434f0c74c", [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]),
}


def real(name):
    if not list((cache_root() / name).glob("decoded/*")):
        pytest.skip(f"{name} is not in the cache: `pbwn data get {name}` puts it there")
    return load(name)


@pytest.mark.parametrize("name", REAL)
def test_real_sets_where_they_can_be_had(name):
    dataset = real(name)
    digest, first_labels = REAL[name]
    assert dataset.digest == digest
    assert dataset.train.labels[:10].tolist() == first_labels
    assert {split: images.content for split, images in dataset.splits.items()} == KNOWN_SETS[name].content


def test_real_mnist_is_prepared_as_the_paper_says():
    mnist = real("mnist")
    assert mnist.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert abs(float(mnist.train.images.double().mean()) / 255 - 0.1307) < 1e-4
    train = Batches(mnist.train, augmentations.mnist_mlp(mnist.train), batch_size=256)
    test = Batches(mnist.test, augmentations.mnist_mlp(mnist.test), batch_size=10_000, order="fixed")
    assert len(train) == 234
    assert train.batch(0, 0).images.shape == (256, 1, 32, 32)
    assert abs(float(test.batch(0, 0).images.double().mean())) < 1e-6
