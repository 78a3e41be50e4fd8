"""The projection inside optimizer steps and inside whole training steps, with other libraries beside it; table 5.

Table 5 is what each method's training costs, beside normal training. All methods of a network take one real training
step each in every round, in an order that changes: forward, backward, optimizer, projection. What disturbs the machine
disturbs all of them: methods are compared within rounds. The result:

    rounds, methods
    networks                     by name; each, put aside in `parts` as soon as it is done
        batch_size, steps_per_epoch, epochs      those of the recipe, but for the batch size that was asked for
        machine                  processor, cores, threads, versions, load before
        methods                  by name; each
            seconds              of a step, a number per round; PBWN-Epoch's projection is spread over its epoch
            median, lower_quartile, upper_quartile        of these
            projection_seconds, projection_percent        the projection's own median, and as percent of a normal step
            percent_over_normal  {value, low, high}: the median over rounds, with its 95 % interval
            hours                of training for the recipe's epochs, on this machine: median x steps

The interval is the exact one for a median, whatever the distribution (order statistics). It needs six rounds: with
fewer, low and high are null. For `normal` itself all three are 0.
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
    """Whole steps by method: seconds, the projection's own seconds, and those as percent of a normal step."""
    taken = timed_rounds({name: TrainingStep(network, name, batch_size) for name in METHODS}, rounds)
    normal = Times.of([whole for whole, _ in taken[BASELINE]]).median
    found = {}
    for name, pairs in taken.items():
        inside = Times.of(_inside(name, pairs, steps_per_epoch))
        found[name] = {
            "step": Times.of([whole for whole, _ in pairs]),
            "projection": inside,
            "projection, % of a normal step": 100 * inside.median / normal,
        }
    return found


def _inside(name: str, pairs: list[tuple[float, float]], steps_per_epoch: int) -> list[float]:
    """The projection's seconds by round; one after each epoch is spread over the steps of that epoch."""
    spread = steps_per_epoch if method(name).projects_after_each_epoch else 1
    return [own / spread for _, own in pairs]


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
    """Time the methods on each network in turn; networks that were put aside are not timed again.

    Options: `networks`, `methods` (with `normal`), `batch_sizes` (by network), `rounds`; `left_out`, by network, are
    methods that do not work there.
    """
    networks, rounds = options["networks"], options["rounds"]
    if BASELINE not in options["methods"]:
        raise ValueError(
            f"methods {', '.join(options['methods'])}: without {BASELINE!r} there is nothing to compare with"
        )
    keep_freed_memory()  # as every training run does
    total = len(networks) * (rounds + 1)
    found = {}
    for number, network in enumerate(networks):
        before = number * (rounds + 1)
        progress(before, total, network)

        def tell(done: int, name: str = network, before: int = before) -> None:
            progress(before + done, total, name)

        left_out = options.get("left_out", {}).get(network, ())
        names = [name for name in options["methods"] if name not in left_out]
        make = partial(_network, network, names, options["batch_sizes"][network], rounds, tell)
        found[network] = parts.kept(network, make)
    progress(total, total, "done")
    return {"rounds": rounds, "methods": list(options["methods"]), "networks": found}


def _network(network: str, names: list[str], batch_size: int, rounds: int, tell: Any) -> dict[str, Any]:
    surroundings = machine()
    torch.manual_seed(0)
    steps = {name: TrainingStep(network, name, batch_size, layout=torch.channels_last) for name in names}
    taken = timed_rounds(steps, rounds, tell)
    steps_per_epoch = EPOCH_IMAGES // batch_size
    epochs = recipe(network)["epochs"]
    return {
        "batch_size": batch_size,
        "steps_per_epoch": steps_per_epoch,
        "epochs": epochs,
        "machine": surroundings,
        "methods": summed_up(taken, steps_per_epoch, epochs),
    }


def summed_up(taken: Mapping[str, list[tuple[float, float]]], steps_per_epoch: int, epochs: int) -> dict[str, Any]:
    """What the rounds say of each method; a round is the seconds of a step and those of the projection.

    A projection after each epoch stands beside its step, not in it, and is spread over the epoch's steps.
    """
    whole, inside = {}, {}
    for name, pairs in taken.items():
        inside[name] = _inside(name, pairs, steps_per_epoch)
        beside = inside[name] if method(name).projects_after_each_epoch else [0.0] * len(pairs)
        whole[name] = [step + own for (step, _), own in zip(pairs, beside, strict=True)]
    normal = Times.of(whole[BASELINE]).median
    found = {}
    for name, seconds in whole.items():
        times = Times.of(seconds)
        percent = [100 * (mine / theirs - 1) for mine, theirs in zip(seconds, whole[BASELINE], strict=True)]
        projection = Times.of(inside[name]).median if method(name).constraint is not None else 0.0
        found[name] = {
            "seconds": seconds,
            **{key: value for key, value in asdict(times).items() if key != "runs"},
            "projection_seconds": projection,
            "projection_percent": 100 * projection / normal,
            "percent_over_normal": median_with_interval(percent),
            "hours": times.median * steps_per_epoch * epochs / 3600,
        }
    return found
