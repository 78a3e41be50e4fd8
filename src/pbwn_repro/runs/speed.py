"""How long a run will take: its work over the speed that other runs have shown, or that a short test here shows."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from pbwn_repro import models
from pbwn_repro.config import RunConfig, read_config
from pbwn_repro.data import original
from pbwn_repro.data.cache import cache_root
from pbwn_repro.runs.effort import Effort, NetworkCost, effort, network_cost
from pbwn_repro.runs.environment import processor
from pbwn_repro.runs.folder import RunFolder, to_json, write_atomically

# One network of each kind with a batch that takes a core a fraction of a second; a GPU shows its speed with large ones.
_PROBES = {"convolutional": ("resnet-20", (32, 3, 32, 32)), "linear": ("mlp", (256, 1, 32, 32))}
_GPU_PROBES = {"convolutional": ("vgg-e", (128, 3, 32, 32)), "linear": ("mlp", (4096, 1, 32, 32))}
_LINEAR = ("mlp", "ladder", "char-gpt")
_STARTING = 1.0  # seconds until a run takes its first step
_LINES = 200  # of a run's times: enough for a median


@dataclass(frozen=True)
class Estimate:
    """What a run takes: seconds on one core (or on one GPU), and bytes on the disk."""

    seconds: float
    bytes: int


@dataclass
class Speeds:
    """What is known of this machine and of the networks; what was found out is kept in the cache folder.

    out: the runs whose times are looked at.
    """

    out: Path
    cache_dir: Path | None = None
    device: str = "cpu"
    _shown: dict[str, list[float]] | None = field(default=None, init=False)
    _held: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)

    def effort(self, config: RunConfig) -> Effort:
        """What a configuration amounts to."""
        data = config.data
        key = json.dumps([_network(config), config.batch_size, data.normalisation, data.labels, data.context])
        found = self._kept("costs", key, lambda: list(network_cost(config)))
        return effort(config, NetworkCost(*found))

    def estimate(self, config: RunConfig) -> Estimate:
        """What a run with this configuration takes here."""
        work = self.effort(config)
        return Estimate(_STARTING + self._seconds(config, work), work.bytes)

    def measuring_seconds(self, flops: float) -> float:
        """How long so much work takes a core with convolutional networks: what is measured is the processor's time."""
        return flops / self._probed("convolutional", "cpu")

    def _seconds(self, config: RunConfig, work: Effort) -> float:
        """As runs with this network have shown, or as the machine's test shows."""
        if self._shown is None:
            self._shown = _shown_speeds(self.out, self.device)
        shown = self._shown.get(_network(config))
        if shown:
            return work.flops / (work.step_flops / config.batch_size / statistics.median(shown))
        speed = self._probed("linear" if config.model in _LINEAR else "convolutional", self.device)
        return work.flops / speed if self.device == "cpu" else work.gpu_seconds(speed)

    def _probed(self, kind: str, device: str) -> float:
        """FLOP/s of a core, or of a GPU."""
        name = processor() if device == "cpu" else torch.cuda.get_device_name(device)
        key = f"{kind}, {name}, torch {torch.__version__}"
        speed: float = self._kept("speeds", key, lambda: _probe(kind, device))
        return speed

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


def _shown_speeds(out: Path, device: str) -> dict[str, list[float]]:
    """Seconds that one picture of a step took on one core, by network, a number for each run below `out`."""
    shown: dict[str, list[float]] = {}
    for path in sorted(out.glob("*/**/timing.jsonl")):
        folder = RunFolder(path.parent)
        try:
            config = read_config(json.loads(folder.config.read_text()))
            made_with = json.loads(folder.environment.read_text())
            lines = [json.loads(line) for line in path.read_text().splitlines()[1:_LINES]]
            taken = statistics.median(line["seconds"] for line in lines)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged or an empty run shows nothing
        if (made_with.get("device") == "cpu") == (device == "cpu"):
            threads = made_with.get("threads", 1) if device == "cpu" else 1
            shown.setdefault(_network(config), []).append(taken * threads / config.batch_size)
    return shown


def _network(config: RunConfig) -> str:
    """What runs have to have in common for their steps to take equally long."""
    parts = [config.model, config.model_options, original(config.data.name), config.precision]
    return json.dumps(parts, sort_keys=True)
