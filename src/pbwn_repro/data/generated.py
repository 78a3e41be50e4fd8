"""Built-in data sets: scikit-learn's digits, and synthetic images in the shape of any other set."""

from __future__ import annotations

import torch

from pbwn_repro.data.batches import generator
from pbwn_repro.data.published import DIGITS, KNOWN_SETS
from pbwn_repro.data.splits import DataSet, MemorySplit
from pbwn_repro.errors import UnknownSetError

DIGITS_TEST_COUNT = 360
PREFIX = "synthetic:"
STORED_PREFIX = "synthetic-"  # in configurations, where the name becomes part of a folder name
# Image shape, number of classes, images in train and in test.
SHAPES = {
    **{name: (known.image_shape, len(known.classes), 1_000, 500) for name, known in KNOWN_SETS.items()},
    "digits": ((1, 8, 8), 10, 1_000, 500),
    "imagenet": ((3, 224, 224), 1_000, 64, 32),
    # A few small images, for slow models.
    "tiny10": ((3, 16, 16), 10, 80, 16),
    "tiny100": ((3, 16, 16), 100, 80, 16),
}
CELLS = 4
IMAGES_PER_CLASS = 8


def load_digits() -> DataSet:
    """Return 1,797 digits of 8x8 pixels, 17 grey levels scaled to 0..255, with a fixed division into train and test."""
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    images = (torch.from_numpy(pixels) * 255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    everything = MemorySplit(images, torch.from_numpy(labels).long())
    order = torch.randperm(len(everything), generator=generator(0, "digits: train and test"))
    train, test = everything.subset(order[DIGITS_TEST_COUNT:]), everything.subset(order[:DIGITS_TEST_COUNT])
    return DataSet("digits", {"train": train, "test": test}, DIGITS, "scikit-learn")


def make_synthetic(name: str) -> DataSet:
    """Return images in the shape of a set: a pattern of 4x4 coloured cells per class, plus noise.

    All arithmetic is in integers, so that the digest is the same on every machine. If there are too few images for
    all classes, only the first classes occur.
    """
    if name not in SHAPES:
        raise UnknownSetError.about(
            PREFIX + name,
            expected=f"one of {', '.join(PREFIX + known for known in SHAPES)}",
            found="no such shape",
            remedy="Choose one of these.",
        )
    shape, classes, *counts = SHAPES[name]
    occurring = min(classes, counts[0] // IMAGES_PER_CLASS)
    cells = torch.randint(-64, 65, (occurring, shape[0], CELLS, CELLS), generator=generator(0, f"{name}/patterns"))
    patterns = cells.repeat_interleave(shape[1] // CELLS, 2).repeat_interleave(shape[2] // CELLS, 3)
    splits = {}
    for split, count in zip(("train", "test"), counts, strict=True):
        labels = torch.arange(count) % occurring
        noise = torch.randint(-63, 64, (count, *shape), generator=generator(0, f"{name}/{split}"))
        splits[split] = MemorySplit((128 + patterns[labels] + noise).to(torch.uint8), labels)
    return DataSet(f"synthetic-{name}", splits, tuple(str(label) for label in range(classes)), "a formula")
