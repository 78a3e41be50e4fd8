"""The paper's recipe of each network: what `pbwn train` starts from, and what the tables are made with."""

from __future__ import annotations

import re
from typing import Any

from pbwn_repro.data import original

Recipe = dict[str, Any]

_MNIST_MLP: Recipe = {
    "model_options": {"sizes": "paper"},
    "data": {"name": "mnist", "normalisation": "mnist-mlp"},
    "optimizer": {"kind": "sgd", "lr": 0.3, "momentum": 0.0},
    "epochs": 20,
    "batch_size": 256,
    "log_every": 10,
}
_CIFAR: Recipe = {"name": "cifar10", "normalisation": "cifar", "augmentation": "authors"}
_INCEPTION: Recipe = {
    "data": _CIFAR,
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    "schedule": {"kind": "steps", "drops": [50, 80, 100], "factor": 0.2},
    "epochs": 120,
    "batch_size": 64,
    "log_every": 10,
}
_VGG: Recipe = {
    "data": _CIFAR,
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    "schedule": {"kind": "steps", "drops": [80, 120], "factor": 0.2},
    "epochs": 160,
    "batch_size": 128,
    "log_every": 10,
}
_RESNET: Recipe = {
    "data": _CIFAR,
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
    "schedule": {"kind": "steps", "drops": [80, 120], "factor": 0.1},
    "epochs": 160,
    "batch_size": 128,
    "log_every": 10,
}
_SVHN: Recipe = {
    "data": {"name": "svhn", "train": ["train", "extra"]},
    "optimizer": {"kind": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
    "schedule": {"kind": "steps", "drops": [80, 120], "factor": 0.1},
    "epochs": 160,
    "batch_size": 128,
    "log_every": 100,
}
_IMAGENET: Recipe = {
    "data": {"name": "imagenet", "normalisation": "imagenet"},
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4},
    "schedule": {"kind": "exponential", "final": 0.01},
    "epochs": 50,
    "batch_size": 64,
    "log_every": 100,
}
_LADDER: Recipe = {
    "model_options": {"denoising": "authors"},
    "data": {"name": "mnist", "labels": 100},
    "optimizer": {"kind": "adam", "lr": 0.001, "weight_decay": 1e-4},
    "schedule": {"kind": "linear-tail", "constant_steps": 50_000},
    "steps": 75_000,
    "batch_size": 100,
    "evaluate_every": 1_000,
    "checkpoint_every": 1_000,
    "log_every": 100,
}
_RECIPES = (
    (r"mlp", _MNIST_MLP),
    (r"inception", _INCEPTION),
    (r"vgg-e", _VGG),
    (r"resnet-\d+", _RESNET),
    (r"wrn-\d+-\d+", _SVHN),
    (r"imagenet-.*", _IMAGENET),
    (r"ladder", _LADDER),
)
# How other data are prepared than those of the network's own experiment.
_NORMALISATION = {"cifar10": "cifar", "cifar100": "cifar", "imagenet": "imagenet"}
_AUGMENTED = ("cifar10", "cifar100")


def recipe(model: str) -> Recipe:
    """The fields of a configuration that the paper's experiment with a network has; method and seed are open."""
    for pattern, found in _RECIPES:
        if re.fullmatch(pattern, model):
            return {"model": model, **found}
    raise ValueError(f"there is no recipe for the network {model!r}")


def prepared(data: Recipe, name: str) -> Recipe:
    """The data part of a recipe for another set than its own, or a copy of it.

    A copy is prepared as the recipe says, another set as is usual for it.
    """
    if data["name"] == name:
        return data
    usual = {
        "normalisation": _NORMALISATION.get(original(name), "unit-range"),
        "augmentation": "authors" if original(name) in _AUGMENTED else "none",
    }
    if original(name) == data["name"]:
        usual = {"normalisation": "unit-range", "augmentation": "none"}
        usual |= {field: data[field] for field in usual if field in data}
    return {"name": name, **usual, **({"labels": data["labels"]} if "labels" in data else {})}
