"""Whole-tensor augmentation against the same thing written plainly, image by image."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbwn_repro.data import Batches, MemorySplit, augmentations, generator
from pbwn_repro.data.augmentations import (
    EIGENVALUES,
    EIGENVECTORS,
    CentreCrop,
    ColourJitter,
    Flip,
    Lighting,
    Normalise,
    PadCrop,
    RandomSizedCrop,
    random_box,
)


def floats(count=6, channels=3, size=8):
    return torch.rand(count, channels, size, size, generator=generator(0, "images"))


@pytest.mark.parametrize("offset", ["image", "batch"])
@pytest.mark.parametrize(("fill", "mode"), [("reflect", "reflect"), ("zero", "constant")])
def test_pad_and_crop_is_numpys_padding_cut_at_the_offset(fill, mode, offset):
    images, crop = floats(), PadCrop(4, fill, offset)
    drawn = crop.draw(generator(1, "crop"), len(images))
    found = crop.apply(images, drawn)
    for image, (top, left), result in zip(images, drawn.tolist(), found, strict=True):
        padded = numpy.pad(image.numpy(), ((0, 0), (4, 4), (4, 4)), mode=mode)
        assert numpy.array_equal(result.numpy(), padded[:, top : top + 8, left : left + 8])


def test_offsets_reach_every_place_and_one_per_batch_is_one():
    each = PadCrop(4, offset="image").draw(generator(1, "crop"), 5000)
    assert sorted({tuple(row) for row in each.tolist()}) == [(top, left) for top in range(9) for left in range(9)]
    one = PadCrop(4, offset="batch").draw(generator(1, "crop"), 100)
    assert len({tuple(row) for row in one.tolist()}) == 1


@pytest.mark.parametrize(("count", "flipped"), [(128, 64), (7, 3), (1, 0)])
def test_half_of_the_batch_is_exactly_half(count, flipped):
    assert Flip("half").draw(generator(1, "flip"), count).sum() == flipped


def test_random_flips_are_about_half_and_not_always():
    counts = {int(Flip("random").draw(generator(seed, "flip"), 100).sum()) for seed in range(50)}
    assert len(counts) > 5
    assert 25 < min(counts) < 50 < max(counts) < 75


def test_a_flip_mirrors_the_drawn_images_only():
    images, drawn = floats(2), torch.tensor([True, False])
    found = Flip().apply(images, drawn)
    assert torch.equal(found[0], torch.from_numpy(images[0].numpy()[:, :, ::-1].copy()))
    assert torch.equal(found[1], images[1])


def test_normalisation_is_per_channel_on_pixels():
    images = torch.full((1, 3, 2, 2), 200, dtype=torch.uint8)
    found = Normalise((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)).apply(images)
    assert found.dtype == torch.float32
    expected = torch.tensor([(200 - 125.3) / 63.0, (200 - 123.0) / 62.1, (200 - 113.9) / 66.7])
    assert torch.allclose(found[0, :, 0, 0], expected, rtol=1e-6)


def test_a_recipe_for_colours_refuses_grey_images():
    with pytest.raises(ValueError, match=r"cannot normalise 1 channels with 3 means"):
        augmentations.cifar_evaluation().apply(floats(channels=1), generator(1, "a"), count=6)


def test_cifar_training_is_by_default_what_the_authors_did():
    normalise, crop, flip = augmentations.cifar_training().transforms
    assert (normalise.mean, normalise.std) == ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
    assert crop == PadCrop(4, "reflect", "batch")
    assert flip == Flip("half")
    paper = augmentations.cifar_training(fill="zero", offset="image", flip="random").transforms
    assert paper[1:] == (PadCrop(4, "zero", "image"), Flip("random"))


@pytest.mark.parametrize("word", [{"fill": "mirror"}, {"offset": "pixel"}, {"flip": "all"}])
def test_other_words_are_refused(word):
    with pytest.raises(ValueError, match=rf"{next(iter(word))} must be '\w+' or '\w+', not"):
        augmentations.cifar_training(**word)


def test_mnist_is_padded_to_32_and_loses_its_own_mean():
    images = torch.randint(0, 256, (50, 1, 28, 28), generator=generator(0, "m"), dtype=torch.uint8)
    split = MemorySplit(images, torch.zeros(50, dtype=torch.int64))
    batch = Batches(split, augmentations.mnist_mlp(split), batch_size=50, order="fixed").batch(0, 0)
    padded = torch.nn.functional.pad(images.double() / 255, (2, 2, 2, 2))
    assert batch.images.shape == (50, 1, 32, 32)
    assert torch.allclose(batch.images.double(), padded - padded.mean(), atol=1e-6)
    assert abs(float(batch.images.double().mean())) < 1e-6


@settings(max_examples=200, deadline=None)
@given(width=st.integers(1, 600), height=st.integers(1, 600), seed=st.integers(0, 10_000))
def test_a_random_box_lies_in_the_image_and_has_the_asked_area_and_shape(width, height, seed):
    drawn = RandomSizedCrop(32).draw(generator(seed, "box"), 1)[0].tolist()
    box = random_box(width, height, drawn)
    if box is None:
        return
    left, top, right, bottom = box
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    if min(width, height) > 100:
        assert 0.07 < (right - left) * (bottom - top) / (width * height) <= 1.02
        assert 0.7 < (right - left) / (bottom - top) < 1.43


def test_where_no_box_fits_the_middle_is_taken():
    image = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (16, 900, 3), dtype=numpy.uint8))
    drawn = torch.full((10, 5), 0.999)  # as large as can be, ten times: never fits into a long thin image
    assert random_box(*image.size, drawn.tolist()) is None
    found, middle = RandomSizedCrop(16)(image, drawn), CentreCrop(16, resize=16)(image)
    assert numpy.array_equal(numpy.array(found), numpy.array(middle))
    assert numpy.array_equal(numpy.array(middle), numpy.array(image)[:, 442:458])


@pytest.mark.parametrize("size", [(300, 400), (400, 300), (10, 1000), (256, 256)])
def test_the_centre_crop_has_the_asked_size_and_is_centred(size):
    image = Image.linear_gradient("L").resize(size).convert("RGB")
    assert CentreCrop(224, 256)(image).size == (224, 224)
    symmetric = numpy.array(CentreCrop(32, 36)(Image.radial_gradient("L"))).astype(int)
    assert abs(symmetric - symmetric[::-1, ::-1]).max() <= 8


def test_colour_jitter_is_the_three_blends_in_the_drawn_order():
    images, jitter = floats(8), ColourJitter(0.4)
    drawn = jitter.draw(generator(3, "jitter"), 8)
    found = jitter.apply(images, drawn)
    assert drawn[:, 1].min() >= 0.6
    assert drawn[:, 1].max() <= 1.4
    assert len({tuple(row) for row in drawn[:, 0].tolist()}) > 2
    for image, (order, factors), result in zip(images, drawn.tolist(), found, strict=True):
        expected = image
        for kind, factor in zip(order, factors, strict=True):
            grey = 0.299 * expected[0] + 0.587 * expected[1] + 0.114 * expected[2]
            other = {0: torch.zeros_like(grey), 1: torch.full_like(grey, float(grey.mean())), 2: grey}[int(kind)]
            expected = factor * expected + (1 - factor) * other
        assert torch.allclose(result, expected, atol=1e-6)


def test_lighting_shifts_all_pixels_of_an_image_along_the_principal_components():
    images, lighting = floats(4), Lighting(0.1)
    drawn = lighting.draw(generator(3, "light"), 4)
    shift = lighting.apply(images, drawn) - images
    for found, alphas in zip(shift, drawn.tolist(), strict=True):
        for channel in range(3):
            expected = sum(EIGENVECTORS[channel][k] * alphas[k] * EIGENVALUES[k] for k in range(3))
            assert torch.allclose(found[channel], torch.tensor(expected), atol=1e-6)
    many = lighting.draw(generator(3, "light"), 10_000)
    assert torch.allclose(many.std(dim=0), torch.tensor(0.1), atol=5e-3)


def test_imagenet_recipes_end_normalised_at_the_asked_size():
    images = torch.full((4, 3, 300, 200), 255, dtype=torch.uint8)
    split = MemorySplit(images, torch.zeros(4, dtype=torch.int64))
    batch = Batches(split, augmentations.imagenet_evaluation(), batch_size=4).batch(0, 0)
    assert batch.images.shape == (4, 3, 224, 224)
    white = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(batch.images.amax(dim=(0, 2, 3)), white, atol=1e-5)
    training = Batches(split, augmentations.imagenet_training(), batch_size=4).batch(0, 0)
    assert training.images.shape == (4, 3, 224, 224)
    assert not torch.allclose(training.images[0], training.images[1])


def test_every_transform_runs_on_the_device_of_the_images():
    for recipe in (augmentations.cifar_training(offset="image"), augmentations.imagenet_training()):
        images = torch.empty(4, 3, 32, 32, dtype=torch.uint8, device="meta")
        assert recipe.apply(images, generator(1, "a"), count=4).device.type == "meta"
