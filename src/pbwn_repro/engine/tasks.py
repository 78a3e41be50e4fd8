"""What a network is asked to do: classify, or learn from few labels as the Ladder does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pbwn_repro.config import RunConfig
from pbwn_repro.data import Batch, Batches, DataSet, labeled_and_unlabeled
from pbwn_repro.engine.preprocessing import evaluation_augmentation, training_augmentation, training_split
from pbwn_repro.engine.processes import Processes, without_synchronisation
from pbwn_repro.models import Ladder

EVALUATION_BATCH = 500


class Task(Protocol):
    """The training data of a run, and the gradient of one of its steps."""

    steps_per_epoch: int

    def gradient(self, model: nn.Module, step: int, backward: Callable[[Tensor], None]) -> Tensor:
        """Add the gradient of a step's batch to the parameters, and return its mean loss."""

    def pictures(self) -> Iterator[Tensor]:
        """The training pictures as the network sees them, in fixed order: what batch statistics are estimated from."""


class Classification:
    """Cross entropy on labeled pictures, in as many parts as are accumulated."""

    def __init__(self, config: RunConfig, dataset: DataSet, place: Processes, compiled: bool, workers: int) -> None:
        split = training_split(config.data, dataset)
        augmentation = training_augmentation(config.data, split)
        self._batches = _batches(split, augmentation, config.batch_size, config.seed, place, workers=workers)
        self._parts = config.accumulation
        self._stream: Iterator[Batch] = iter(())
        self._next = -1
        self._compiled = compiled
        self._networks: dict[int, Callable[[Tensor], Tensor]] = {}
        self.steps_per_epoch = len(self._batches)

    def gradient(self, model: nn.Module, step: int, backward: Callable[[Tensor], None]) -> Tensor:
        images, labels, _ = self._batch(step)
        images = images.contiguous(memory_format=torch.channels_last)  # the layout of the weights
        parts = self._parts
        network = self._network(model)
        total = torch.zeros((), device=images.device)
        for index, (pixels, targets) in enumerate(zip(images.chunk(parts), labels.chunk(parts), strict=True)):
            with without_synchronisation(model, last=index == parts - 1):
                loss = functional.cross_entropy(network(pixels), targets) / parts
                backward(loss)
            total += loss.detach()
        return total

    def pictures(self) -> Iterator[Tensor]:
        mixed = replace(self._batches, order="shuffled", purpose="statistics")  # sets may be sorted by class
        return (images for images, _, _ in mixed.epoch(0))

    def _batch(self, step: int) -> Batch:
        """The batch of a step, out of the epoch's stream, so that what decodes files can work ahead."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if step != self._next or within == 0:
            self._stream = self._batches.epoch(epoch, first_step=within)
        self._next = step + 1
        return next(self._stream)

    def _network(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        if not self._compiled:
            return model
        # Fixed shapes: a kernel must not depend on which shapes the process has seen before.
        return self._networks.setdefault(id(model), torch.compile(model, dynamic=False))


class SemiSupervised:
    """The Ladder's own loss on a labeled batch and a stream of unlabeled ones; a step is an iteration."""

    def __init__(self, config: RunConfig, dataset: DataSet, place: Processes, compiled: bool) -> None:
        assert config.data.labels is not None
        split = training_split(config.data, dataset)
        self._labeled, self._unlabeled = labeled_and_unlabeled(
            split,
            training_augmentation(config.data, split),
            labels=config.data.labels,
            unlabeled_batch=config.batch_size,
            seed=config.seed,
            device=place.device,
        )
        self._compiled = compiled
        self._loss: Callable[..., Tensor] | None = None
        self.steps_per_epoch = len(self._unlabeled)

    def gradient(self, model: nn.Module, step: int, backward: Callable[[Tensor], None]) -> Tensor:
        if self._loss is None:
            loss_of = cast(Ladder, model).loss
            self._loss = torch.compile(loss_of, dynamic=False) if self._compiled else loss_of
        images, labels, _ = self._labeled.at(step)
        loss = self._loss(images, labels, self._unlabeled.at(step).images)
        backward(loss)
        return loss.detach()

    def pictures(self) -> Iterator[Tensor]:
        mixed = replace(self._unlabeled, order="shuffled", purpose="statistics")
        return (images for images, _, _ in mixed.epoch(0))


def make_task(config: RunConfig, dataset: DataSet, place: Processes, workers: int) -> Task:
    """The task that a configuration describes."""
    if config.data.labels is not None:
        return SemiSupervised(config, dataset, place, config.compile)
    return Classification(config, dataset, place, config.compile, workers)


def test_batches(config: RunConfig, dataset: DataSet, place: Processes, workers: int) -> Batches:
    """The pictures to test on, in fixed order, each once."""
    split = dataset[config.data.test]
    augmentation = evaluation_augmentation(config.data, split)
    batches = _batches(split, augmentation, EVALUATION_BATCH, config.seed, place, last="keep", workers=workers)
    return replace(batches, order="fixed", purpose="test")


def _batches(split: Any, augmentation: Any, batch_size: int, seed: int, place: Processes, **options: Any) -> Batches:
    return Batches(
        split,
        augmentation,
        batch_size=batch_size,
        seed=seed,
        device=place.device,
        rank=place.rank,
        world_size=place.count,
        **options,
    )
