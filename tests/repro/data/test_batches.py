"""The batch of (seed, epoch, step, rank) is a pure function, and ranks together see what one process would."""

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbwn_repro import data
from pbwn_repro.data import Batches, MemorySplit, augmentations, generator, labeled_and_unlabeled, load, random_seed


def split_of(count, channels=3, size=8):
    numbers = torch.Generator().manual_seed(count)
    images = torch.randint(0, 256, (count, channels, size, size), generator=numbers, dtype=torch.uint8)
    return MemorySplit(images, torch.arange(count))


def batches_of(count, augmentation=None, **options):
    return Batches(split_of(count), augmentation or augmentations.cifar_training(offset="image"), **options)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_batch_is_the_same_whenever_it_is_asked_for():
    batches = batches_of(50, batch_size=8, seed=7)
    expected = [batches.batch(3, step) for step in range(len(batches))]
    torch.manual_seed(123)
    fresh = batches_of(50, batch_size=8, seed=7)
    for step in reversed(range(len(fresh))):
        fresh.batch(1, 0)
        assert same(fresh.batch(3, step), expected[step])


def test_asking_for_a_batch_leaves_the_global_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    batches_of(20, batch_size=4).batch(0, 0)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("change", [{"seed": 2}, {"purpose": "other"}, {"epoch": 1}])
def test_another_seed_purpose_or_epoch_gives_another_order(change):
    epoch = change.pop("epoch", 0)
    one = batches_of(100, batch_size=100).batch(0, 0)
    other = batches_of(100, batch_size=100, **change).batch(epoch, 0)
    assert not torch.equal(one.indices, other.indices)
    assert sorted(one.indices.tolist()) == sorted(other.indices.tolist()) == list(range(100))


def test_resuming_in_the_middle_of_an_epoch_gives_the_rest_of_it():
    batches = batches_of(50, batch_size=8)
    whole = list(batches.epoch(2))
    rest = list(batches.epoch(2, first_step=4))
    assert len(rest) == 2
    assert all(same(a, b) for a, b in zip(rest, whole[4:], strict=True))


def test_iterations_count_through_the_epochs():
    batches = batches_of(50, batch_size=8)
    assert same(batches.at(0), batches.batch(0, 0))
    assert same(batches.at(6 * 3 + 2), batches.batch(3, 2))


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 70),
    batch_size=st.integers(1, 30),
    world_size=st.integers(1, 5),
    order=st.sampled_from(["shuffled", "fixed"]),
)
def test_all_ranks_of_all_steps_see_each_image_once(count, batch_size, world_size, order):
    options = {"batch_size": batch_size, "order": order, "last": "keep", "world_size": world_size}
    ranks = [batches_of(count, augmentations.unit_range(), rank=rank, **options) for rank in range(world_size)]
    steps = len(ranks[0])
    seen = [index for step in range(steps) for batches in ranks for index in batches.batch(0, step).indices.tolist()]
    assert sorted(seen) == list(range(count))
    if order == "fixed":
        assert seen == list(range(count))


@pytest.mark.parametrize("recipe", ["cifar_training", "imagenet_training"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_shares_of_the_ranks_put_together_are_the_batch_of_one_process(recipe, world_size):
    augmentation = augmentations.cifar_training() if recipe == "cifar_training" else augmentations.imagenet_training(8)
    alone = batches_of(40, augmentation, batch_size=8).batch(1, 2)
    options = {"batch_size": 8, "world_size": world_size}
    shares = [batches_of(40, augmentation, rank=rank, **options).batch(1, 2) for rank in range(world_size)]
    assert torch.equal(torch.cat([share.indices for share in shares]), alone.indices)
    assert torch.equal(torch.cat([share.images for share in shares]), alone.images)


@pytest.mark.parametrize(
    ("augmentation", "size"),
    [
        (augmentations.cifar_training(), 8),
        (augmentations.cifar_training(offset="image"), 8),
        (augmentations.imagenet_training(6), 6),
        (augmentations.imagenet_evaluation(6, 7), 6),
    ],
)
def test_a_rank_without_a_share_of_the_last_batch_gets_an_empty_one(augmentation, size):
    batches = batches_of(9, augmentation, batch_size=8, last="keep", rank=0, world_size=4)
    batch = batches.batch(0, 1)
    assert batch.images.shape == (0, 3, size, size)
    assert batch.labels.shape == (0,)


@pytest.mark.parametrize(("last", "steps"), [("drop", 234), ("keep", 235)])
def test_the_last_partial_batch_is_dropped_or_kept(last, steps):
    split = MemorySplit(torch.zeros(60_000, 1, 1, 1, dtype=torch.uint8), torch.zeros(60_000, dtype=torch.int64))
    assert len(Batches(split, augmentations.unit_range(), batch_size=256, last=last)) == steps


def test_labels_and_images_stay_together():
    batches = batches_of(30, augmentations.unit_range(), batch_size=7)
    images = batches.split.images
    for batch in batches.epoch(0):
        assert torch.equal(batch.labels, batch.indices)
        assert torch.equal(batch.images, images[batch.indices] / 255)


def test_batches_land_on_the_asked_device():
    batch = batches_of(20, batch_size=4, device="meta").batch(0, 0)
    assert {batch.images.device.type, batch.labels.device.type} == {"meta"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"batch_size": 21}, "batch_size 21 exceeds the 20 images of the split: lower batch_size$"),
        ({"batch_size": 6, "world_size": 4}, "batch_size 6 cannot be divided equally among 4 ranks"),
        ({"batch_size": 4, "world_size": 2, "rank": 2}, "rank must be in 0..1"),
        ({"batch_size": 4, "order": "shuffle"}, "order must be 'shuffled' or 'fixed', not 'shuffle'"),
        ({"batch_size": 4, "last": True}, "last must be 'drop' or 'keep', not True"),
    ],
)
def test_what_would_give_no_batch_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        batches_of(20, **options)


def test_a_step_beyond_the_epoch_is_refused():
    with pytest.raises(IndexError, match=r"step must be in 0\.\.4, not 5"):
        batches_of(20, batch_size=4).batch(0, 5)


def test_seeds_are_fixed_numbers_that_tell_all_their_arguments_apart():
    assert random_seed(1, "training", 2, 3, 4) == 8698160955715226290
    places = [
        (seed, purpose, a, b, c) for seed in (1, 11) for purpose in "ab" for a in (0, 1) for b in (0, 1) for c in (0, 1)
    ]
    assert len({random_seed(*place) for place in places}) == len(places)
    assert all(0 <= random_seed(*place) < 2**63 for place in places)
    assert torch.rand(1, generator=generator(1, "a")) != torch.rand(1, generator=generator(1, "b"))


@pytest.mark.parametrize("count", [20, 50, 100])
def test_labeled_subsets_are_balanced_and_belong_to_their_seed(count):
    labels = load("digits").train.labels
    chosen = data.balanced_indices(labels, count, seed=1)
    assert labels[chosen].bincount().tolist() == [count // 10] * 10
    assert len(chosen.unique()) == count
    assert torch.equal(chosen, data.balanced_indices(labels, count, seed=1))
    assert not torch.equal(chosen, data.balanced_indices(labels, count, seed=2))


def test_the_unlabeled_stream_runs_through_the_whole_set_beside_the_labeled_images():
    train = load("digits").train
    labeled, unlabeled = data.labeled_and_unlabeled(train, augmentations.unit_range(), labels=50, seed=4)
    expected = train.labels[data.balanced_indices(train.labels, 50, seed=4)]
    for iteration in (0, 1, 17):
        batch = labeled.at(iteration)
        assert sorted(batch.labels.tolist()) == sorted(expected.tolist())
    seen = torch.cat([unlabeled.at(iteration).indices for iteration in range(len(unlabeled))])
    assert len(seen.unique()) == len(seen) == 1400
    assert not torch.equal(unlabeled.at(0).indices, unlabeled.at(len(unlabeled)).indices)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (25, "25 labels cannot be divided equally among 10 classes"),
        (0, "0 labels cannot"),
        (2000, r"class \d has 1\d\d images, but 200 are needed"),
    ],
)
def test_labels_that_cannot_be_shared_equally_are_refused(count, message):
    with pytest.raises(ValueError, match=message):
        data.balanced_indices(load("digits").train.labels, count, seed=1)


# What kept runs depend on. A change here makes them unrepeatable.


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
