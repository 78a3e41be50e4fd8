"""Estimates of the work of a run, in steps, FLOPs and bytes, and of its time on this machine.

The work is counted without running anything and without the data. The time follows from the speed of finished runs or,
without any, from a short benchmark of this machine.
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

DEFAULT_TEXT = 1_000_000  # characters, for texts of unknown length
DEFAULT_ALPHABET = 96
TERAFLOPS = 10.0  # TFLOP/s of a current GPU in large convolutions
LAYER_SECONDS = 0.00025  # per training step and layer, in which a GPU's host launches the kernels


@dataclass(frozen=True)
class Effort:
    """The work of a run.

    flops: of all training steps and all evaluations; `step_flops` of one training step.
    layers: the number of layers with weights; each takes time of a GPU's host, however small it is.
    bytes: on disk, once the run is finished.
    """

    steps: int
    flops: float
    step_flops: float
    layers: int
    bytes: int

    def gpu_seconds(self, flops_per_second: float) -> float:
        """Return the time on a GPU of this speed; small networks are limited by the host that launches the kernels."""
        return max(self.flops / flops_per_second, self.steps * self.layers * LAYER_SECONDS)


class NetworkCost(NamedTuple):
    """FLOPs of a training step and of evaluating one example, and the numbers of layers and parameters."""

    step_flops: float
    example_flops: float
    layers: int
    parameters: int


def effort(config: RunConfig, cost: NetworkCost | None = None, dataset: AnySet | None = None) -> Effort:
    """Return the work of a configuration; `cost` is that of its network, if already known."""
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
    """Count FLOPs on the meta device, where nothing is computed; a step is three forward passes, as in section 3.3.

    Without a data set, its shape follows from its name.
    """
    described = describe(config, dataset or _blank(config), Processes())
    network = models.find(config.model)
    arguments = {
        **network.accepted(described.model_arguments),
        **network.start(config.method, config.init),
        **config.model_options,
    }
    try:
        with torch.device("meta"):
            model = network.build(**arguments).eval()
        example = described.example.to("meta")
        one = _forward_flops(model, example)
    except Exception:
        if not is_own(config.model):
            raise
        with torch.random.fork_rng():  # a model of the user's may depend on values, which meta tensors lack
            model, example = network.build(**arguments).eval(), described.example
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
    from torch.utils.flop_counter import FlopCounterMode  # slow to import: it imports triton, if installed

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function(*inputs)
    return float(counter.get_total_flops())


class _Shape(NamedTuple):
    image: tuple[int, int, int]
    classes: int
    counts: Mapping[str, int]


def _blank(config: RunConfig) -> AnySet:
    """Return a stand-in for a set that need not be available: a black image of its shape, or a text of its length."""
    if config.data.context is not None:
        length = LENGTHS.get(config.data.name, DEFAULT_TEXT)
        parts = {config.data.test: length // TEST_SHARE, **dict.fromkeys(config.data.train, length)}
        blanks = {name: torch.zeros(1, dtype=torch.int32).expand(count) for name, count in parts.items()}
        return TextSet("blank", blanks, (" ",) * DEFAULT_ALPHABET, "nowhere", "")
    shape = _shape(config.data.name)
    black = MemorySplit(torch.zeros(1, *shape.image, dtype=torch.uint8), torch.zeros(1, dtype=torch.long))
    return DataSet("black", {config.data.test: black}, ("black",) * shape.classes, "nowhere")


def _shape(name: str) -> _Shape:
    """Return the image shape and the sizes of a set, by its name in a configuration."""
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


# A network and a batch shape for each kind of layer. A step takes a fraction of a second on a core; GPUs reach their
# full speed only with more work.
_PROBES = {"convolutional": ("resnet-20", (32, 3, 32, 32)), "linear": ("mlp", (256, 1, 32, 32))}
_GPU_PROBES = {"convolutional": ("vgg-e", (128, 3, 32, 32)), "linear": ("mlp", (4096, 1, 32, 32))}
_STARTUP_SECONDS = 1.0  # before the first step of a run
_LINES = 200  # of timing.jsonl, enough for a median


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a run: seconds on one core or one GPU, bytes on disk, and FLOPs."""

    seconds: float
    bytes: int
    flops: float


@dataclass
class Speeds:
    """Estimates costs from the speed of this machine and the costs of networks, which the cache folder stores.

    out: the folder of finished runs whose timings are used.
    report: called with a message before a benchmark that takes seconds.
    """

    out: Path
    cache_dir: Path | None = None
    device: str = "cpu"
    report: Callable[[str], object] = lambda message: None
    _cache: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)

    def effort(self, config: RunConfig, dataset: AnySet | None = None) -> Effort:
        """Return the work of a configuration; `dataset` is needed for data whose shape is not known by name."""
        if dataset is not None:
            return effort(config, dataset=dataset)
        data = config.data
        key = json.dumps([_network(config), config.batch_size, data.normalisation, data.labels, data.context])
        cost = self._cached("costs", key, lambda: list(network_cost(config)))
        return effort(config, NetworkCost(*cost))

    def estimate(self, config: RunConfig, dataset: AnySet | None = None) -> Estimate:
        """Estimate the cost of a run with this configuration on this machine."""
        work = self.effort(config, dataset)
        seconds = self._observed.seconds(config, work) or _STARTUP_SECONDS + self._benchmark_seconds(config, work)
        return Estimate(seconds, work.bytes, work.flops)

    def measuring_seconds(self, flops: float) -> float:
        """Return the time of a measurement on a core, at the speed of convolutional networks: they all use the CPU."""
        return flops / self._benchmark_speed("convolutional", "cpu")

    def _benchmark_seconds(self, config: RunConfig, work: Effort) -> float:
        """Return the time of a run at the speed of the benchmark."""
        speed = self._benchmark_speed(models.find(config.model).family.work, self.device)
        return work.flops / speed if self.device == "cpu" else work.gpu_seconds(speed)

    @cached_property
    def _observed(self) -> ObservedSpeeds:
        return ObservedSpeeds(_runs_below(self.out), self.effort, self.device)

    def _benchmark_speed(self, kind: str, device: str) -> float:
        """Return the FLOP/s of a core or of a GPU; measured once per machine."""
        name = processor() if device == "cpu" else torch.cuda.get_device_name(device)
        key = f"{kind}, {name}, torch {torch.__version__}"

        def measure() -> float:
            self.report(f"measuring this machine's speed with {kind} layers (once) ...")
            return _probe(kind, device)

        speed: float = self._cached("speeds", key, measure)
        return speed

    def _cached(self, name: str, key: str, compute: Callable[[], Any]) -> Any:
        """Return the value of a key from a file in the cache folder, computing and storing it if it is missing."""
        path = cache_root(self.cache_dir) / "estimates" / f"{name}-{version('pbwn')}.json"
        if name not in self._cache:
            try:
                self._cache[name] = json.loads(path.read_text())
            except (OSError, ValueError):
                self._cache[name] = {}
        values = self._cache[name]
        if key not in values:
            values[key] = compute()
            with suppress(OSError):  # without a writable cache, it is computed again next time
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, to_json(values))
        return values[key]


def _probe(kind: str, device: str) -> float:
    """Measure the FLOP/s of training steps with one thread: the fastest of a few, as other processes may be running."""
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
        seconds = []
        for _ in range(6):
            started = time.perf_counter()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            loss.item()
            seconds.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    from pbwn.flops import cost

    return cost(model.to("cpu"), shape[1:], batch_size=shape[0]).step / min(seconds)


class ObservedSpeeds:
    """The speeds of finished runs: seconds of a core or a GPU per FLOP of a training step.

    runs: the folders, configurations and environments of the runs; timings are read when a network is first asked for.
    effort: returns the work of a configuration.
    """

    def __init__(
        self,
        runs: Iterable[tuple[Path, RunConfig, Mapping[str, Any]]],
        effort: Callable[[RunConfig], Effort],
        device: str = "cpu",
    ) -> None:
        self._effort = effort
        self._by_name: dict[str, list[tuple[Path, RunConfig, int]]] = {}
        self._seconds_per_flop: dict[str, float | None] = {}
        for path, config, environment in runs:
            if (environment.get("device") == "cpu") == (device == "cpu"):
                cores = environment.get("threads", 1) if device == "cpu" else 1
                for name in (_network(config), _family(config)):
                    self._by_name.setdefault(name, []).append((path, config, cores))

    def seconds(self, config: RunConfig, work: Effort) -> float | None:
        """Return the time at the median speed of runs with this network, or else with its family; None without any."""
        seconds_per_flop = self._median(_network(config)) or self._median(_family(config))
        return _STARTUP_SECONDS + work.flops * seconds_per_flop if seconds_per_flop else None

    def _median(self, name: str) -> float | None:
        if name not in self._seconds_per_flop:
            found = [
                seconds * cores / self._effort(config).step_flops
                for path, config, cores in self._by_name.get(name, ())
                if (seconds := _step_seconds(path))
            ]
            self._seconds_per_flop[name] = statistics.median(found) if found else None
        return self._seconds_per_flop[name]


@cache
def _step_seconds(path: Path) -> float | None:
    """Return the median time of a run's steps, some of which may have had to wait for other processes."""
    try:
        lines = (path / "timing.jsonl").read_text().splitlines()[:_LINES]
        return statistics.median(float(json.loads(line)["seconds"]) for line in lines)
    except (OSError, ValueError, LookupError, TypeError):
        return None  # damaged or empty


def _runs_below(out: Path) -> Iterator[tuple[Path, RunConfig, Mapping[str, Any]]]:
    for path in sorted(out.glob("*/**/timing.jsonl")):
        folder = RunFolder(path.parent)
        with suppress(OSError, ValueError, KeyError, TypeError):  # skip damaged runs
            yield folder.path, read_config(folder.read_fields()), json.loads(folder.environment.read_text())


def _family(config: RunConfig) -> str:
    """Return a network's name without its size: the networks of a family take about the same time per FLOP.

    >>> from types import SimpleNamespace
    >>> _family(SimpleNamespace(model="resnet-110"))
    'resnet'
    """
    return re.sub(r"-\d.*", "", config.model)


def _network(config: RunConfig) -> str:
    """Return a key of everything that runs must share for their steps to take the same time."""
    parts = [config.model, config.model_options, original(config.data.name), config.precision]
    return json.dumps(parts, sort_keys=True)
