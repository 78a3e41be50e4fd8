"""How the constraint affects gradients, layer by layer, while figure 2's network trains.

At some steps, before the update, these are measured for each linear layer with weight rows w, their gradients g and the
gradient delta of the layer's output:

    gradient_share   sum over rows of (w.g)^2 / |w|^2, over the sum of |g|^2: the part that equation (7) removes
    passed_back      |W^T delta| / |delta|: how the layer changes the norm of the gradient that it passes back; not for
                     the first layer, whose input has no gradient

The result:

    networks                    by name, such as mlp-bn; each
        <method>                by name; each
            gradient_share      by layer: a list of the mean over the steps for each seed
            passed_back         the same, without the first layer

Everything is computed in float64, so that the method is measured and not its rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pbwn_repro.bench.parts import Parts, Progress
from pbwn_repro.config import SGD, Data
from pbwn_repro.data import Batches, DataSet, load, random_seed
from pbwn_repro.methods import method
from pbwn_repro.models import build, find
from pbwn_repro.tasks import training_augmentation, training_split

NORMALISATION = {"mlp": "none", "mlp-bn": "batch"}
KINDS = ("gradient_share", "passed_back")


def gradients(options: Mapping[str, Any], parts: Parts, progress: Progress) -> dict[str, Any]:
    """Train each network with each method and seed, and measure the gradients, except where a saved part exists.

    Options: `networks`, `methods`, `data`, `batch_size`, `lr`, `steps`, `every`, `seeds`.
    """
    work = [(network, name) for network in options["networks"] for name in options["methods"]]
    total = len(work) * options["seeds"]

    def measure(number: int) -> dict[str, Any]:
        runs = []
        for seed in range(1, options["seeds"] + 1):
            progress(number * options["seeds"] + seed - 1, total, " ".join(work[number]))
            runs.append(_train(*work[number], seed, options))
        return {kind: {layer: [run[kind][layer] for run in runs] for layer in runs[0][kind]} for kind in KINDS}

    results: dict[str, Any] = {network: {} for network in options["networks"]}
    for number, (network, name) in enumerate(work):
        results[network][name] = parts.load_or_make(f"{network}-{name}", partial(measure, number))
    progress(total, total, "done")
    return {"networks": results}


def _train(network: str, name: str, seed: int, options: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Train once and return the means over the steps, by kind and layer."""
    dataset = load(options["data"])
    assert isinstance(dataset, DataSet)
    normalisation = {"mnist": "mnist-mlp"}.get(options["data"], "unit-range")
    data = Data.model_validate({"name": dataset.name, "digest": dataset.digest, "normalisation": normalisation})
    split = training_split(data, dataset)
    batches = Batches(split, training_augmentation(data, split), batch_size=options["batch_size"], seed=seed)
    images = batches.at(0).images
    torch.manual_seed(random_seed(seed, "initialisation"))
    arguments: dict[str, Any] = {
        "num_classes": len(dataset.classes),
        "in_channels": images.shape[1],
        "image_size": images.shape[2],
    }
    model = build("mlp", normalisation=NORMALISATION[network], **arguments).double()
    chosen, layers = method(name), find("mlp").layers()
    chosen.prepare(model, layers)
    optimizer = chosen.optimizer(model, SGD(lr=options["lr"], momentum=0.0), layers)
    projection = chosen.attach(model, optimizer, layers)
    watch = GradientWatch(model)
    for step in range(options["steps"]):
        images, labels, _ = batches.at(step)
        optimizer.zero_grad()
        with watch.watching(on=(step + 1) % options["every"] == 0):
            functional.cross_entropy(model(images.double()), labels).backward()
        optimizer.step()
    del projection  # keeps the projection alive until training ends
    return watch.means()


class GradientWatch:
    """Measures the gradients of a model's linear layers during selected backward passes.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> watch = GradientWatch(model)
    >>> with watch.watching(on=True):
    ...     model(torch.randn(5, 3)).sum().backward()
    >>> sorted(watch.means()["gradient_share"]), sorted(watch.means()["passed_back"])
    (['0', '2'], ['2'])
    """

    def __init__(self, model: nn.Module) -> None:
        """Register hooks with the layers; they are inactive until `watching`."""
        self._on = False
        self._values: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
        self._layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
        for name, layer in islice(self._layers.items(), 1, None):  # the input of the first has no gradient
            layer.register_full_backward_hook(self._hook(name))

    @contextmanager
    def watching(self, *, on: bool) -> Iterator[None]:
        """Return a context in which one backward pass is measured if `on`."""
        self._on = on
        yield
        if on:
            self._record_shares()
        self._on = False

    def means(self) -> dict[str, dict[str, float]]:
        """Return the mean over the measured backward passes, by kind and layer."""
        return {
            kind: {layer: sum(values) / len(values) for layer, values in layers.items()}
            for kind, layers in self._values.items()
        }

    def _hook(self, name: str) -> Any:
        def record(
            layer: nn.Module, grad_input: tuple[Tensor | None, ...], grad_output: tuple[Tensor | None, ...]
        ) -> None:
            if self._on and grad_input[0] is not None and grad_output[0] is not None:
                received = grad_output[0].norm().item()
                if received:
                    self._values["passed_back"].setdefault(name, []).append(grad_input[0].norm().item() / received)

        return record

    def _record_shares(self) -> None:
        for name, layer in self._layers.items():
            weight, gradient = layer.weight.detach(), layer.weight.grad
            if gradient is not None and gradient.any():
                share = along_weights(weight, gradient).item()
                self._values["gradient_share"].setdefault(name, []).append(share)


def along_weights(weight: Tensor, gradient: Tensor) -> Tensor:
    """Return the share of the squared gradient along the weight's rows: sum (w.g)^2 / |w|^2 over sum |g|^2.

    >>> along_weights(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 4.0]])).item()
    0.36000001430511475
    """
    squares = weight.square().sum(1)
    along = (weight * gradient).sum(1).square() / torch.where(squares > 0, squares, torch.ones_like(squares))
    return along.sum() / gradient.square().sum()
