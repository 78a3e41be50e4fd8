"""Batches as pure functions of (seed, epoch, step, rank): resuming a run needs no stored state."""

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
    """Return a 63-bit seed that is a pure function of its arguments, the same on every machine."""
    key = f"{seed}/{purpose}/{epoch}/{step}/{rank}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, epoch: int = 0, step: int = 0, rank: int = 0) -> torch.Generator:
    """Return a fresh CPU generator for one purpose at one epoch, step and rank."""
    return torch.Generator().manual_seed(random_seed(seed, purpose, epoch, step, rank))


class Batch(NamedTuple):
    """Images ready for the model, their labels, and their indices in the split."""

    images: Tensor
    labels: Tensor
    indices: Tensor


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of a split; all ranks of a step together see the batch of a single process.

    batch_size: images per step over all ranks, divided among them.
    order: "shuffled" in each epoch, determined by the seed, or "fixed" in stored order.
    last: whether to "drop" or "keep" a smaller last batch; if kept, a rank's share of it may be empty.
    purpose: streams with the same seed and different purposes are independent.
    workers: processes that decode ahead in `epoch`; used only if reading the split decodes files.
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
        """Validate the options: at least one batch, and equal shares unless smaller batches are kept."""
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
                f"batch_size {self.batch_size} cannot be divided equally among {self.world_size} ranks: "
                f"choose a multiple of {self.world_size}"
            )
        if len(self) == 0:
            raise UsageError(
                f"batch_size {self.batch_size} exceeds the {len(self.split)} images of the split: lower batch_size"
            )

    def __len__(self) -> int:
        """Return the number of steps per epoch."""
        full, rest = divmod(len(self.split), self.batch_size)
        return full + (rest > 0 and self.last == "keep")

    def batch(self, epoch: int, step: int) -> Batch:
        """Return the batch of one step, decoded in this process."""
        return self._transform(self._read(epoch, step), epoch, step)

    def at(self, iteration: int) -> Batch:
        """Return the batch of an iteration, counted from 0 across epochs."""
        return self.batch(*divmod(iteration, len(self)))

    def epoch(self, epoch: int, *, first_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from `first_step` on, as `batch` returns them, decoded ahead by the workers."""
        steps = range(first_step, len(self))
        if not (self.workers and self.split.lazy):
            yield from (self.batch(epoch, step) for step in steps)
            return
        loader = DataLoader(
            _DecodedSteps(self, epoch),
            batch_size=None,
            sampler=steps,
            num_workers=self.workers,
            pin_memory=torch.device(self.device).type == "cuda",
            generator=torch.Generator(),  # otherwise it would draw from the global generator
        )
        for step, decoded in zip(steps, loader, strict=True):
            if isinstance(decoded, DataError):
                raise decoded
            yield self._transform(Batch(*decoded), epoch, step)

    def _share(self, epoch: int, step: int) -> tuple[Tensor, slice]:
        """Return the indices of the whole batch, and the slice of them that belongs to this rank."""
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

    def _transform(self, decoded: Batch, epoch: int, step: int) -> Batch:
        whole, rows = self._share(epoch, step)
        images, labels = (tensor.to(self.device, non_blocking=True) for tensor in decoded[:2])
        rng = generator(self.seed, f"{self.purpose}/transform", epoch, step)
        images = self.augmentation.apply(images, rng, count=len(whole), rows=rows)
        return Batch(images, labels, decoded.indices)


class _DecodedSteps(Dataset[Batch | DataError]):
    """The decoded images of each step, for worker processes; errors are returned as values to keep their messages."""

    def __init__(self, batches: Batches, epoch: int) -> None:
        self.batches, self.epoch = batches, epoch

    def __getitem__(self, step: int) -> Batch | DataError:
        try:
            return self.batches._read(self.epoch, step)
        except DataError as error:
            return error


@lru_cache(maxsize=4)
def epoch_order(count: int, seed: int, purpose: str, epoch: int) -> Tensor:
    """Return the order of an epoch, cached because every step of the epoch needs it."""
    return torch.randperm(count, generator=generator(seed, f"{purpose}/order", epoch))


def balanced_indices(labels: Tensor, count: int, *, seed: int) -> Tensor:
    """Return the sorted indices of `count` randomly drawn images, equally many of each class."""
    classes = labels.unique().tolist()
    each, rest = divmod(count, len(classes))
    if each == 0 or rest:
        raise UsageError(
            f"{count} labels cannot be divided equally among {len(classes)} classes: "
            f"choose a multiple of {len(classes)}"
        )
    rng, chosen = generator(seed, "labeled subset"), []
    for label in classes:
        members = (labels == label).nonzero().flatten()
        if len(members) < each:
            raise UsageError(f"class {label} has {len(members)} images, but {each} are needed: use fewer labels")
        chosen.append(members[torch.randperm(len(members), generator=rng)[:each]])
    return torch.cat(chosen).sort().values


def labeled_and_unlabeled(
    split: Split, augmentation: Augmentation, *, labels: int, unlabeled_batch: int = 100, seed: int = 1, **options: Any
) -> tuple[Batches, Batches]:
    """Return the batches of a balanced labeled subset, the whole subset at each step, and those of the full split.

    options: further arguments of both `Batches`, such as device.
    """
    labeled = split.subset(balanced_indices(split.labels, labels, seed=seed))
    return (
        Batches(labeled, augmentation, batch_size=labels, seed=seed, purpose="labeled", **options),
        Batches(split, augmentation, batch_size=unlabeled_batch, seed=seed, purpose="unlabeled", **options),
    )
