"""The batch of (seed, epoch, step, rank) as a pure function: nothing has to be stored to resume."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pbwn_repro.data.augmentations import Augmentation
from pbwn_repro.data.splits import Split
from pbwn_repro.errors import DataError, UsageError, require_word


def random_seed(seed: int, purpose: str, epoch: int = 0, step: int = 0, rank: int = 0) -> int:
    """Return a seed of 63 bits that is a pure function of its arguments, the same on every machine."""
    place = f"{seed}/{purpose}/{epoch}/{step}/{rank}".encode()
    return int.from_bytes(hashlib.blake2b(place, digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, epoch: int = 0, step: int = 0, rank: int = 0) -> torch.Generator:
    """Return a fresh CPU generator for one purpose at one place of a run."""
    return torch.Generator().manual_seed(random_seed(seed, purpose, epoch, step, rank))


class Batch(NamedTuple):
    """Images ready for the model, their classes, and their indices in the split."""

    images: Tensor
    labels: Tensor
    indices: Tensor


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of a split; all ranks of a step together see what one process would.

    batch_size: images of a step, over all ranks; each rank gets its share of them.
    order: "shuffled" anew each epoch by the seed, or "fixed" as stored.
    last: whether to "drop" or "keep" the last, smaller batch; kept, a rank's share of it may be empty.
    purpose: streams with one seed and different purposes are independent.
    workers: processes that decode ahead in `epoch`; used where reading a split decodes files.
    """

    split: Split
    augmentation: Augmentation
    _: KW_ONLY
    batch_size: int
    seed: int = 1
    order: Literal["shuffled", "fixed"] = "shuffled"
    last: Literal["drop", "keep"] = "drop"
    device: torch.device | str = "cpu"
    rank: int = 0
    world_size: int = 1
    purpose: str = "training"
    workers: int = 0

    def __post_init__(self) -> None:
        """Refuse what would give no batch or unequal shares."""
        require_word("order", self.order, ("shuffled", "fixed"))
        require_word("last", self.last, ("drop", "keep"))
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank must be in 0..{self.world_size - 1} (world_size {self.world_size}), not {self.rank}"
            )
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.last == "drop" and self.batch_size % self.world_size:
            raise UsageError(
                f"batch_size {self.batch_size} is shared by {self.world_size} ranks: choose a multiple of it"
            )
        if len(self) == 0:
            held = f"a split of {len(self.split)} images has no batch of {self.batch_size}"
            raise UsageError(f"{held}: lower batch_size")

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        full, rest = divmod(len(self.split), self.batch_size)
        return full + (rest > 0 and self.last == "keep")

    def batch(self, epoch: int, step: int) -> Batch:
        """Return the batch of one step, decoded in this process."""
        return self._finish(self._read(epoch, step), epoch, step)

    def at(self, iteration: int) -> Batch:
        """Return the batch of an iteration, counted through all epochs from 0."""
        return self.batch(*divmod(iteration, len(self)))

    def epoch(self, epoch: int, *, first_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from a step on: the same as `batch` gives, decoded ahead by the workers."""
        steps = range(first_step, len(self))
        if not (self.workers and self.split.lazy):
            yield from (self.batch(epoch, step) for step in steps)
            return
        reads = DataLoader(
            _Reads(self, epoch),
            batch_size=None,
            sampler=steps,
            num_workers=self.workers,
            pin_memory=torch.device(self.device).type == "cuda",
            generator=torch.Generator(),  # it would draw from the global one otherwise
        )
        for step, read in zip(steps, reads, strict=True):
            if isinstance(read, DataError):
                raise read
            yield self._finish(Batch(*read), epoch, step)

    def _share(self, epoch: int, step: int) -> tuple[Tensor, slice]:
        """Return the indices of the whole batch, and which of its rows are this rank's."""
        if not 0 <= step < len(self):
            raise IndexError(f"step must be in 0..{len(self) - 1}, not {step}")
        if self.order == "fixed":
            first = step * self.batch_size
            whole = torch.arange(first, min(first + self.batch_size, len(self.split)))
        else:
            order = epoch_order(len(self.split), self.seed, self.purpose, epoch)
            whole = order[step * self.batch_size : (step + 1) * self.batch_size]
        bounds = [len(whole) * rank // self.world_size for rank in (self.rank, self.rank + 1)]
        return whole, slice(*bounds)

    def _read(self, epoch: int, step: int) -> Batch:
        whole, rows = self._share(epoch, step)
        crop, drawn = self.augmentation.crop, None
        if crop is not None:
            drawn = crop.draw(generator(self.seed, f"{self.purpose}/crop", epoch, step), len(whole))
        indices = whole[rows]
        images = self.split.read(indices, crop, None if drawn is None else drawn[rows])
        return Batch(images, self.split.labels[indices], indices)

    def _finish(self, read: Batch, epoch: int, step: int) -> Batch:
        whole, rows = self._share(epoch, step)
        images, labels = (tensor.to(self.device, non_blocking=True) for tensor in read[:2])
        numbers = generator(self.seed, f"{self.purpose}/transform", epoch, step)
        images = self.augmentation.apply(images, numbers, count=len(whole), rows=rows)
        return Batch(images, labels, read.indices)


class _Reads(Dataset[Batch | DataError]):
    """The decoding of each step, for worker processes; an error travels as a value, to keep its message."""

    def __init__(self, batches: Batches, epoch: int) -> None:
        self.batches, self.epoch = batches, epoch

    def __getitem__(self, step: int) -> Batch | DataError:
        try:
            return self.batches._read(self.epoch, step)
        except DataError as error:
            return error


@lru_cache(maxsize=4)
def epoch_order(count: int, seed: int, purpose: str, epoch: int) -> Tensor:
    """Return the order of an epoch; the last few are remembered, since every step of an epoch asks for it."""
    return torch.randperm(count, generator=generator(seed, f"{purpose}/order", epoch))


def balanced_indices(labels: Tensor, count: int, *, seed: int) -> Tensor:
    """Return sorted indices of `count` images, equally many of each class, drawn at random by the seed."""
    classes = labels.unique().tolist()
    each, rest = divmod(count, len(classes))
    if each == 0 or rest:
        raise UsageError(
            f"{count} labels cannot be shared equally by {len(classes)} classes: choose a multiple of {len(classes)}"
        )
    numbers, chosen = generator(seed, "labeled subset"), []
    for label in classes:
        members = (labels == label).nonzero().flatten()
        if len(members) < each:
            raise UsageError(f"class {label} has {len(members)} images, {each} are needed: ask for fewer labels")
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
