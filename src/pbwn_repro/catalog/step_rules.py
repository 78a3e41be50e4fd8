"""Step rules: what becomes of the optimizer's update, plain, tangent or by angle, against a tuned weight decay."""

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
    "An experiment of ours: the paper has none like it.",
    "The learning rate is one for all parameters, of which those that no method constrains (embeddings, output layer, "
    "scales of normalisations) are trained alike by all methods. By angle, it is the angle in radians by which a step "
    "turns a neuron's weights: a grid in common is common in its numbers alone.",
    "By angle, the constrained weights have no weight decay: it would bend the direction of the update, and nothing "
    "else. The decay of the others is searched all the same.",
)


def gpt(scale: Scale, width: int = WIDTH) -> dict[str, Any]:
    """The configuration of the GPT at a scale, but for method, rate and decay."""
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


def _wishes_gpt(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    return {**gpt(scale), **labels}


def _axes_resnet(scale: Scale) -> tuple[Axis, ...]:
    rates, decays = (SGD_RATES[:2], SGD_DECAYS[:1]) if scale == "smoke" else (SGD_RATES, SGD_DECAYS)
    return (METHODS, Axis("lr", rates, "searched"), Axis("weight_decay", decays, "searched"))


def _wishes_resnet(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    shared = on_cifar(
        {"init": "paper", **labels}, scale, network="resnet-20", data="cifar10", lr=LR, short=SHORT, stand_in="epochs"
    )
    # What is the recipe's own is left out: the runs of table 3 are the same runs.
    decay = {} if labels["weight_decay"] == SGD_DECAYS[0] else {"weight_decay": labels["weight_decay"]}
    return {**shared, "lr": labels["lr"], **decay}


def _home_resnet(labels: Labels) -> str:
    """Table 3 has the runs of its methods at the rate and decay of the recipe."""
    is_recipe = (labels["lr"], labels["weight_decay"]) == (LR, SGD_DECAYS[0])
    return "table-3" if is_recipe and labels["method"] in ("normal", "pbwn") else "step-rules-resnet"


STEP_RULES_GPT = TrainedArtefact(
    name="step-rules-gpt",
    title="What becomes of the update, AdamW on a character-level GPT",
    about="Test cross entropy over the learning rate: AdamW with its decay tuned against weights on the sphere, with "
    "the optimizer's update as it is, its tangent part, or its direction alone.",
    protocol="AdamW, learning rates 0.0003, 0.001, 0.003, 0.01, 0.03 with a warm-up of 100 steps and a cosine down to "
    f"a tenth, weight decays 0, 0.1, 1; Shakespeare's plays and poems; {SEARCH}",
    departures=(
        *DEPARTURES,
        "The rates were fixed after a probe of each method (one seed, 200 steps, training loss), whose best rates lie "
        "inside the grid.",
    ),
    axes=_axes_gpt,
    overrides=_wishes_gpt,
    seeds=SEEDS,
    metric="test_bits_per_character",
    curves="search",
    seeds_at_best=SEEDS_AT_BEST,
    compared=("differences", "good-range"),
)
STEP_RULES_RESNET = TrainedArtefact(
    name="step-rules-resnet",
    title="What becomes of the update, SGD on ResNet-20",
    about="Test error on CIFAR-10 over the learning rate: SGD with its decay tuned against weights on the sphere, with "
    "the optimizer's update as it is, its tangent part, or its direction alone.",
    protocol="As table 3, at learning rates 0.02, 0.1, 0.5 and weight decays 0.0001, 0.0005; " + SEARCH,
    departures=DEPARTURES,
    axes=_axes_resnet,
    overrides=_wishes_resnet,
    seeds=SEEDS,
    curves="search",
    home=_home_resnet,
    seeds_at_best=SEEDS_AT_BEST,
    compared=("differences", "good-range"),
)
