"""A few labeled pictures beside a stream of all pictures without labels: the Ladder's data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pbwn_repro.data.augmentations import Augmentation
from pbwn_repro.data.batches import Batches
from pbwn_repro.data.randomness import generator
from pbwn_repro.data.splits import Split


def balanced_indices(labels: Tensor, count: int, *, seed: int) -> Tensor:
    """Return sorted indices of `count` pictures, equally many of each class, drawn at random by the seed."""
    classes = labels.unique().tolist()
    each, rest = divmod(count, len(classes))
    if each == 0 or rest:
        raise ValueError(
            f"{count} labels cannot be shared equally by {len(classes)} classes: choose a multiple of {len(classes)}"
        )
    numbers, chosen = generator(seed, "labeled subset"), []
    for label in classes:
        members = (labels.cpu() == label).nonzero().flatten()
        if len(members) < each:
            raise ValueError(f"class {label} has {len(members)} pictures, {each} are needed: ask for fewer labels")
        chosen.append(members[torch.randperm(len(members), generator=numbers)[:each]])
    return torch.cat(chosen).sort().values


def labeled_and_unlabeled(
    split: Split, augmentation: Augmentation, *, labels: int, unlabeled_batch: int = 100, seed: int = 1, **options: Any
) -> tuple[Batches, Batches]:
    """Return the batches of a balanced labeled subset, all of it each step, and those of the whole split.

    options: further arguments of both Batches, for instance device.
    """
    labeled = split.subset(balanced_indices(split.labels, labels, seed=seed))
    return (
        Batches(labeled, augmentation, batch_size=labels, seed=seed, purpose="labeled", **options),
        Batches(split, augmentation, batch_size=unlabeled_batch, seed=seed, purpose="unlabeled", **options),
    )
