"""The projection inside optimizer steps and inside whole training steps, with other libraries beside it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from pbwn_repro import config
from pbwn_repro.bench.projection import weights_of
from pbwn_repro.bench.timing import Times, in_turns, interleaved
from pbwn_repro.methods import method
from pbwn_repro.models import build, find

EPOCH_IMAGES = 50_000  # the training set of CIFAR
METHODS = ("normal", "wn", "pbwn", "pbwn-riem", "pbwn-epoch")


def optimizer_steps(network: str, seconds: float) -> dict[str, Times]:
    """Times of `optimizer.step()` alone, by method; geoopt's RiemannianSGD beside ours where it is installed."""
    steps = {name: _stepper(network, name) for name in METHODS if name != "pbwn-epoch"}
    if find_spec("geoopt") is not None:
        steps["geoopt"] = _geoopt_stepper(network)
    return interleaved(steps, seconds=seconds, least=3)


class TrainingStep:
    """One training step of a method, and how long its projection took inside it.

    Hooks that are registered before and after the projection's own are called before and after it: the time between
    the two is the projection's.
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
        self._inside = 0.0
        self._watch(-1)
        initial = find(network).projects_initially(name)
        self._projection = chosen.attach(self._model, self._optimizer, layers, initial=initial)
        self._watch(+1)
        self._method = chosen
        channels = inspect.signature(find(network).family.constructor).parameters["in_channels"].default
        self._images = torch.randn(batch_size, channels, 32, 32).contiguous(memory_format=layout)
        self._labels = torch.randint(0, 10, (batch_size,))

    def __call__(self) -> tuple[float, float]:
        """Take a step; the seconds of all of it, and those of the projection."""
        self._inside = 0.0
        start = time.perf_counter()
        self._optimizer.zero_grad()
        functional.cross_entropy(self._model(self._images), self._labels).backward()
        self._optimizer.step()
        whole = time.perf_counter() - start
        if self._method.projects_after_each_epoch:
            start = time.perf_counter()
            self._method.after_epoch(self._projection)
            self._inside = time.perf_counter() - start
        return whole, self._inside

    def _watch(self, sign: int) -> None:
        def note(*_: Any) -> None:
            self._inside += sign * time.perf_counter()

        self._optimizer.register_step_pre_hook(note)
        self._optimizer.register_step_post_hook(note)


def timed_rounds(
    steps: Mapping[str, Callable[[], tuple[float, float]]], rounds: int, tell: Callable[[int], None] = lambda done: None
) -> dict[str, list[tuple[float, float]]]:
    """What each took in so many rounds, after one that compiles and allocates; `tell` hears each round's number."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for number, turn in enumerate(islice(in_turns(steps), rounds + 1)):
        tell(number)
        if number:
            for name, times in turn.items():
                taken[name].append(times)
    return taken


def training_steps(network: str, *, batch_size: int, rounds: int, steps_per_epoch: int) -> dict[str, dict[str, Any]]:
    """Whole steps by method: seconds, the projection's own seconds, and those as percent of a normal step.

    A projection after each epoch is spread over the steps of that epoch.
    """
    taken = timed_rounds({name: TrainingStep(network, name, batch_size) for name in METHODS}, rounds)
    normal = Times.of([whole for whole, _ in taken["normal"]]).median
    found = {}
    for name, pairs in taken.items():
        spread = steps_per_epoch if name == "pbwn-epoch" else 1
        inside = Times.of([own / spread for _, own in pairs])
        found[name] = {
            "step": Times.of([whole for whole, _ in pairs]),
            "projection": inside,
            "projection, % of a normal step": 100 * inside.median / normal,
        }
    return found


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
