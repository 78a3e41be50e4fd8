"""How much work a run is, in steps, FLOPs and bytes, and how long that takes here.

The work is known without doing any of it, and without its data. Its time follows from the speed that other runs have
shown, or that a short test of this machine shows.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pbwn_repro import models
from pbwn_repro.config import SGD, RunConfig, read_config
from pbwn_repro.data import DataSet, MemorySplit, original
from pbwn_repro.data.cache import cache_root
from pbwn_repro.data.generated import SHAPES, STORED_PREFIX
from pbwn_repro.data.published import KNOWN_SETS
from pbwn_repro.data.text import LENGTHS, TEST_SHARE, TextSet
from pbwn_repro.engine.processes import Processes
from pbwn_repro.importing import is_own
from pbwn_repro.runs.environment import processor
from pbwn_repro.runs.folder import RunFolder, to_json, write_atomically
from pbwn_repro.tasks import AnySet, describe

USUAL_TEXT = 1_000_000  # characters of a text that is not known
USUAL_ALPHABET = 96
TERAFLOPS = 10.0  # a second, of a current GPU in large convolutions
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
    arguments = {
        **network.accepted(met.model_arguments),
        **network.start(config.method, config.init),
        **config.model_options,
    }
    try:
        with torch.device("meta"):
            model = network.build(**arguments).eval()
        example = met.example.to("meta")
        one = _forward_flops(model, example)
    except Exception:
        if not is_own(config.model):
            raise
        with torch.random.fork_rng():  # a model of the user's may have to look at values
            model, example = network.build(**arguments).eval(), met.example
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


# One network of each kind with a batch that takes a core a fraction of a second; a GPU shows its speed with large ones.
_PROBES = {"convolutional": ("resnet-20", (32, 3, 32, 32)), "linear": ("mlp", (256, 1, 32, 32))}
_GPU_PROBES = {"convolutional": ("vgg-e", (128, 3, 32, 32)), "linear": ("mlp", (4096, 1, 32, 32))}
_STARTING = 1.0  # seconds until a run takes its first step
_LINES = 200  # of a run's times: enough for a median


@dataclass(frozen=True)
class Estimate:
    """What a run takes: seconds on one core (or on one GPU), bytes on the disk, and FLOPs."""

    seconds: float
    bytes: int
    flops: float


@dataclass
class Speeds:
    """What is known of this machine and of the networks; what was found out is kept in the cache folder.

    out: the runs whose times are used.
    tell: hears of a measurement that takes seconds.
    """

    out: Path
    cache_dir: Path | None = None
    device: str = "cpu"
    tell: Callable[[str], object] = lambda words: None
    _held: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)

    def effort(self, config: RunConfig, dataset: AnySet | None = None) -> Effort:
        """What a configuration amounts to; data that are not known by name have to be there."""
        if dataset is not None:
            return effort(config, dataset=dataset)
        data = config.data
        key = json.dumps([_network(config), config.batch_size, data.normalisation, data.labels, data.context])
        found = self._kept("costs", key, lambda: list(network_cost(config)))
        return effort(config, NetworkCost(*found))

    def estimate(self, config: RunConfig, dataset: AnySet | None = None) -> Estimate:
        """What a run with this configuration takes here."""
        work = self.effort(config, dataset)
        seconds = self._shown.seconds(config, work) or _STARTING + self._tested_seconds(config, work)
        return Estimate(seconds, work.bytes, work.flops)

    def measuring_seconds(self, flops: float) -> float:
        """How long so much work takes a core with convolutional networks: what is measured is the processor's time."""
        return flops / self._probed("convolutional", "cpu")

    def _tested_seconds(self, config: RunConfig, work: Effort) -> float:
        """As the machine's test shows."""
        speed = self._probed(models.find(config.model).family.work, self.device)
        return work.flops / speed if self.device == "cpu" else work.gpu_seconds(speed)

    @cached_property
    def _shown(self) -> Shown:
        return Shown(_runs_below(self.out), self.effort, self.device)

    def _probed(self, kind: str, device: str) -> float:
        """FLOP/s of a core, or of a GPU."""
        name = processor() if device == "cpu" else torch.cuda.get_device_name(device)
        key = f"{kind}, {name}, torch {torch.__version__}"
        speed: float = self._kept("speeds", key, lambda: self._measured(kind, device))
        return speed

    def _measured(self, kind: str, device: str) -> float:
        self.tell(f"measuring this machine's speed with {kind} layers (once) ...")
        return _probe(kind, device)

    def _kept(self, what: str, key: str, find: Callable[[], Any]) -> Any:
        """What the cache folder holds under a key, found out and put there if it is new."""
        path = cache_root(self.cache_dir) / "estimates" / f"{what}-{version('pbwn')}.json"
        if what not in self._held:
            try:
                self._held[what] = json.loads(path.read_text())
            except (OSError, ValueError):
                self._held[what] = {}
        held = self._held[what]
        if key not in held:
            held[key] = find()
            with suppress(OSError):  # an estimate that cannot be kept is made anew
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, to_json(held))
        return held[key]


def _probe(kind: str, device: str) -> float:
    """FLOP/s of training steps with one thread: the best of a few, as others may be at work too."""
    name, shape = (_PROBES if device == "cpu" else _GPU_PROBES)[kind]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            model = models.build(name, image_size=shape[2])
            model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            images = torch.rand(shape, device=device).contiguous(memory_format=torch.channels_last)
        labels = torch.zeros(shape[0], dtype=torch.long, device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        taken = []
        for _ in range(6):
            started = time.perf_counter()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            loss.item()
            taken.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    from pbwn.flops import cost

    return cost(model.to("cpu"), shape[1:], batch_size=shape[0]).step / min(taken)


class Shown:
    """How fast finished runs were: the seconds that a core, or a GPU, took for one FLOP of a training step.

    runs: their folders, configurations and environments; times are read once a run with such a network is asked for.
    effort: what a configuration amounts to.
    """

    def __init__(
        self,
        runs: Iterable[tuple[Path, RunConfig, Mapping[str, Any]]],
        effort: Callable[[RunConfig], Effort],
        device: str = "cpu",
    ) -> None:
        self._effort = effort
        self._by_name: dict[str, list[tuple[Path, RunConfig, int]]] = {}
        self._seconds_of_a_flop: dict[str, float | None] = {}
        for path, config, environment in runs:
            if (environment.get("device") == "cpu") == (device == "cpu"):
                cores = environment.get("threads", 1) if device == "cpu" else 1
                for name in (_network(config), _family(config)):
                    self._by_name.setdefault(name, []).append((path, config, cores))

    def seconds(self, config: RunConfig, work: Effort) -> float | None:
        """What a run takes, at the median speed of those with its network, or else its family; None without any."""
        of_a_flop = self._median(_network(config)) or self._median(_family(config))
        return _STARTING + work.flops * of_a_flop if of_a_flop else None

    def _median(self, name: str) -> float | None:
        if name not in self._seconds_of_a_flop:
            found = [
                taken * cores / self._effort(config).step_flops
                for path, config, cores in self._by_name.get(name, ())
                if (taken := _seconds_of_a_step(path))
            ]
            self._seconds_of_a_flop[name] = statistics.median(found) if found else None
        return self._seconds_of_a_flop[name]


@cache
def _seconds_of_a_step(path: Path) -> float | None:
    """What a step of a run took: the median over its lines, as it may have had to wait for others."""
    try:
        lines = (path / "timing.jsonl").read_text().splitlines()[:_LINES]
        return statistics.median(float(json.loads(line)["seconds"]) for line in lines)
    except (OSError, ValueError, LookupError, TypeError):
        return None  # a damaged or an empty run shows nothing


def _runs_below(out: Path) -> Iterator[tuple[Path, RunConfig, Mapping[str, Any]]]:
    for path in sorted(out.glob("*/**/timing.jsonl")):
        folder = RunFolder(path.parent)
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged run shows nothing
            yield folder.path, read_config(folder.read_fields()), json.loads(folder.environment.read_text())


def _family(config: RunConfig) -> str:
    """A network's name without its size: those of a family take about as long for a FLOP.

    >>> from types import SimpleNamespace
    >>> _family(SimpleNamespace(model="resnet-110"))
    'resnet'
    """
    return re.sub(r"-\d.*", "", config.model)


def _network(config: RunConfig) -> str:
    """What runs have to have in common for their steps to take equally long."""
    parts = [config.model, config.model_options, original(config.data.name), config.precision]
    return json.dumps(parts, sort_keys=True)
