"""Table 5: what each method's training costs, beside normal training.

All methods of a network take one real training step each in every round, in an order that changes: forward, backward,
optimizer, projection. What disturbs the machine disturbs all of them: methods are compared within rounds. The result:

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

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from pbwn_repro.bench.parts import Parts, Progress
from pbwn_repro.bench.steps import EPOCH_IMAGES, TrainingStep, timed_rounds
from pbwn_repro.bench.timing import Times, machine, median_with_interval
from pbwn_repro.engine.processes import keep_freed_memory
from pbwn_repro.methods import method
from pbwn_repro.models import recipe

BASELINE = "normal"


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
        apart = method(name).projects_after_each_epoch
        inside[name] = [own / steps_per_epoch if apart else own for _, own in pairs]
        whole[name] = [step + (own / steps_per_epoch if apart else 0.0) for step, own in pairs]
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
