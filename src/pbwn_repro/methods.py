"""The compared methods: what each does to a model and an optimizer, to which layers, and when it first projects."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import Optimizer

import pbwn
from pbwn_repro.models import Scheme, scheme

Scope = Literal["paper", "authors"]
Init = Literal["paper", "authors", "lecun"]


@dataclass(frozen=True)
class Method:
    """One row of the paper's tables.

    Args:
        name: the name on the command line; `title` is the one that the paper prints.
        reparametrized: whether the weights are normalised inside the forward pass, as in weight normalization.
        unit_start: whether the rows are scaled to norm 1 once, before the first step, and are free from then on.
        constraint: what the weights are kept on; None where they are free.
        every: the interval of projections in steps; None where they come after each epoch.
        gradient: the gradient that the optimizer sees; "riemannian-nxn" is the Riemannian one as the authors' code
            forms it, through a product of n x n elements for n neurons.
    """

    name: str
    title: str
    reparametrized: bool = False
    unit_start: bool = False
    constraint: pbwn.UnitNorm | pbwn.MaxNorm | None = None
    every: int | None = 1
    gradient: Literal["ordinary", "riemannian", "riemannian-nxn"] = "ordinary"

    @property
    def projects_after_each_epoch(self) -> bool:
        """Whether the training loop has to call `projection.project()` after each epoch."""
        return self.constraint is not None and self.every is None

    def projects_initially(self, network: str) -> bool:
        """Whether the weights are projected before the first step.

        As in the authors' code, methods with an interval start from the weights as they are, and so does PBWN-Riem on
        the MLP, whose first gradient is that of unnormalised weights.
        """
        if self.gradient != "ordinary" and network == "mlp":
            return False
        return self.constraint is not None and self.every == 1

    def prepare(self, model: nn.Module, network: str, scope: Scope = "paper") -> None:
        """Change the model itself; call it before the optimizer is made, because weights may get new names."""
        if self.reparametrized:
            for weight in pbwn.select(model, **layers(network, scope)).constrained:
                [dim] = weight.axes.neurons
                parametrizations.weight_norm(weight.module, weight.attribute, dim=dim)
                with torch.no_grad():  # torch starts the scale at the weight's norm, the paper's WN starts it at 1
                    weight.module.get_parameter(f"parametrizations.{weight.attribute}.original0").fill_(1.0)
        if self.unit_start:
            pbwn.project_(model, **layers(network, scope))

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        network: str,
        *,
        state: Mapping[str, Any] | None = None,
        scope: Scope = "paper",
    ) -> pbwn.NormProjection | None:
        """Attach the projection, if the method has one. `state` goes on from a saved projection."""
        if self.constraint is None:
            return None
        projection = pbwn.attach(
            model,
            optimizer,
            every=self.every,
            gradient="riemannian" if self.gradient == "riemannian" else "ordinary",
            constraint=self.constraint,
            initial=self.projects_initially(network),
            state=state,
            **layers(network, scope),
        )
        if self.gradient == "riemannian-nxn":
            weights = projection.selection.constrained
            optimizer.register_step_pre_hook(lambda *_: _make_tangent_by_products(weights))
        return projection


@torch.no_grad()
def _make_tangent_by_products(weights: Iterable[Any]) -> None:
    """Equation (7) as the authors' code computes it: two products of about 2 n^2 p FLOPs each for n rows of p elements.

    The first has all n x n inner products of rows and gradients, of which the diagonal is kept; the second multiplies
    the weight by that diagonal as a full matrix. Dividing by the squared norms, which are 1 on the sphere, makes it the
    same gradient as `gradient="riemannian"` before the first projection too.
    """
    for weight in weights:
        tensor = getattr(weight.module, weight.attribute)
        if tensor.grad is None:
            continue
        rows = weight.axes.rows(tensor)
        in_memory = (0, *sorted(range(1, rows.ndim), key=rows.stride, reverse=True))  # channels_last is not copied
        gradients = weight.axes.rows(tensor.grad).permute(in_memory)
        rows = rows.permute(in_memory).flatten(1)
        inner = (rows @ gradients.flatten(1).T) * torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        normal = (inner @ rows) / rows.square().sum(dim=1, keepdim=True)
        gradients -= normal.view(gradients.shape)


_SPHERE = pbwn.UnitNorm()
_METHODS = (
    Method("normal", "Normal"),
    Method("wn", "WN", reparametrized=True),
    Method("pbwn-riem", "PBWN-Riem", constraint=_SPHERE, gradient="riemannian"),
    Method("pbwn", "PBWN", constraint=_SPHERE),
    Method("pbwn-epoch", "PBWN-Epoch", constraint=_SPHERE, every=None),
    Method("pbwn-riem-nxn", "PBWN-Riem, n x n", constraint=_SPHERE, gradient="riemannian-nxn"),
    Method("unit-start", "Unit start", unit_start=True),
    Method("max-norm", "Max-norm", constraint=pbwn.MaxNorm(3.0)),
)
_INTERVAL = re.compile(r"pbwn-t([1-9]\d*)")
_LIMIT = re.compile(r"max-norm-(\d+(?:\.\d+)?)")


def names() -> tuple[str, ...]:
    """The methods by name; pbwn-t<k> and max-norm-<c> name one too, for any interval k and any limit c."""
    return tuple(method.name for method in _METHODS)


def method(name: str) -> Method:
    """Look up a method: pbwn-t<k> projects after every k steps, max-norm-<c> keeps norms at most c.

    >>> method("pbwn-t20").every
    20
    >>> method("max-norm-0.5").constraint
    MaxNorm(limit=0.5)
    """
    found = {each.name: each for each in _METHODS}
    interval = _INTERVAL.fullmatch(name)
    if interval:
        every = int(interval[1])
        return Method(name, f"PBWN-T{every}", constraint=_SPHERE, every=every)
    limit = _LIMIT.fullmatch(name)
    if limit and float(limit[1]) > 0:
        return Method(name, f"Max-norm {limit[1]}", constraint=pbwn.MaxNorm(float(limit[1])))
    if name not in found:
        nearest = difflib.get_close_matches(name, found, n=1)
        guess = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ValueError(
            f"unknown method {name!r}: {guess}There is {', '.join(found)}, pbwn-t<k> such as pbwn-t20, "
            "and max-norm-<c> such as max-norm-1.5"
        )
    return found[name]


def layers(network: str, scope: Scope = "paper") -> dict[str, Any]:
    """Which weights of a network a method touches, as arguments of `pbwn.select` and `pbwn.attach`.

    All linear layers of the MLP, the output layer too; elsewhere all convolutions and hidden linear layers, not the
    classifier. The authors' file for SVHN touches the first convolution alone, where the paper speaks of the network:
    `scope="authors"` follows the file.
    """
    if network == "mlp":
        return {"output_layer": None}
    if scope == "authors" and network.startswith("wrn-"):
        return {"output_layer": "classifier", "skip": ["blocks"]}
    return {"output_layer": "classifier"}


def start(network: str, method_name: str, init: Init = "paper") -> dict[str, Any]:
    """How a network's weights start, as arguments of `models.build`.

    "paper": as the paper states for the network, the same for all methods. "authors": as in their code, where the
    initialiser matched exact type names and passed over the layers of some methods, which kept Torch7's uniform start
    (and, in the ResNets, the biases of their convolutions) while the network they were compared with had He's. "lecun":
    the paper's, with LeCun's start for the weights, which the paper cites and which has rows of norm 1.
    """
    usual = scheme(network, init)
    chosen = method(method_name)
    if init == "authors" and network.startswith("resnet-") and chosen.constraint == _SPHERE:
        return {"init": _uniform(usual), "convolution_bias": True}
    if init == "authors" and network == "vgg-e" and chosen.name in ("wn", "pbwn", "pbwn-riem", "pbwn-riem-nxn"):
        return {"init": _uniform(usual)}
    return {"init": usual}


def _uniform(usual: Scheme) -> Scheme:
    return replace(usual, convolution="uniform-fan-in")
