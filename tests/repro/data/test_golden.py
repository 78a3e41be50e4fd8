"""What kept runs depend on: the batches of each pipeline, byte for byte. A change here makes old runs unrepeatable."""

import hashlib

import pytest
import torch

from pbwn_repro.data import Batches, augmentations, labeled_and_unlabeled, load


def digest(batch):
    found = hashlib.sha256()
    for tensor in batch:
        found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def recipe(name, split):
    he = {"fill": "zero", "offset": "image", "flip": "random"}
    return {
        "unit range": augmentations.unit_range,
        "mnist": lambda: augmentations.mnist_mlp(split),
        "cifar evaluation": augmentations.cifar_evaluation,
        "cifar authors": augmentations.cifar_training,
        "cifar he": lambda: augmentations.cifar_training(**he),
    }[name]()


@pytest.mark.parametrize(
    ("data", "pipeline", "order", "expected"),
    [
        ("mnist", "unit range", "shuffled", "f74091fe03aa337c"),
        ("mnist", "mnist", "shuffled", "5290cec8d58c6231"),
        ("cifar10", "cifar evaluation", "fixed", "6ece4ab8a1a260f3"),
        ("cifar10", "cifar authors", "shuffled", "dbc12711a8228f74"),
        ("cifar10", "cifar he", "shuffled", "44a4ad8357e48538"),
    ],
)
def test_the_batches_of_a_pipeline_are_these(data, pipeline, order, expected):
    split = load(f"synthetic:{data}").train
    batches = Batches(split, recipe(pipeline, split), batch_size=32, seed=5, order=order)
    assert digest(batches.batch(3, 7)) == expected
    shares = [Batches(**{**vars(batches), "rank": rank, "world_size": 4}).batch(3, 7) for rank in range(4)]
    assert digest(torch.cat(parts) for parts in zip(*shares, strict=True)) == expected


def test_the_ladder_s_batches_are_these():
    train = load("synthetic:mnist").train
    labeled, unlabeled = labeled_and_unlabeled(train, augmentations.unit_range(), labels=50, seed=3)
    assert [digest(batches.at(13)) for batches in (labeled, unlabeled)] == ["131d78f1b6ca7f5f", "f385c362d3f18103"]


def test_imagenet_s_batches_are_these_to_rounding():
    split = load("synthetic:imagenet").train
    batch = Batches(split, augmentations.imagenet_training(64), batch_size=4, seed=5).batch(3, 2)
    assert batch.indices.tolist() == [19, 35, 54, 2]
    assert batch.images[:, :, 20, 40].double().sum(dim=1).tolist() == pytest.approx(
        [-0.0112, 4.3933, 0.1109, -0.0099], abs=1e-3
    )
