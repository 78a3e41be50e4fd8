"""Tasks: a task owns its data, its loss and its metrics.

No other part of the suite depends on what an example is, or on how a model is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from pbwn_repro.config import Data, RunConfig
from pbwn_repro.data import (
    Augmentation,
    Batch,
    Batches,
    DataSet,
    MemorySplit,
    Split,
    TextSet,
    augmentations,
    generator,
    join,
    labeled_and_unlabeled,
)
from pbwn_repro.data.augmentations import Flip, PadCrop
from pbwn_repro.errors import UsageError
from pbwn_repro.importing import user_location
from pbwn_repro.metrics import BITS_PER_CHARACTER, SUBTASK_ERROR, TEST_ERROR, Metric
from pbwn_repro.models import Ladder, OwnModel, TaskName, find

EVALUATION_BATCH = 500
AnySet = DataSet | TextSet
Compute = Callable[..., Tensor]


class ProcessGroup(Protocol):
    """What a task needs to know of the processes that share a run; see `pbwn_repro.engine.processes`."""

    @property
    def rank(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all processes."""


class Task(Protocol):
    """The data of a run, the gradient of a step, and the evaluation of a model.

    metric: the main metric; its name is a field of result.json and of each evaluation.
    unit: the unit in which speeds are reported; a step has `step_size` of them.
    model_arguments: the arguments of the model's constructor that follow from the data.
    """

    metric: ClassVar[Metric]
    unit: ClassVar[str]
    steps_per_epoch: int
    step_size: int
    model_arguments: Mapping[str, Any]

    def gradient(self, model: nn.Module, step: int, backward: Callable[[Tensor], None]) -> Tensor:
        """Add the gradient of a step's batch to the parameters and return the mean loss."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """All metrics of a model in evaluation mode, by name, each test example counted once over all processes."""

    def inputs(self) -> Iterator[Tensor]:
        """Shuffled training inputs as the model sees them, for estimating batch statistics."""

    def check(self, model: nn.Module) -> None:
        """Raise UsageError if a user's own model does not return what the task needs."""


class Supervised(Task):
    """Cross entropy with gradient accumulation; the last dimension of the scores is the classes."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._parts = config, config.accumulation
        self._compiled: dict[int, Compute] = {}

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The inputs and targets of a step."""
        raise NotImplementedError

    def example(self) -> Tensor:
        """A batch of one or two inputs."""
        raise NotImplementedError

    def gradient(self, model: nn.Module, step: int, backward: Callable[[Tensor], None]) -> Tensor:
        """Add the gradient of a step's batch to the parameters and return the mean loss."""
        inputs, targets = self.batch(step)
        network = self._network(model)
        total = torch.zeros((), device=inputs.device)
        parts = zip(inputs.chunk(self._parts), targets.chunk(self._parts), strict=True)
        for index, (part, part_targets) in enumerate(parts):
            with _gradient_sync(model, last=index == self._parts - 1):
                scores = network(part)
                loss = functional.cross_entropy(scores.flatten(0, -2), part_targets.flatten()) / self._parts
                backward(loss)
            total += loss.detach()
        return total

    def check(self, model: nn.Module) -> None:
        """Raise UsageError if a user's own model fails, or does not return scores of the classes."""
        found = find(self._config.model)
        if isinstance(found, OwnModel):
            inputs = self.example()
            model.eval()
            try:
                with torch.no_grad():
                    scores = model(inputs)
            except Exception as error:
                raise UsageError(
                    f"{found.name} fails on inputs of shape {tuple(inputs.shape)} and type {inputs.dtype} with "
                    f"{type(error).__name__}: {error}{user_location(error)}"
                ) from error
            found.check_scores(scores, inputs, (*self.batch(0)[1][:2].shape, self.num_classes))
            model.train()

    @property
    def num_classes(self) -> int:
        """The number of classes of the data."""
        raise NotImplementedError

    def _network(self, model: nn.Module) -> Compute:
        if not self._config.compile:
            return model
        if id(model) not in self._compiled:
            # Static shapes: a kernel must not depend on which shapes the process has seen before.
            self._compiled[id(model)] = torch.compile(model, dynamic=False)
        return self._compiled[id(model)]


class Classification(Supervised):
    """Classification of labeled images; the main metric is the test error in percent."""

    metric = TEST_ERROR
    unit = "images"

    def __init__(self, config: RunConfig, dataset: DataSet, processes: ProcessGroup, workers: int) -> None:
        super().__init__(config)
        self._dataset, self._processes = dataset, processes
        split = training_split(config.data, dataset)
        augmentation = training_augmentation(config.data, split)
        self._batches = _batches(split, augmentation, config.batch_size, config.seed, processes, workers=workers)
        self._tests = test_batches(config, dataset, processes, workers)
        self._stream: Iterator[Batch] = iter(())
        self._next = -1
        self.steps_per_epoch = len(self._batches)
        self.step_size = config.batch_size
        self.model_arguments = arguments_from_images(config, dataset, processes)

    @property
    def num_classes(self) -> int:
        """The number of classes of the data."""
        return len(self._dataset.classes)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The images and labels of a step, taken from the epoch's stream so that workers can decode files ahead."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if step != self._next or within == 0:
            self._stream = self._batches.epoch(epoch, first_step=within)
        self._next = step + 1
        images, labels, _ = next(self._stream)
        return images.contiguous(memory_format=torch.channels_last), labels  # the layout of the weights

    def example(self) -> Tensor:
        """Two test images."""
        return self._tests.batch(0, 0).images[:2]

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The test errors in percent and the mean loss."""
        return classification_metrics(model, self._tests, self._processes, self.num_classes)

    def inputs(self) -> Iterator[Tensor]:
        """Shuffled training images."""
        return _shuffled_images(self._batches)


class SemiSupervised(Task):
    """The Ladder's own loss on a labeled batch and an unlabeled one; evaluated as a classifier."""

    metric = TEST_ERROR
    unit = "images"

    def __init__(self, config: RunConfig, dataset: DataSet, processes: ProcessGroup, workers: int) -> None:
        assert config.data.labels is not None
        split = training_split(config.data, dataset)
        self._labeled, self._unlabeled = labeled_and_unlabeled(
            split,
            training_augmentation(config.data, split),
            labels=config.data.labels,
            unlabeled_batch=config.batch_size,
            seed=config.seed,
            device=processes.device,
        )
        self._tests = test_batches(config, dataset, processes, workers)
        self._processes, self._num_classes = processes, len(dataset.classes)
        self._is_compiled = config.compile
        self._loss: Compute | None = None
        self.steps_per_epoch = len(self._unlabeled)
        self.step_size = config.batch_size
        self.model_arguments = arguments_from_images(config, dataset, processes)

    def gradient(self, model: nn.Module, step: int, backward: Callable[[Tensor], None]) -> Tensor:
        """Add the gradient of a step to the parameters and return its loss."""
        if self._loss is None:
            loss_of = cast(Ladder, model).loss
            self._loss = torch.compile(loss_of, dynamic=False) if self._is_compiled else loss_of
        images, labels, _ = self._labeled.at(step)
        loss = self._loss(images, labels, self._unlabeled.at(step).images)
        backward(loss)
        return loss.detach()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The test errors in percent and the mean loss."""
        return classification_metrics(model, self._tests, self._processes, self._num_classes)

    def inputs(self) -> Iterator[Tensor]:
        """Shuffled unlabeled images."""
        return _shuffled_images(self._unlabeled)

    def check(self, model: nn.Module) -> None:
        """Do nothing: the Ladder is part of the suite."""


class Language(Supervised):
    """Predict each character of a text from those before it; the metric is bits per character.

    A step takes `batch_size` sequences from random positions of the text; an epoch has as many steps as would cover the
    text once. An evaluation predicts each character of the test text once, in consecutive windows.
    """

    metric = BITS_PER_CHARACTER
    unit = "characters"

    def __init__(self, config: RunConfig, dataset: TextSet, processes: ProcessGroup, workers: int) -> None:
        super().__init__(config)
        assert config.data.context is not None
        self._context, self._processes, self._dataset = config.data.context, processes, dataset
        parts = [*config.data.train, config.data.test]
        if unknown := set(parts) - dataset.splits.keys():
            raise UsageError(f"data: a text has the splits {' and '.join(dataset.splits)}, not {min(unknown)}")
        self._train = torch.cat([dataset.splits[name] for name in config.data.train])
        self._test = dataset.splits[config.data.test]
        shortest = min(len(self._train), len(self._test))
        if shortest <= self._context:
            raise UsageError(
                f"data.context {self._context}: the shortest split of {dataset.name} has {shortest:,} characters; "
                "choose a shorter context or a longer text"
            )
        self._evaluation_windows = max(1, EVALUATION_BATCH * 32 // self._context)  # per batch
        self.step_size = config.batch_size * self._context
        self.steps_per_epoch = max(1, len(self._train) // self.step_size)
        self.model_arguments = arguments_from_text(config, dataset)

    @property
    def num_classes(self) -> int:
        """The number of distinct characters."""
        return len(self._dataset.classes)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return this process's sequences of a step, and the character after each of theirs."""
        return self._sequences("training/places", *divmod(step, self.steps_per_epoch))

    def example(self) -> Tensor:
        """Two sequences."""
        return self.batch(0)[0][:2]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Bits per character, and the loss in nats."""
        count = len(self._test) - 1  # the first character has no context
        whole = count // self._context * self._context
        windows = [
            (self._test[:whole].view(-1, self._context), self._test[1 : whole + 1].view(-1, self._context)),
            (self._test[None, whole:count], self._test[None, whole + 1 :]),
        ]
        total = torch.zeros((), dtype=torch.float64, device=self._processes.device)
        for inputs, targets in windows:
            size = self._evaluation_windows
            for part_inputs, part_targets in zip(inputs.split(size), targets.split(size), strict=True):
                if part_inputs.shape[1]:
                    total += self._sum_of_losses(model, part_inputs, part_targets)
        loss = self._processes.sum(total).item() / count
        return {self.metric.name: loss / math.log(2), "test_loss": loss}

    def _sum_of_losses(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The summed loss of this process's share of some windows."""
        rows = self._share(len(inputs))
        inputs, targets = (part[rows].to(self._processes.device).long() for part in (inputs, targets))
        if not len(inputs):  # with sharded weights, every process must take part in every forward pass
            model(torch.zeros(1, targets.shape[1], dtype=torch.long, device=self._processes.device))
            return torch.zeros((), dtype=torch.float64, device=self._processes.device)
        scores = model(inputs).float()
        return functional.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="sum").double()

    def inputs(self) -> Iterator[Tensor]:
        """As many random sequences as an epoch has."""
        return (self._sequences("statistics/places", 0, step)[0] for step in range(self.steps_per_epoch))

    def _sequences(self, purpose: str, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        rng = generator(self._config.seed, purpose, epoch, step)
        starts = torch.randint(len(self._train) - self._context, (self._config.batch_size,), generator=rng)
        positions = starts[self._share(len(starts)), None] + torch.arange(self._context + 1)
        sequences = self._train[positions].to(self._processes.device, non_blocking=True).long()
        return sequences[:, :-1], sequences[:, 1:]

    def _share(self, count: int) -> slice:
        """Return the rows, out of `count`, that this process works on."""
        rank, total = self._processes.rank, self._processes.count
        return slice(count * rank // total, count * (rank + 1) // total)


class Continual(Supervised):
    """A sequence of classification sub-tasks on a subset of the images, to measure the loss of plasticity.

    Each sub-task has its own permutation of the pixels, or its own random labels. To the engine a sub-task is an epoch;
    at its end the model is evaluated by the error in percent on the sub-task's own training examples.
    """

    metric = SUBTASK_ERROR
    unit = "images"

    def __init__(self, config: RunConfig, dataset: DataSet, processes: ProcessGroup, workers: int) -> None:
        super().__init__(config)
        examples, passes = config.data.examples, config.data.passes
        assert examples is not None
        assert passes is not None
        split = training_split(config.data, dataset)
        if not config.batch_size <= examples <= len(split):
            raise UsageError(
                f"data.examples must be between the batch size ({config.batch_size}) and the number of images "
                f"({len(split):,}), not {examples}"
            )
        chosen = torch.randperm(len(split), generator=generator(config.seed, "sub-tasks/examples"))[:examples]
        split = split.subset(chosen.sort().values)
        augmentation = training_augmentation(config.data, split)
        self._batches = _batches(split, augmentation, config.batch_size, config.seed, processes, workers=workers)
        tests = _batches(split, augmentation, EVALUATION_BATCH, config.seed, processes, last="keep", workers=workers)
        self._tests = replace(tests, order="fixed", purpose="test")
        self._processes, self._dataset, self._examples = processes, dataset, examples
        self.steps_per_epoch = passes * len(self._batches)
        self.step_size = config.batch_size
        self.model_arguments = arguments_from_images(config, dataset, processes)
        self._start_subtask(0)

    @property
    def num_classes(self) -> int:
        """The number of classes of the data."""
        return len(self._dataset.classes)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The images and labels of a step, as its sub-task changes them."""
        self._start_subtask(step // self.steps_per_epoch)
        return self._in_subtask(self._batches.at(step))

    def example(self) -> Tensor:
        """Two images of the sub-task."""
        return self._in_subtask(self._tests.batch(0, 0))[0][:2]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The error in percent and the mean loss on the sub-task of the last step."""
        totals = torch.zeros(2, dtype=torch.float64, device=self._processes.device)
        for batch in self._tests.epoch(0):
            images, labels = self._in_subtask(batch)
            if not len(labels):  # with sharded weights, every process must take part in every forward pass
                model(images.new_zeros(1, *images.shape[1:]))
                continue
            scores = model(images).float()
            wrong = (scores.argmax(1) != labels) | ~scores.isfinite().all(1)
            totals += torch.stack([wrong.sum(), functional.cross_entropy(scores, labels, reduction="sum")])
        errors, loss = self._processes.sum(totals).tolist()
        return {self.metric.name: 100 * errors / self._examples, "subtask_loss": loss / self._examples}

    def inputs(self) -> Iterator[Tensor]:
        """Shuffled images of the sub-task of the last step."""
        batches = replace(self._batches, purpose="statistics")
        return (self._in_subtask(batch)[0] for batch in batches.epoch(0))

    def _start_subtask(self, number: int) -> None:
        """Draw the pixel permutation or the labels of a sub-task, unless it is the current one."""
        if getattr(self, "_number", None) == number:
            return
        self._number = number
        rng = generator(self._config.seed, "sub-tasks/change", number)
        if self._config.data.sequence == "permuted-pixels":
            pixels = self.model_arguments["image_size"] ** 2
            self._change = torch.randperm(pixels, generator=rng).to(self._processes.device)
        else:
            self._change = torch.randint(self.num_classes, (self._examples,), generator=rng)

    def _in_subtask(self, batch: Batch) -> tuple[Tensor, Tensor]:
        images, labels, indices = batch
        if self._config.data.sequence == "permuted-pixels":
            return images.flatten(2)[:, :, self._change].view(images.shape), labels
        return images, self._change[indices].to(labels.device)


TASKS: Mapping[TaskName, Callable[[RunConfig, Any, ProcessGroup, int], Task]] = {
    "classification": Classification,
    "ladder": SemiSupervised,
    "language": Language,
    "continual": Continual,
}
_METRICS: Mapping[TaskName, Metric] = {
    "classification": Classification.metric,
    "ladder": SemiSupervised.metric,
    "language": Language.metric,
    "continual": Continual.metric,
}


def make_task(config: RunConfig, dataset: AnySet, processes: ProcessGroup, workers: int) -> Task:
    """Create the task of a configuration."""
    return TASKS[config.task](config, dataset, processes, workers)


def metric_of(config: RunConfig) -> Metric:
    """The main metric of a run: a field of result.json and of each evaluation in metrics.jsonl."""
    return _METRICS[config.task]


@dataclass(frozen=True)
class DataSummary:
    """What a model sees of the data of a configuration.

    model_arguments: the arguments of the model's constructor that follow from the data.
    example: a batch of one input.
    counts: the number of examples in each split.
    """

    model_arguments: Mapping[str, Any]
    example: Tensor
    counts: Mapping[str, int]


def describe(config: RunConfig, dataset: AnySet, processes: ProcessGroup) -> DataSummary:
    """Summarise the data for a model without creating the task."""
    if isinstance(dataset, TextSet):
        context = config.data.context or 1
        counts = {name: max(1, len(split) // context) for name, split in dataset.splits.items()}
        return DataSummary(arguments_from_text(config, dataset), torch.zeros(1, context, dtype=torch.long), counts)
    example = test_batches(config, dataset, processes, 0).batch(0, 0).images[:1]
    counts = {name: len(split) for name, split in dataset.splits.items()}
    return DataSummary(arguments_from_images(config, dataset, processes), example, counts)


def arguments_from_images(config: RunConfig, dataset: DataSet, processes: ProcessGroup) -> dict[str, Any]:
    """The arguments of a model's constructor that follow from images."""
    images = test_batches(config, dataset, processes, 0).batch(0, 0).images
    return {"num_classes": len(dataset.classes), "in_channels": images.shape[1], "image_size": images.shape[2]}


def arguments_from_text(config: RunConfig, dataset: TextSet) -> dict[str, Any]:
    """The arguments of a model's constructor that follow from a text."""
    return {"num_classes": len(dataset.classes), "context": config.data.context}


@torch.no_grad()
def classification_metrics(
    model: nn.Module, batches: Batches, processes: ProcessGroup, num_classes: int
) -> dict[str, float]:
    """Errors in percent and the mean loss over all images; top-5 errors too with more than ten classes."""
    counts = torch.zeros(4, dtype=torch.float64, device=processes.device)
    for images, labels, _ in batches.epoch(0):
        if not len(labels):  # with sharded weights, every process must take part in every forward pass
            model(images.new_zeros(1, *images.shape[1:]))
            continue
        scores = model(images).float()
        own = scores.gather(1, labels[:, None])
        earlier = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
        ranks = ((scores > own) | ((scores == own) & earlier)).sum(1)  # ties go to the first, as in argmax
        # Comparisons with NaN are false, so without this it would rank first and count as correct.
        ranks = ranks.masked_fill(~scores.isfinite().all(1), num_classes)
        loss = functional.cross_entropy(scores, labels, reduction="sum")
        counts += torch.stack([(ranks > 0).sum(), (ranks > 4).sum(), loss, loss.new_tensor(len(labels))])
    wrong, wrong5, loss, total = processes.sum(counts).tolist()
    top5 = {"test_top5_error": 100 * wrong5 / total} if num_classes > 10 else {}
    return {TEST_ERROR.name: 100 * wrong / total, "test_loss": loss / total, **top5}


def training_split(config: Data, dataset: DataSet) -> Split:
    """The training images: one split, or several concatenated."""
    splits = [dataset[name] for name in config.train]
    if len(splits) == 1:
        return splits[0]
    memory = [split for split in splits if isinstance(split, MemorySplit)]
    if len(memory) < len(splits):
        raise UsageError(f"data.train={list(config.train)}: only sets in memory can be concatenated; choose one split")
    return join(*memory)


def training_augmentation(config: Data, split: Split) -> Augmentation:
    """The preprocessing and augmentation of training images."""
    if config.normalisation == "imagenet":
        return augmentations.imagenet_training()
    random_transforms: tuple[PadCrop | Flip, ...] = ()
    if config.augmentation == "authors":
        random_transforms = PadCrop(4, "reflect", "batch"), Flip("half")
    elif config.augmentation == "he":
        random_transforms = PadCrop(4, "zero", "image"), Flip("random")
    return Augmentation((*evaluation_augmentation(config, split).transforms, *random_transforms))


def evaluation_augmentation(config: Data, split: Split) -> Augmentation:
    """The preprocessing of test images."""
    if config.normalisation == "imagenet":
        return augmentations.imagenet_evaluation()
    if config.normalisation == "cifar":
        return augmentations.cifar_evaluation()
    if config.normalisation == "mnist-mlp":
        if not isinstance(split, MemorySplit):
            raise UsageError("data.normalisation='mnist-mlp' needs a set in memory: choose 'unit-range'")
        return augmentations.mnist_mlp(split)
    return augmentations.unit_range()


def test_batches(config: RunConfig, dataset: DataSet, processes: ProcessGroup, workers: int) -> Batches:
    """The test images in fixed order, each once."""
    split = dataset[config.data.test]
    augmentation = evaluation_augmentation(config.data, split)
    batches = _batches(split, augmentation, EVALUATION_BATCH, config.seed, processes, last="keep", workers=workers)
    return replace(batches, order="fixed", purpose="test")


def _batches(
    split: Any, augmentation: Any, batch_size: int, seed: int, processes: ProcessGroup, **options: Any
) -> Batches:
    return Batches(
        split,
        augmentation,
        batch_size=batch_size,
        seed=seed,
        device=processes.device,
        rank=processes.rank,
        world_size=processes.count,
        **options,
    )


def _shuffled_images(batches: Batches) -> Iterator[Tensor]:
    """The images of one epoch, shuffled because a set may be sorted by class."""
    shuffled = replace(batches, order="shuffled", purpose="statistics")
    return (images for images, _, _ in shuffled.epoch(0))


def _gradient_sync(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Synchronise DDP's gradients only in the last part of a batch."""
    return nullcontext() if last or not isinstance(model, DistributedDataParallel) else model.no_sync()
