"""How much work a run is, in steps, FLOPs and bytes: known without doing any of it, and without its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pbwn_repro import models
from pbwn_repro.config import SGD, RunConfig
from pbwn_repro.data import DataSet, MemorySplit, original
from pbwn_repro.data.generated import SHAPES, STORED_PREFIX
from pbwn_repro.data.published import KNOWN_SETS
from pbwn_repro.data.text import LENGTHS, TEST_SHARE, TextSet
from pbwn_repro.engine.processes import Processes
from pbwn_repro.tasks import AnySet, describe

USUAL_TEXT = 1_000_000  # characters of a text that is not known
USUAL_ALPHABET = 96
LAYER_SECONDS = 0.00025  # of a training step, that a GPU's host takes to start the kernels of a layer


@dataclass(frozen=True)
class Effort:
    """What a run amounts to.

    flops: of all training steps and of all tests; `step_flops` of one training step.
    layers: that have weights, each of which takes time of a GPU's host, however small it is.
    bytes: on the disk, when it is done.
    """

    steps: int
    flops: float
    step_flops: float
    layers: int
    bytes: int

    def gpu_seconds(self, flops_per_second: float) -> float:
        """How long it takes on a GPU of this speed; a small network waits for the host that starts its kernels."""
        return max(self.flops / flops_per_second, self.steps * self.layers * LAYER_SECONDS)


class NetworkCost(NamedTuple):
    """FLOPs of a training step, and of evaluating one example; the numbers of layers and of parameters."""

    step_flops: float
    example_flops: float
    layers: int
    parameters: int


def effort(config: RunConfig, cost: NetworkCost | None = None, dataset: AnySet | None = None) -> Effort:
    """What a configuration amounts to; `cost` is that of its network, where that is known already."""
    cost = cost or network_cost(config, dataset)
    if dataset or config.data.context is not None:
        counts = describe(config, dataset or _blank(config), Processes()).counts
    else:
        counts = _shape(config.data.name).counts
    steps_per_epoch = max(1, sum(counts[split] for split in config.data.train) // config.batch_size)
    steps = config.steps or (config.epochs or 0) * steps_per_epoch
    tests = max(1, steps // (config.evaluate_every or steps_per_epoch))
    flops = steps * cost.step_flops + tests * counts[config.data.test] * cost.example_flops
    moments = int(config.optimizer.momentum > 0) if isinstance(config.optimizer, SGD) else 2
    # The exported model, and a checkpoint with the model and the optimizer's moments, in float32.
    return Effort(steps, flops, cost.step_flops, cost.layers, 4 * cost.parameters * (2 + moments))


def network_cost(config: RunConfig, dataset: AnySet | None = None) -> NetworkCost:
    """Count on the meta device, where nothing is computed; a step is a forward pass three times, as in section 3.3.

    Without its data, they are taken to be of the usual shape for their name.
    """
    met = describe(config, dataset or _blank(config), Processes())
    network = models.find(config.model)
    arguments = {**network.accepted(met.told), **network.start(config.method, config.init), **config.model_options}
    with torch.device("meta"):
        model = network.build(**arguments)
    example = met.example.to("meta")
    model.eval()
    one = _forward_flops(model, example)
    step = 3 * config.batch_size * one
    if config.data.labels is not None:
        counts = (config.data.labels, config.batch_size)
        batches = [torch.zeros(count, *example.shape[1:], device="meta") for count in counts]
        labels = torch.zeros(config.data.labels, dtype=torch.long, device="meta")
        assert isinstance(model, models.Ladder)
        model.train()
        step = 3 * _forward_flops(model.loss, batches[0], labels, batches[1])
    layers = sum(parameter.ndim > 1 for parameter in model.parameters())
    return NetworkCost(step, one, layers, sum(parameter.numel() for parameter in model.parameters()))


def _forward_flops(function: Callable[..., Tensor], *inputs: Tensor) -> float:
    from torch.utils.flop_counter import FlopCounterMode  # imports triton where that is installed

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function(*inputs)
    return float(counter.get_total_flops())


class _Shape(NamedTuple):
    image: tuple[int, int, int]
    classes: int
    counts: Mapping[str, int]


def _blank(config: RunConfig) -> AnySet:
    """One black image in the shape of a set, or an empty text of its length, which need not be here."""
    if config.data.context is not None:
        length = LENGTHS.get(config.data.name, USUAL_TEXT)
        parts = {config.data.test: length // TEST_SHARE, **dict.fromkeys(config.data.train, length)}
        blanks = {name: torch.zeros(1, dtype=torch.int32).expand(count) for name, count in parts.items()}
        return TextSet("blank", blanks, (" ",) * USUAL_ALPHABET, "nowhere", "")
    shape = _shape(config.data.name)
    black = MemorySplit(torch.zeros(1, *shape.image, dtype=torch.uint8), torch.zeros(1, dtype=torch.long))
    return DataSet("black", {config.data.test: black}, ("black",) * shape.classes, "nowhere")


def _shape(name: str) -> _Shape:
    """The sizes of a set, by its name in a configuration."""
    name = original(name)
    if name in KNOWN_SETS:
        known = KNOWN_SETS[name]
        counts = {split: part.count for split, part in known.splits.items()}
        return _Shape(known.image_shape, len(known.classes), counts)
    if name == "digits":
        return _Shape((1, 8, 8), 10, {"train": 1_437, "test": 360})
    if name == "imagenet":
        return _Shape((3, 224, 224), 1_000, {"train": 1_281_167, "test": 50_000})
    image, classes, train, test = SHAPES[name.removeprefix(STORED_PREFIX)]
    return _Shape(image, classes, {"train": train, "test": test})
