"""From the words of a configuration to what happens to the pictures."""

from __future__ import annotations

from pbwn_repro.config import Data
from pbwn_repro.data import Augmentation, DataSet, MemorySplit, Split, augmentations, join
from pbwn_repro.data.augmentations import Flip, PadCrop


def training_split(config: Data, dataset: DataSet) -> Split:
    """The pictures to train on: one split, or several one after the other."""
    splits = [dataset[name] for name in config.train]
    if len(splits) == 1:
        return splits[0]
    memory = [split for split in splits if isinstance(split, MemorySplit)]
    if len(memory) < len(splits):
        raise ValueError(f"data.train={list(config.train)}: only sets in memory can be joined; choose one split")
    return join(*memory)


def training_augmentation(config: Data, split: Split) -> Augmentation:
    """What happens to pictures that the network learns from."""
    if config.normalisation == "imagenet":
        return augmentations.imagenet_training()
    moves: tuple[PadCrop | Flip, ...] = ()
    if config.augmentation == "authors":
        moves = PadCrop(4, "reflect", "batch"), Flip("half")
    elif config.augmentation == "he":
        moves = PadCrop(4, "zero", "image"), Flip("random")
    return Augmentation((*evaluation_augmentation(config, split).transforms, *moves))


def evaluation_augmentation(config: Data, split: Split) -> Augmentation:
    """What happens to pictures that the network is tested on."""
    if config.normalisation == "imagenet":
        return augmentations.imagenet_evaluation()
    if config.normalisation == "cifar":
        return augmentations.cifar_evaluation()
    if config.normalisation == "mnist-mlp":
        if not isinstance(split, MemorySplit):
            raise ValueError("data.normalisation='mnist-mlp' needs a set in memory: choose 'unit-range'")
        return augmentations.mnist_mlp(split)
    return augmentations.unit_range()
