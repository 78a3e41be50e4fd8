"""The 1,797 digits of 8x8 pixels that come with scikit-learn: the set that always works."""

from __future__ import annotations

import torch

from pbwn_repro.data.class_names import DIGITS
from pbwn_repro.data.datasets import DataSet
from pbwn_repro.data.randomness import generator
from pbwn_repro.data.splits import MemorySplit

TEST_COUNT = 360


def load_digits() -> DataSet:
    """Return the digits, their 17 grey levels spread over 0..255, divided once and for all into 1,437 and 360."""
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    images = (torch.from_numpy(pixels) * 255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    everything = MemorySplit(images, torch.from_numpy(labels).long())
    order = torch.randperm(len(everything), generator=generator(0, "digits: train and test"))
    splits = {"train": everything.subset(order[TEST_COUNT:]), "test": everything.subset(order[:TEST_COUNT])}
    return DataSet("digits", splits, DIGITS, "scikit-learn")
