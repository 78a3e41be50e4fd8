"""What the constraint does to gradients, layer by layer, while figure 2's network trains.

At some steps, before the update, of each linear layer with weight rows w, gradients g of these and delta of its output:

    gradient_share   sum over rows of (w.g)^2 / |w|^2, over the sum of |g|^2: the part that equation (7) takes out
    passed_back      |W^T delta| / |delta|: what the layer does to the norm of what it passes back; not of the first
                     layer, whose input has no gradient

The result:

    networks                    by name, such as mlp-bn; each
        <method>                by name; each
            gradient_share      by layer: for each seed, the mean over the steps
            passed_back         the same, without the first layer

In float64, so that it is the method which is measured and not its rounding.
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
    """Train each network with each method from each seed, and measure its gradients; what was put aside is kept.

    Options: `networks`, `methods`, `data`, `batch_size`, `lr`, `steps`, `every`, `seeds`.
    """
    work = [(network, name) for network in options["networks"] for name in options["methods"]]
    total = len(work) * options["seeds"]

    def measured(number: int) -> dict[str, Any]:
        runs = []
        for seed in range(1, options["seeds"] + 1):
            progress(number * options["seeds"] + seed - 1, total, " ".join(work[number]))
            runs.append(_trained(*work[number], seed, options))
        return {kind: {layer: [run[kind][layer] for run in runs] for layer in runs[0][kind]} for kind in KINDS}

    found: dict[str, Any] = {network: {} for network in options["networks"]}
    for number, (network, name) in enumerate(work):
        found[network][name] = parts.kept(f"{network}-{name}", partial(measured, number))
    progress(total, total, "done")
    return {"networks": found}


def _trained(network: str, name: str, seed: int, options: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The means over the steps of one run, by layer."""
    dataset = load(options["data"])
    assert isinstance(dataset, DataSet)
    shape = {"mnist": "mnist-mlp"}.get(options["data"], "unit-range")
    data = Data.model_validate({"name": dataset.name, "digest": dataset.digest, "normalisation": shape})
    split = training_split(data, dataset)
    batches = Batches(split, training_augmentation(data, split), batch_size=options["batch_size"], seed=seed)
    images = batches.at(0).images
    torch.manual_seed(random_seed(seed, "initialisation"))
    told: dict[str, Any] = {
        "num_classes": len(dataset.classes),
        "in_channels": images.shape[1],
        "image_size": images.shape[2],
    }
    model = build("mlp", normalisation=NORMALISATION[network], **told).double()
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
    del projection  # it has to live until here
    return watch.means()


class GradientWatch:
    """Looks at the gradients of a model's linear layers during some backward passes.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> watch = GradientWatch(model)
    >>> with watch.watching(on=True):
    ...     model(torch.randn(5, 3)).sum().backward()
    >>> sorted(watch.means()["gradient_share"]), sorted(watch.means()["passed_back"])
    (['0', '2'], ['2'])
    """

    def __init__(self, model: nn.Module) -> None:
        """Register with the layers; nothing is looked at yet."""
        self._on = False
        self._seen: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
        self._layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
        for name, layer in islice(self._layers.items(), 1, None):  # the input of the first has no gradient
            layer.register_full_backward_hook(self._hook(name))

    @contextmanager
    def watching(self, *, on: bool) -> Iterator[None]:
        """A context in which one backward pass is looked at, if `on`."""
        self._on = on
        yield
        if on:
            self._note_shares()
        self._on = False

    def means(self) -> dict[str, dict[str, float]]:
        """By kind and layer, the mean over what was looked at."""
        return {
            kind: {layer: sum(values) / len(values) for layer, values in found.items()}
            for kind, found in self._seen.items()
        }

    def _hook(self, name: str) -> Any:
        def note(layer: nn.Module, into: tuple[Tensor | None, ...], out_of: tuple[Tensor | None, ...]) -> None:
            if self._on and into[0] is not None and out_of[0] is not None:
                received = out_of[0].norm().item()
                if received:
                    self._seen["passed_back"].setdefault(name, []).append(into[0].norm().item() / received)

        return note

    def _note_shares(self) -> None:
        for name, layer in self._layers.items():
            weight, gradient = layer.weight.detach(), layer.weight.grad
            if gradient is not None and gradient.any():
                share = along_weights(weight, gradient).item()
                self._seen["gradient_share"].setdefault(name, []).append(share)


def along_weights(weight: Tensor, gradient: Tensor) -> Tensor:
    """The share of the squared gradient that lies along the rows of the weight: sum (w.g)^2 / |w|^2 over sum |g|^2.

    >>> along_weights(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 4.0]])).item()
    0.36000001430511475
    """
    squares = weight.square().sum(1)
    along = (weight * gradient).sum(1).square() / torch.where(squares > 0, squares, torch.ones_like(squares))
    return along.sum() / gradient.square().sum()
