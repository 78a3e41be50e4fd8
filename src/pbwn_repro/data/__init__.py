"""Data sets that can be trusted, and batches that are pure functions.

dataset = load("cifar10")
batches = Batches(dataset.train, augmentations.cifar_training(), batch_size=128, seed=1)
for images, labels, indices in batches.epoch(0): ...
"""

from pbwn_repro.data import augmentations
from pbwn_repro.data.augmentations import Augmentation
from pbwn_repro.data.batches import Batch, Batches
from pbwn_repro.data.datasets import DataSet
from pbwn_repro.data.errors import DamagedFileError, DataError, DownloadError, MissingFileError, UnknownSetError
from pbwn_repro.data.folder import FolderSplit
from pbwn_repro.data.loading import FORMS, NAMES, load
from pbwn_repro.data.randomness import generator, random_seed
from pbwn_repro.data.splits import MemorySplit, Split, join
from pbwn_repro.data.subsets import balanced_indices, labeled_and_unlabeled

__all__ = [
    "FORMS",
    "NAMES",
    "Augmentation",
    "Batch",
    "Batches",
    "DamagedFileError",
    "DataError",
    "DataSet",
    "DownloadError",
    "FolderSplit",
    "MemorySplit",
    "MissingFileError",
    "Split",
    "UnknownSetError",
    "augmentations",
    "balanced_indices",
    "generator",
    "join",
    "labeled_and_unlabeled",
    "load",
    "random_seed",
]
