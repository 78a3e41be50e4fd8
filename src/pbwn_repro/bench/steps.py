"""Time of optimizer steps and whole training steps with the projection, compared with other libraries; table 5.

Table 5 is the training time of each method compared with normal training. In every round, each method of a network
takes one real training step, in random order: forward, backward, optimizer, projection. Disturbances affect all methods
alike, so methods are compared within rounds. The result:

    rounds, methods
    networks                     by name; each is saved in `parts` as soon as it is done
        batch_size, steps_per_epoch, epochs      those of the recipe, except for the batch size, which is an option
        machine                  processor, cores, threads, versions, load before
        methods                  by name; each
            seconds              of a step, one number per round; PBWN-Epoch's projection is spread over its epoch
            median, lower_quartile, upper_quartile        of these
            projection_seconds, projection_percent        of the projection alone: median, and percent of a normal step
            percent_over_normal  {value, low, high}: the median over rounds, with its 95 % interval
            hours                of training for the recipe's epochs on this machine: median x steps

The interval of the median is exact for any distribution (order statistics). It needs six rounds: with fewer, low and
high are null. For `normal` itself all three are 0.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from pbwn_repro import config
from pbwn_repro.bench.parts import Parts, Progress
from pbwn_repro.bench.projection import weights_of
from pbwn_repro.bench.timing import Times, in_turns, interleaved, machine, median_with_interval
from pbwn_repro.engine.processes import keep_freed_memory
from pbwn_repro.methods import method
from pbwn_repro.models import build, find, recipe

EPOCH_IMAGES = 50_000  # the training set of CIFAR
BASELINE = "normal"
METHODS = (BASELINE, "wn", "pbwn", "pbwn-riem", "pbwn-epoch")


def optimizer_steps(network: str, seconds: float) -> dict[str, Times]:
    """Time `optimizer.step()` alone for each method, and for geoopt's RiemannianSGD if it is installed."""
    steps = {name: _stepper(network, name) for name in METHODS if name != "pbwn-epoch"}
    if find_spec("geoopt") is not None:
        steps["geoopt"] = _geoopt_stepper(network)
    return interleaved(steps, seconds=seconds, min_rounds=3)


class TrainingStep:
    """A training step of a method that times itself and the projection inside it.

    Hooks registered before and after those of the projection are called before and after them: the time in between is
    that of the projection.
    """

    def __init__(
        self, network: str, name: str, batch_size: int, layout: torch.memory_format = torch.contiguous_format
    ) -> None:
        chosen = method(name)
        self._model = build(network)
        layers = find(network).layers()
        chosen.prepare(self._model, layers)
        self._model.to(memory_format=layout)  # type: ignore[call-overload]
        settings = config.SGD.model_validate(find(network).recipe["optimizer"])
        self._optimizer = chosen.optimizer(self._model, settings, layers)
        self._projection_seconds = 0.0
        self._add_timing_hooks(-1)
        initial = find(network).projects_initially(name)
        self._projection = chosen.attach(self._model, self._optimizer, layers, initial=initial)
        self._add_timing_hooks(+1)
        self._method = chosen
        channels = inspect.signature(find(network).family.constructor).parameters["in_channels"].default
        self._images = torch.randn(batch_size, channels, 32, 32).contiguous(memory_format=layout)
        self._labels = torch.randint(0, 10, (batch_size,))

    def __call__(self) -> tuple[float, float]:
        """Take a step and return its seconds, and those of the projection."""
        self._projection_seconds = 0.0
        start = time.perf_counter()
        self._optimizer.zero_grad()
        functional.cross_entropy(self._model(self._images), self._labels).backward()
        self._optimizer.step()
        whole = time.perf_counter() - start
        if self._method.projects_after_each_epoch:
            start = time.perf_counter()
            self._method.after_epoch(self._projection)
            self._projection_seconds = time.perf_counter() - start
        return whole, self._projection_seconds

    def _add_timing_hooks(self, sign: int) -> None:
        def add_time(*_: Any) -> None:
            self._projection_seconds += sign * time.perf_counter()

        self._optimizer.register_step_pre_hook(add_time)
        self._optimizer.register_step_post_hook(add_time)


def timed_rounds(
    steps: Mapping[str, Callable[[], tuple[float, float]]],
    rounds: int,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, list[tuple[float, float]]]:
    """Return the times of each step in every round, after a warm-up round; `progress` receives each round's number."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for number, results in enumerate(islice(in_turns(steps), rounds + 1)):
        progress(number)
        if number:
            for name, pair in results.items():
                times[name].append(pair)
    return times


def training_steps(network: str, *, batch_size: int, rounds: int, steps_per_epoch: int) -> dict[str, dict[str, Any]]:
    """Time whole steps by method, and their projection, also as percent of a normal step."""
    times = timed_rounds({name: TrainingStep(network, name, batch_size) for name in METHODS}, rounds)
    normal = Times.of([whole for whole, _ in times[BASELINE]]).median
    results = {}
    for name, pairs in times.items():
        projection = Times.of(_projection_seconds(name, pairs, steps_per_epoch))
        results[name] = {
            "step": Times.of([whole for whole, _ in pairs]),
            "projection": projection,
            "projection, % of a normal step": 100 * projection.median / normal,
        }
    return results


def _projection_seconds(name: str, pairs: list[tuple[float, float]], steps_per_epoch: int) -> list[float]:
    """Return the projection's seconds per step by round; a projection after each epoch is spread over its steps."""
    steps = steps_per_epoch if method(name).projects_after_each_epoch else 1
    return [seconds / steps for _, seconds in pairs]


def _with_gradients(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.randn_like(parameter) * 1e-3


def _stepper(network: str, name: str) -> Callable[[], object]:
    model, chosen = build(network), method(name)
    layers = find(network).layers()
    chosen.prepare(model, layers)
    optimizer = SGD(model.parameters(), lr=1e-3, momentum=0.9)
    chosen.attach(model, optimizer, layers, initial=find(network).projects_initially(name))
    _with_gradients(optimizer)
    return optimizer.step


def _geoopt_stepper(network: str) -> Callable[[], object]:
    import geoopt

    sphere = geoopt.Sphere()
    rows = [weight.tensor.detach().flatten(1) for weight in weights_of(network)]
    rows = [geoopt.ManifoldParameter(row / row.norm(dim=1, keepdim=True), manifold=sphere) for row in rows]
    optimizer: Optimizer = geoopt.optim.RiemannianSGD(nn.ParameterList(rows), lr=1e-3, momentum=0.9)
    _with_gradients(optimizer)
    return optimizer.step


def time_cost(options: Mapping[str, Any], parts: Parts, progress: Progress) -> dict[str, Any]:
    """Time the methods on each network in turn; networks with saved parts are not timed again.

    Options: `networks`, `methods` (with `normal`), `batch_sizes` (by network), `rounds`, and optionally `left_out`: the
    methods that do not work on a network, by network.
    """
    networks, rounds = options["networks"], options["rounds"]
    if BASELINE not in options["methods"]:
        raise ValueError(
            f"methods {', '.join(options['methods'])}: without {BASELINE!r} there is nothing to compare with"
        )
    keep_freed_memory()  # as every training run does
    total = len(networks) * (rounds + 1)
    results = {}
    for number, network in enumerate(networks):
        before = number * (rounds + 1)
        progress(before, total, network)

        def round_progress(done: int, name: str = network, before: int = before) -> None:
            progress(before + done, total, name)

        left_out = options.get("left_out", {}).get(network, ())
        names = [name for name in options["methods"] if name not in left_out]
        make = partial(_time_network, network, names, options["batch_sizes"][network], rounds, round_progress)
        results[network] = parts.load_or_make(network, make)
    progress(total, total, "done")
    return {"rounds": rounds, "methods": list(options["methods"]), "networks": results}


def _time_network(
    network: str, names: list[str], batch_size: int, rounds: int, progress: Callable[[int], None]
) -> dict[str, Any]:
    machine_before = machine()
    torch.manual_seed(0)
    steps = {name: TrainingStep(network, name, batch_size, layout=torch.channels_last) for name in names}
    times = timed_rounds(steps, rounds, progress)
    steps_per_epoch = EPOCH_IMAGES // batch_size
    epochs = recipe(network)["epochs"]
    return {
        "batch_size": batch_size,
        "steps_per_epoch": steps_per_epoch,
        "epochs": epochs,
        "machine": machine_before,
        "methods": summarise(times, steps_per_epoch, epochs),
    }


def summarise(times: Mapping[str, list[tuple[float, float]]], steps_per_epoch: int, epochs: int) -> dict[str, Any]:
    """Summarise the rounds of each method, given the seconds of a step and of the projection in each round.

    The time of a step does not include a projection after each epoch, which is added here, spread over the epoch.
    """
    whole, projection = {}, {}
    for name, pairs in times.items():
        projection[name] = _projection_seconds(name, pairs, steps_per_epoch)
        added = projection[name] if method(name).projects_after_each_epoch else [0.0] * len(pairs)
        whole[name] = [step + extra for (step, _), extra in zip(pairs, added, strict=True)]
    normal = Times.of(whole[BASELINE]).median
    results = {}
    for name, seconds in whole.items():
        summary = Times.of(seconds)
        percent = [100 * (own / base - 1) for own, base in zip(seconds, whole[BASELINE], strict=True)]
        projection_seconds = Times.of(projection[name]).median if method(name).constraint is not None else 0.0
        results[name] = {
            "seconds": seconds,
            **{key: value for key, value in asdict(summary).items() if key != "runs"},
            "projection_seconds": projection_seconds,
            "projection_percent": 100 * projection_seconds / normal,
            "percent_over_normal": median_with_interval(percent),
            "hours": summary.median * steps_per_epoch * epochs / 3600,
        }
    return results
