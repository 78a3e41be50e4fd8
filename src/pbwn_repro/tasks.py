"""What a model is asked to do. A task owns its data, its loss and its metrics, with the one that is shown.

Nothing else knows what an example is, or what a model is judged by.
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
from pbwn_repro.importing import where
from pbwn_repro.metrics import BITS_PER_CHARACTER, SUBTASK_ERROR, TEST_ERROR, Metric
from pbwn_repro.models import Ladder, OwnModel, TaskName, find

EVALUATION_BATCH = 500
AnySet = DataSet | TextSet
Compute = Callable[..., Tensor]


class Place(Protocol):
    """The part of the work that falls to this process."""

    @property
    def rank(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def sum(self, values: Tensor) -> Tensor:
        """Add up over all processes."""


class Task(Protocol):
    """The data of a run, the gradient of one of its steps, and what its model is judged by.

    shown: the metric that is shown of a run; its name is a field of result.json and of each evaluation.
    unit: what examples are called in reports of speed; a step has `step_size` of them.
    model_arguments: arguments of the model's constructor that follow from the data.
    """

    shown: ClassVar[Metric]
    unit: ClassVar[str]
    steps_per_epoch: int
    step_size: int
    model_arguments: Mapping[str, Any]

    def gradient(self, model: nn.Module, step: int, backward: Callable[[Tensor], None]) -> Tensor:
        """Add the gradient of a step's batch to the parameters, and return its mean loss."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """All metrics of a model in evaluation mode, by name: on every example for tests once, over all processes."""

    def inputs(self) -> Iterator[Tensor]:
        """The examples to train on as the model sees them, mixed: what batch statistics are estimated from."""

    def check(self, model: nn.Module) -> None:
        """Refuse a model of the user's that does not answer as the task needs it."""


class Supervised(Task):
    """Cross entropy of targets and scores, whose last dimension is the classes, in as many parts as are accumulated."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._parts = config, config.accumulation
        self._compiled: dict[int, Compute] = {}

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The inputs and targets of a step."""
        raise NotImplementedError

    def example(self) -> Tensor:
        """An input or two."""
        raise NotImplementedError

    def gradient(self, model: nn.Module, step: int, backward: Callable[[Tensor], None]) -> Tensor:
        """Add the gradient of a step's batch to the parameters, and return its mean loss."""
        inputs, targets = self.batch(step)
        network = self._network(model)
        total = torch.zeros((), device=inputs.device)
        parts = zip(inputs.chunk(self._parts), targets.chunk(self._parts), strict=True)
        for index, (part, wanted) in enumerate(parts):
            with _synchronised(model, last=index == self._parts - 1):
                scores = network(part)
                loss = functional.cross_entropy(scores.flatten(0, -2), wanted.flatten()) / self._parts
                backward(loss)
            total += loss.detach()
        return total

    def check(self, model: nn.Module) -> None:
        """Refuse a model of the user's whose answers are no scores of the classes."""
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
                    f"{type(error).__name__}: {error}{where(error)}"
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
            # Fixed shapes: a kernel must not depend on which shapes the process has seen before.
            self._compiled[id(model)] = torch.compile(model, dynamic=False)
        return self._compiled[id(model)]


class Classification(Supervised):
    """Labeled images; judged by the test error in percent, beside it the loss, and top-5 where classes are many."""

    shown = TEST_ERROR
    unit = "images"

    def __init__(self, config: RunConfig, dataset: DataSet, place: Place, workers: int) -> None:
        super().__init__(config)
        self._dataset, self._place = dataset, place
        split = training_split(config.data, dataset)
        augmentation = training_augmentation(config.data, split)
        self._batches = _batches(split, augmentation, config.batch_size, config.seed, place, workers=workers)
        self._tests = test_batches(config, dataset, place, workers)
        self._stream: Iterator[Batch] = iter(())
        self._next = -1
        self.steps_per_epoch = len(self._batches)
        self.step_size = config.batch_size
        self.model_arguments = arguments_from_images(config, dataset, place)

    @property
    def num_classes(self) -> int:
        """The number of classes of the data."""
        return len(self._dataset.classes)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The images and labels of a step, out of the epoch's stream, so that what decodes files can work ahead."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if step != self._next or within == 0:
            self._stream = self._batches.epoch(epoch, first_step=within)
        self._next = step + 1
        images, labels, _ = next(self._stream)
        return images.contiguous(memory_format=torch.channels_last), labels  # the layout of the weights

    def example(self) -> Tensor:
        """Two images for tests."""
        return self._tests.batch(0, 0).images[:2]

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Errors in percent and the mean loss."""
        return classified(model, self._tests, self._place, self.num_classes)

    def inputs(self) -> Iterator[Tensor]:
        """The images to train on."""
        return _mixed(self._batches)


class SemiSupervised(Task):
    """The Ladder's own loss on a labeled batch and a stream of unlabeled ones; judged as a classifier."""

    shown = TEST_ERROR
    unit = "images"

    def __init__(self, config: RunConfig, dataset: DataSet, place: Place, workers: int) -> None:
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
        self._tests = test_batches(config, dataset, place, workers)
        self._place, self._num_classes = place, len(dataset.classes)
        self._is_compiled = config.compile
        self._loss: Compute | None = None
        self.steps_per_epoch = len(self._unlabeled)
        self.step_size = config.batch_size
        self.model_arguments = arguments_from_images(config, dataset, place)

    def gradient(self, model: nn.Module, step: int, backward: Callable[[Tensor], None]) -> Tensor:
        """Add the gradient of one iteration to the parameters."""
        if self._loss is None:
            loss_of = cast(Ladder, model).loss
            self._loss = torch.compile(loss_of, dynamic=False) if self._is_compiled else loss_of
        images, labels, _ = self._labeled.at(step)
        loss = self._loss(images, labels, self._unlabeled.at(step).images)
        backward(loss)
        return loss.detach()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Errors in percent and the mean loss."""
        return classified(model, self._tests, self._place, self._num_classes)

    def inputs(self) -> Iterator[Tensor]:
        """The unlabeled images."""
        return _mixed(self._unlabeled)

    def check(self, model: nn.Module) -> None:
        """The Ladder answers as it should."""


class Language(Supervised):
    """Predict each character of a text from those before it; judged by bits per character.

    A step takes `batch_size` sequences from places of the text that are drawn at random; so many steps as would see the
    text once are an epoch. A test predicts each character once, in windows that follow each other.
    """

    shown = BITS_PER_CHARACTER
    unit = "characters"

    def __init__(self, config: RunConfig, dataset: TextSet, place: Place, workers: int) -> None:
        super().__init__(config)
        assert config.data.context is not None
        self._context, self._place, self._dataset = config.data.context, place, dataset
        parts = [*config.data.train, config.data.test]
        if unknown := set(parts) - dataset.splits.keys():
            raise UsageError(f"data: a text has the splits {' and '.join(dataset.splits)}, not {min(unknown)}")
        self._train = torch.cat([dataset.splits[name] for name in config.data.train])
        self._test = dataset.splits[config.data.test]
        shortest = min(len(self._train), len(self._test))
        if shortest <= self._context:
            raise UsageError(
                f"data.context {self._context}: the shortest split of {dataset.name} has {shortest:,} characters; "
                "choose a shorter context, or a longer text"
            )
        self._tested = max(1, EVALUATION_BATCH * 32 // self._context)  # windows at a time
        self.step_size = config.batch_size * self._context
        self.steps_per_epoch = max(1, len(self._train) // self.step_size)
        self.model_arguments = arguments_from_text(config, dataset)

    @property
    def num_classes(self) -> int:
        """The number of different characters."""
        return len(self._dataset.classes)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The sequences of a step and what follows each of their characters; this process's share of them."""
        return self._sequences("training/places", *divmod(step, self.steps_per_epoch))

    def example(self) -> Tensor:
        """Two sequences."""
        return self.batch(0)[0][:2]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Bits per character, and the loss in nats."""
        count = len(self._test) - 1  # nothing comes before the first character
        whole = count // self._context * self._context
        windows = [
            (self._test[:whole].view(-1, self._context), self._test[1 : whole + 1].view(-1, self._context)),
            (self._test[None, whole:count], self._test[None, whole + 1 :]),
        ]
        total = torch.zeros((), dtype=torch.float64, device=self._place.device)
        for inputs, targets in windows:
            for characters, wanted in zip(inputs.split(self._tested), targets.split(self._tested), strict=True):
                if characters.shape[1]:
                    total += self._sum_of_losses(model, characters, wanted)
        loss = self._place.sum(total).item() / count
        return {self.shown.name: loss / math.log(2), "test_loss": loss}

    def _sum_of_losses(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The losses of this process's share of some windows."""
        rows = self._share(len(inputs))
        inputs, targets = (part[rows].to(self._place.device).long() for part in (inputs, targets))
        if not len(inputs):  # where weights are sharded, every process has to take part in every pass
            model(torch.zeros(1, targets.shape[1], dtype=torch.long, device=self._place.device))
            return torch.zeros((), dtype=torch.float64, device=self._place.device)
        scores = model(inputs).float()
        return functional.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="sum").double()

    def inputs(self) -> Iterator[Tensor]:
        """As many sequences as an epoch has."""
        return (self._sequences("statistics/places", 0, step)[0] for step in range(self.steps_per_epoch))

    def _sequences(self, purpose: str, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        numbers = generator(self._config.seed, purpose, epoch, step)
        starts = torch.randint(len(self._train) - self._context, (self._config.batch_size,), generator=numbers)
        places = starts[self._share(len(starts)), None] + torch.arange(self._context + 1)
        found = self._train[places].to(self._place.device, non_blocking=True).long()
        return found[:, :-1], found[:, 1:]

    def _share(self, count: int) -> slice:
        """Which of so many rows are this process's."""
        return slice(*(count * rank // self._place.count for rank in (self._place.rank, self._place.rank + 1)))


class Continual(Supervised):
    """Many classification tasks one after the other, on some images of a set: can a model still learn the last ones?

    Each sub-task has its own order of the pixels, or its own random labels. To the engine it is an epoch; at its end a
    model is judged by the error in percent on the examples that it has just learnt from.
    """

    shown = SUBTASK_ERROR
    unit = "images"

    def __init__(self, config: RunConfig, dataset: DataSet, place: Place, workers: int) -> None:
        super().__init__(config)
        examples, passes = config.data.examples, config.data.passes
        assert examples is not None
        assert passes is not None
        split = training_split(config.data, dataset)
        if not config.batch_size <= examples <= len(split):
            raise UsageError(
                f"data.examples {examples}: a number from the batch size ({config.batch_size}) to the number of "
                f"images ({len(split):,}) is needed"
            )
        chosen = torch.randperm(len(split), generator=generator(config.seed, "sub-tasks/examples"))[:examples]
        split = split.subset(chosen.sort().values)
        augmentation = training_augmentation(config.data, split)
        self._batches = _batches(split, augmentation, config.batch_size, config.seed, place, workers=workers)
        tested = _batches(split, augmentation, EVALUATION_BATCH, config.seed, place, last="keep", workers=workers)
        self._tests = replace(tested, order="fixed", purpose="test")
        self._place, self._dataset, self._examples = place, dataset, examples
        self.steps_per_epoch = passes * len(self._batches)
        self.step_size = config.batch_size
        self.model_arguments = arguments_from_images(config, dataset, place)
        self._enter(0)

    @property
    def num_classes(self) -> int:
        """The number of classes of the data."""
        return len(self._dataset.classes)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The images and labels of a step, as its sub-task has them."""
        self._enter(step // self.steps_per_epoch)
        return self._as_in_subtask(self._batches.at(step))

    def example(self) -> Tensor:
        """Two images."""
        return self._as_in_subtask(self._tests.batch(0, 0))[0][:2]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The error in percent and the mean loss on the sub-task of the last step."""
        counts = torch.zeros(2, dtype=torch.float64, device=self._place.device)
        for batch in self._tests.epoch(0):
            images, labels = self._as_in_subtask(batch)
            if not len(labels):  # where weights are sharded, every process has to take part in every pass
                model(images.new_zeros(1, *images.shape[1:]))
                continue
            scores = model(images).float()
            wrong = (scores.argmax(1) != labels) | ~scores.isfinite().all(1)
            counts += torch.stack([wrong.sum(), functional.cross_entropy(scores, labels, reduction="sum")])
        wrong_ones, loss = self._place.sum(counts).tolist()
        return {self.shown.name: 100 * wrong_ones / self._examples, "subtask_loss": loss / self._examples}

    def inputs(self) -> Iterator[Tensor]:
        """The images of the last step's sub-task."""
        mixed = replace(self._batches, purpose="statistics")
        return (self._as_in_subtask(batch)[0] for batch in mixed.epoch(0))

    def _enter(self, number: int) -> None:
        """Draw what is special about a sub-task."""
        if getattr(self, "_number", None) == number:
            return
        self._number = number
        numbers = generator(self._config.seed, "sub-tasks/change", number)
        if self._config.data.sequence == "permuted-pixels":
            pixels = self.model_arguments["image_size"] ** 2
            self._change = torch.randperm(pixels, generator=numbers).to(self._place.device)
        else:
            self._change = torch.randint(self.num_classes, (self._examples,), generator=numbers)

    def _as_in_subtask(self, batch: Batch) -> tuple[Tensor, Tensor]:
        images, labels, indices = batch
        if self._config.data.sequence == "permuted-pixels":
            return images.flatten(2)[:, :, self._change].view(images.shape), labels
        return images, self._change[indices].to(labels.device)


TASKS: Mapping[TaskName, Callable[[RunConfig, Any, Place, int], Task]] = {
    "classification": Classification,
    "ladder": SemiSupervised,
    "language": Language,
    "continual": Continual,
}
_SHOWN: Mapping[TaskName, Metric] = {
    "classification": Classification.shown,
    "ladder": SemiSupervised.shown,
    "language": Language.shown,
    "continual": Continual.shown,
}


def make_task(config: RunConfig, dataset: AnySet, place: Place, workers: int) -> Task:
    """The task that a configuration describes."""
    return TASKS[config.task](config, dataset, place, workers)


def metric_of(config: RunConfig) -> Metric:
    """The metric that is shown of a run: result.json and each evaluation in metrics.jsonl have it."""
    return _SHOWN[config.task]


@dataclass(frozen=True)
class Described:
    """What the data of a configuration look like to a model.

    model_arguments: arguments of the model's constructor.
    example: one input.
    counts: the number of examples of each split.
    """

    model_arguments: Mapping[str, Any]
    example: Tensor
    counts: Mapping[str, int]


def describe(config: RunConfig, dataset: AnySet, place: Place) -> Described:
    """What a model meets, without making the task."""
    if isinstance(dataset, TextSet):
        context = config.data.context or 1
        counts = {name: max(1, len(split) // context) for name, split in dataset.splits.items()}
        return Described(arguments_from_text(config, dataset), torch.zeros(1, context, dtype=torch.long), counts)
    example = test_batches(config, dataset, place, 0).batch(0, 0).images[:1]
    counts = {name: len(split) for name, split in dataset.splits.items()}
    return Described(arguments_from_images(config, dataset, place), example, counts)


def arguments_from_images(config: RunConfig, dataset: DataSet, place: Place) -> dict[str, Any]:
    """What images tell a model."""
    images = test_batches(config, dataset, place, 0).batch(0, 0).images
    return {"num_classes": len(dataset.classes), "in_channels": images.shape[1], "image_size": images.shape[2]}


def arguments_from_text(config: RunConfig, dataset: TextSet) -> dict[str, Any]:
    """What a text tells a model."""
    return {"num_classes": len(dataset.classes), "context": config.data.context}


@torch.no_grad()
def classified(model: nn.Module, batches: Batches, place: Place, num_classes: int) -> dict[str, float]:
    """Errors in percent and the mean loss, on every image once; top-5 where there are more than ten classes."""
    counts = torch.zeros(4, dtype=torch.float64, device=place.device)
    for images, labels, _ in batches.epoch(0):
        if not len(labels):  # where weights are sharded, every process has to take part in every pass
            model(images.new_zeros(1, *images.shape[1:]))
            continue
        scores = model(images).float()
        own = scores.gather(1, labels[:, None])
        earlier = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
        ranks = ((scores > own) | ((scores == own) & earlier)).sum(1)  # of equal scores the first wins, as in argmax
        # A score that is not a number beats nothing and is beaten by nothing: it must not count as right.
        ranks = ranks.masked_fill(~scores.isfinite().all(1), num_classes)
        loss = functional.cross_entropy(scores, labels, reduction="sum")
        counts += torch.stack([(ranks > 0).sum(), (ranks > 4).sum(), loss, loss.new_tensor(len(labels))])
    wrong, wrong5, loss, total = place.sum(counts).tolist()
    top5 = {"test_top5_error": 100 * wrong5 / total} if num_classes > 10 else {}
    return {TEST_ERROR.name: 100 * wrong / total, "test_loss": loss / total, **top5}


def training_split(config: Data, dataset: DataSet) -> Split:
    """The images to train on: one split, or several one after the other."""
    splits = [dataset[name] for name in config.train]
    if len(splits) == 1:
        return splits[0]
    memory = [split for split in splits if isinstance(split, MemorySplit)]
    if len(memory) < len(splits):
        raise UsageError(f"data.train={list(config.train)}: only sets in memory can be joined; choose one split")
    return join(*memory)


def training_augmentation(config: Data, split: Split) -> Augmentation:
    """What happens to images that the model learns from."""
    if config.normalisation == "imagenet":
        return augmentations.imagenet_training()
    moves: tuple[PadCrop | Flip, ...] = ()
    if config.augmentation == "authors":
        moves = PadCrop(4, "reflect", "batch"), Flip("half")
    elif config.augmentation == "he":
        moves = PadCrop(4, "zero", "image"), Flip("random")
    return Augmentation((*evaluation_augmentation(config, split).transforms, *moves))


def evaluation_augmentation(config: Data, split: Split) -> Augmentation:
    """What happens to images that the model is evaluated on."""
    if config.normalisation == "imagenet":
        return augmentations.imagenet_evaluation()
    if config.normalisation == "cifar":
        return augmentations.cifar_evaluation()
    if config.normalisation == "mnist-mlp":
        if not isinstance(split, MemorySplit):
            raise UsageError("data.normalisation='mnist-mlp' needs a set in memory: choose 'unit-range'")
        return augmentations.mnist_mlp(split)
    return augmentations.unit_range()


def test_batches(config: RunConfig, dataset: DataSet, place: Place, workers: int) -> Batches:
    """The images to evaluate on, in fixed order, each once."""
    split = dataset[config.data.test]
    augmentation = evaluation_augmentation(config.data, split)
    batches = _batches(split, augmentation, EVALUATION_BATCH, config.seed, place, last="keep", workers=workers)
    return replace(batches, order="fixed", purpose="test")


def _batches(split: Any, augmentation: Any, batch_size: int, seed: int, place: Place, **options: Any) -> Batches:
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


def _mixed(batches: Batches) -> Iterator[Tensor]:
    """The images of an epoch; sets may be sorted by class."""
    mixed = replace(batches, order="shuffled", purpose="statistics")
    return (images for images, _, _ in mixed.epoch(0))


def _synchronised(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Accumulate gradients in this process alone until the last part of a batch."""
    return nullcontext() if last or not isinstance(model, DistributedDataParallel) else model.no_sync()
