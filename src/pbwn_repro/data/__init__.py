"""Verified data sets, and batches that are pure functions of seed, epoch and step.

dataset = load("cifar10")
batches = Batches(dataset.train, augmentations.cifar_training(), batch_size=128, seed=1)
for images, labels, indices in batches.epoch(0): ...
"""

from pbwn_repro.data import augmentations
from pbwn_repro.data.augmentations import Augmentation
from pbwn_repro.data.batches import Batch, Batches, balanced_indices, generator, labeled_and_unlabeled, random_seed
from pbwn_repro.data.loading import load
from pbwn_repro.data.published import original
from pbwn_repro.data.splits import DataSet, MemorySplit, Split, join
from pbwn_repro.data.text import TextSet, is_text
from pbwn_repro.errors import DamagedFileError, DataError, DownloadError, MissingFileError, UnknownSetError

__all__ = [
    "Augmentation",
    "Batch",
    "Batches",
    "DamagedFileError",
    "DataError",
    "DataSet",
    "DownloadError",
    "MemorySplit",
    "MissingFileError",
    "Split",
    "TextSet",
    "UnknownSetError",
    "augmentations",
    "balanced_indices",
    "generator",
    "is_text",
    "join",
    "labeled_and_unlabeled",
    "load",
    "original",
    "random_seed",
]
