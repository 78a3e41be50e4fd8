"""Image folders: images of any size, decoded when needed, by this process or by workers."""

import shutil

import numpy
import pytest
import torch
from PIL import Image

from pbwn_repro.data import Batches, DamagedFileError, DataError, MissingFileError, augmentations, load
from pbwn_repro.runs.resolution import resolve


@pytest.fixture
def folder(tmp_path, make):
    return make.image_folder(tmp_path / "pets")


def test_classes_are_the_sorted_folder_names(folder):
    dataset = load(f"folder:{folder}")
    assert (dataset.name, dataset.classes) == ("pets", ("cat", "dog", "owl"))
    assert dataset.train.labels.tolist() == dataset.test.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_imagenet_is_the_folder_given_by_data_dir(folder):
    assert load("imagenet", data_dir=folder).name == "imagenet"
    shutil.copytree(folder, folder.parent / "imagenet")
    assert len(load("imagenet", data_dir=folder.parent).train) == 12
    with pytest.raises(MissingFileError, match=r"no --data-dir"):
        load("imagenet")


def test_the_recipe_for_imagenet_is_made_for_such_a_folder(folder):
    config, dataset = resolve({"model": "imagenet-resnet-18", "steps": 2}, data_dir=folder)
    assert set(dataset.splits) == {*config.data.train, config.data.test}


def test_the_digest_survives_a_move_and_notices_another_file(folder, tmp_path):
    digest = load(f"folder:{folder}").digest
    moved = tmp_path / "elsewhere" / "pets"
    shutil.copytree(folder, moved)
    assert load(f"folder:{moved}").digest == digest
    shutil.copy(moved / "train" / "cat" / "0.JPEG", moved / "train" / "cat" / "9.JPEG")
    assert load(f"folder:{moved}").digest != digest


def test_pixels_are_those_of_the_image(tmp_path, make):
    folder = tmp_path / "lossless"
    expected = make.pixels(2, 3, 16)
    for part in ("train", "test"):
        (folder / part / "a").mkdir(parents=True)
        for number, array in enumerate(expected):
            (folder / part / "a" / f"{number}.png").write_bytes(make.encoded(array))
    batch = Batches(load(f"folder:{folder}").train, augmentations.unit_range(), batch_size=2, order="fixed").batch(0, 0)
    assert torch.equal(batch.images, torch.from_numpy(expected) / 255)


def test_a_grey_image_becomes_three_equal_channels(tmp_path, make):
    for part in ("train", "val"):
        (tmp_path / part / "a").mkdir(parents=True)
        (tmp_path / part / "a" / "0.png").write_bytes(make.encoded(make.pixels(1, 1, 16)[0]))
    pixels = load(f"folder:{tmp_path}").train.read(torch.tensor([0]))
    assert pixels.shape == (1, 3, 16, 16)
    assert torch.equal(pixels[:, 0], pixels[:, 2])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_is_the_batches_of_its_steps_whoever_decodes(folder, workers):
    split = load(f"folder:{folder}").train
    batches = Batches(split, augmentations.imagenet_training(32), batch_size=4, seed=3, workers=workers)
    expected = [batches.batch(5, step) for step in range(len(batches))]
    global_state = torch.get_rng_state()
    for first_step in (0, 2):
        epoch = list(batches.epoch(5, first_step=first_step))
        assert len(epoch) == len(expected) - first_step
        for found, wanted in zip(epoch, expected[first_step:], strict=True):
            assert torch.equal(found.images, wanted.images)
            assert torch.equal(found.labels, wanted.labels)
    assert torch.equal(torch.get_rng_state(), global_state)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_decoded_is_named(folder, workers):
    broken = folder / "train" / "dog" / "2.JPEG"
    broken.write_bytes(broken.read_bytes()[:200])
    split = load(f"folder:{folder}").train
    batches = Batches(split, augmentations.imagenet_evaluation(32, 36), batch_size=12, workers=workers)
    with pytest.raises(DamagedFileError, match=r"^\S*dog/2.JPEG: expected an image, found 200 bytes"):
        list(batches.epoch(0))


def test_images_of_many_sizes_need_a_crop(folder):
    batches = Batches(load(f"folder:{folder}").train, augmentations.unit_range(), batch_size=12)
    with pytest.raises(DataError, match=r"like the others of its batch.*Use an augmentation with a crop"):
        batches.batch(0, 0)


def remove_class(folder):
    shutil.rmtree(folder / "val" / "dog")


def add_class(folder):
    (folder / "val" / "emu").mkdir()


def empty_class(folder):
    shutil.rmtree(folder / "train" / "owl")
    (folder / "train" / "owl").mkdir()
    (folder / "train" / "owl" / "notes.txt").write_text("no image")


def remove_val(folder):
    shutil.rmtree(folder / "val")


def remove_all(folder):
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_class, r"val: expected the 3 class folders of \S*train, found 2 class folders \(missing: dog\)"),
        (add_class, r"found 4 class folders \(unexpected: emu\)"),
        (empty_class, r"owl: expected images \(.jpeg.*found none"),
        (remove_val, "val: expected a folder with one folder of images for each class, found no such folder"),
        (remove_all, "train: expected a folder"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_layout_is_named(folder, damage, message):
    damage(folder)
    with pytest.raises(MissingFileError, match=message):
        load(f"folder:{folder}")


def test_a_subset_keeps_files_and_labels_together(folder):
    split = load(f"folder:{folder}").train
    chosen = split.subset(torch.tensor([9, 1]))
    assert chosen.labels.tolist() == [2, 0]
    image = numpy.array(Image.open(folder / "train" / "owl" / "1.JPEG"))
    assert torch.equal(chosen.read(torch.tensor([0]))[0], torch.from_numpy(image).permute(2, 0, 1))
