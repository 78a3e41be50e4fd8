"""Step rules: applying the optimizer's update plainly, by its tangent part or by angle, against tuned weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import Axis, Labels, Scale, TrainedArtefact
from pbwn_repro.catalog.cifar import on_cifar
from pbwn_repro.catalog.table_3 import LR, SHORT

METHODS = Axis("method", ("normal", "pbwn", "pbwn-tangent", "pbwn-angle"), "row")
RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
DECAYS = (0.1, 0.0, 1.0)
SGD_RATES = (LR, 0.02, 0.5)
SGD_DECAYS = (0.0001, 0.0005)
SEEDS: dict[Scale, int] = {"smoke": 1, "short": 1, "paper": 1}
SEEDS_AT_BEST: dict[Scale, int] = {"smoke": 2, "short": 3, "paper": 3}
WIDTH = 96  # of the GPT at the short scale
SEARCH = "one seed on the grid, three at the best setting of each method."
DEPARTURES = (
    "The paper has no such experiment.",
    "All parameters share one learning rate; those that no method constrains (embeddings, output layer, normalisation "
    "scales) are trained identically by all methods. With steps by angle, the learning rate is the angle in radians by "
    "which a step turns a neuron's weights, so that the common grid is common in its numbers only.",
    "With steps by angle, the constrained weights have no weight decay, which would only change the direction of the "
    "update. The decay of the other parameters is searched nevertheless.",
)


def gpt(scale: Scale, width: int = WIDTH) -> dict[str, Any]:
    """Return the overrides for the GPT at a scale, except for method, learning rate and weight decay."""
    if scale == "smoke":
        options = {"width": width // 6, "depth": 1, "heads": 2}
        length = {"steps": 4, "schedule.warmup_steps": 1, "evaluate_every": 2, "checkpoint_every": 4, "log_every": 1}
        return {"model": "char-gpt", "model_options": options, "data.context": 16, "batch_size": 4, **length}
    shared = {"model": "char-gpt", "data": "shakespeare"}
    if scale == "paper":
        return {**shared, **({"model_options": {"width": width * 4 // 3}} if width != WIDTH else {})}
    length = {"steps": 1_500, "evaluate_every": 750, "checkpoint_every": 500, "log_every": 25}
    return {**shared, "model_options": {"width": width, "depth": 4}, "data.context": 64, **length}


def _axes_gpt(scale: Scale) -> tuple[Axis, ...]:
    rates, decays = (RATES[1:3], DECAYS[:1]) if scale == "smoke" else (RATES, DECAYS)
    return (METHODS, Axis("lr", rates, "searched"), Axis("weight_decay", decays, "searched"))


def _overrides_gpt(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    return {**gpt(scale), **labels}


def _axes_resnet(scale: Scale) -> tuple[Axis, ...]:
    rates, decays = (SGD_RATES[:2], SGD_DECAYS[:1]) if scale == "smoke" else (SGD_RATES, SGD_DECAYS)
    return (METHODS, Axis("lr", rates, "searched"), Axis("weight_decay", decays, "searched"))


def _overrides_resnet(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    shared = on_cifar(
        {"init": "paper", **labels}, scale, network="resnet-20", data="cifar10", lr=LR, short=SHORT, stand_in="epochs"
    )
    # The recipe's own decay is not overridden: these runs are shared with table 3.
    decay = {} if labels["weight_decay"] == SGD_DECAYS[0] else {"weight_decay": labels["weight_decay"]}
    return {**shared, "lr": labels["lr"], **decay}


def _home_resnet(labels: Labels) -> str:
    """Table 3 holds the runs of its methods at the recipe's learning rate and weight decay."""
    is_recipe = (labels["lr"], labels["weight_decay"]) == (LR, SGD_DECAYS[0])
    return "table-3" if is_recipe and labels["method"] in ("normal", "pbwn") else "step-rules-resnet"


STEP_RULES_GPT = TrainedArtefact(
    name="step-rules-gpt",
    title="How the update is applied, AdamW on a character-level GPT",
    about="Test cross entropy over the learning rate: AdamW with tuned weight decay against weights on the sphere, for "
    "which the optimizer's update is applied as it is, by its tangent part, or by its direction only.",
    protocol="AdamW, learning rates 0.0003, 0.001, 0.003, 0.01, 0.03 with a warm-up of 100 steps and cosine decay to a "
    f"tenth, weight decays 0, 0.1, 1; Shakespeare's plays and poems; {SEARCH}",
    departures=(
        *DEPARTURES,
        "The learning rates were fixed after a trial of each method (one seed, 200 steps, training loss), whose best "
        "rates lie inside the grid.",
    ),
    axes=_axes_gpt,
    overrides=_overrides_gpt,
    seeds=SEEDS,
    metric="test_bits_per_character",
    curves="search",
    seeds_at_best=SEEDS_AT_BEST,
    compared=("differences", "good-range"),
)
STEP_RULES_RESNET = TrainedArtefact(
    name="step-rules-resnet",
    title="How the update is applied, SGD on ResNet-20",
    about="Test error on CIFAR-10 over the learning rate: SGD with tuned weight decay against weights on the sphere, "
    "for which the optimizer's update is applied as it is, by its tangent part, or by its direction only.",
    protocol="As table 3, at learning rates 0.02, 0.1, 0.5 and weight decays 0.0001, 0.0005; " + SEARCH,
    departures=DEPARTURES,
    axes=_axes_resnet,
    overrides=_overrides_resnet,
    seeds=SEEDS,
    curves="search",
    home=_home_resnet,
    seeds_at_best=SEEDS_AT_BEST,
    compared=("differences", "good-range"),
)
