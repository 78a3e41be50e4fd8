"""Optimizers that move each neuron along its sphere: SGD-G and Adam-G of Cho and Lee (2017), and geoopt's.

A neuron's weights y have norm 1. A step follows the great circle that leaves y in the direction of a tangent vector d:

    exp_y(d) = y cos|d| + d sin|d| / |d|
    pt_y(d)  = d cos|d| - y |d| sin|d|         d, carried along to the new point

On the Grassmann manifold G(1, n), y and -y are the same point; the formulas are those of the sphere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import pbwn
from pbwn_repro.errors import UsageError
from pbwn_repro.methods.method import Method, OptimizerSettings
from pbwn_repro.models.family import Layers

CLIP = 0.1
Dims = tuple[int, ...]


def inner(one: Tensor, other: Tensor, dims: Dims) -> Tensor:
    """The inner product of each neuron's weights, which lie along `dims`."""
    return (one * other).sum(dims, keepdim=True)


def tangent(y: Tensor, gradient: Tensor, dims: Dims) -> Tensor:
    """The part of a gradient along the sphere: h = g - (y.g) y, equation (7)."""
    return gradient - inner(y, gradient, dims) * y


def clipped(vector: Tensor, largest: float | None, dims: Dims) -> Tensor:
    """The vector, shortened to the norm `largest` where it is longer."""
    if largest is None:
        return vector
    norms = inner(vector, vector, dims).sqrt()
    return vector * (largest / norms.clamp_min(largest))


def exponential(y: Tensor, d: Tensor, dims: Dims) -> Tensor:
    """Where the great circle from y in the direction of d is after the length |d|; of norm 1 again to rounding.

    >>> east, north = torch.eye(2)
    >>> exponential(east, math.pi / 2 * north, (0,)).round(decimals=6).abs().tolist()
    [0.0, 1.0]
    """
    angle = inner(d, d, dims).sqrt()
    moved = y * angle.cos() + d * torch.sinc(angle / math.pi)
    norms = inner(moved, moved, dims).sqrt()
    return moved / torch.where(norms > 0, norms, torch.ones_like(norms))


def transported(y: Tensor, d: Tensor, dims: Dims) -> Tensor:
    """d, carried along the great circle that it points to: the same length, tangent at the new point."""
    angle = inner(d, d, dims).sqrt()
    return d * angle.cos() - y * (angle * angle.sin())


class GreatCircleOptimizer(Optimizer):
    """What SGD-G and Adam-G have in common: neurons on spheres in some groups, ordinary SGD in the others.

    A group with `dims`, the dimensions that a neuron's weights lie along, is on spheres. Its rate is `lr`; that of the
    other groups is `lr` times their `factor`: the published settings have 0.2 and 0.01 for SGD-G.

    Args:
        clip: the largest norm of a neuron's gradient; None: as it is.
        momentum: of all groups; `nesterov` and `weight_decay` are those of the others alone.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        clip: float | None = CLIP,
        **more: Any,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "clip": clip}
        super().__init__(groups, {**defaults, "dims": None, "factor": 1.0, **more})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if group["dims"] is None:
                    self._move_freely(parameter, parameter.grad, group)
                else:
                    dims = tuple(group["dims"])
                    h = clipped(tangent(parameter, parameter.grad, dims), group["clip"], dims)
                    self._move_along_sphere(parameter, h, dims, group)
        return loss

    def _move_along_sphere(self, y: Tensor, h: Tensor, dims: Dims, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _move_freely(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Ordinary SGD."""
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        if group["momentum"]:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
            gradient = gradient.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
        parameter.add_(gradient, alpha=-group["lr"] * group["factor"])


class SGDG(GreatCircleOptimizer):
    """d <- momentum d - lr h; y <- exp_y(d); d <- pt_y(d), h being the clipped tangent gradient."""

    def _move_along_sphere(self, y: Tensor, h: Tensor, dims: Dims, group: dict[str, Any]) -> None:
        d = h * -group["lr"]
        if group["momentum"]:
            state = self.state[y]
            if "momentum_buffer" in state:
                d = d.add_(state["momentum_buffer"], alpha=group["momentum"])
            state["momentum_buffer"] = transported(y, d, dims)
        y.copy_(exponential(y, d, dims))


class AdamG(GreatCircleOptimizer):
    """Adam with one second moment v for each neuron, and the first moment m carried along.

    m <- beta1 m + (1 - beta1) h; v <- beta2 v + (1 - beta2) h.h; d = -lr c m / sqrt(v + epsilon), with Adam's
    correction c = sqrt(1 - beta2^t) / (1 - beta1^t); y <- exp_y(d); m <- its transport along d. beta1 is `momentum`.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, beta2: float = 0.99, epsilon: float = 1e-8, **more: Any
    ) -> None:
        super().__init__(groups, beta2=beta2, epsilon=epsilon, **more)

    def _move_along_sphere(self, y: Tensor, h: Tensor, dims: Dims, group: dict[str, Any]) -> None:
        state, beta1, beta2 = self.state[y], group["momentum"], group["beta2"]
        if not state:
            state["step"] = torch.zeros(())
            state["first"], state["second"] = torch.zeros_like(y), torch.zeros_like(inner(y, y, dims))
        state["step"] += 1
        first = state["first"].mul_(beta1).add_(h, alpha=1 - beta1)
        second = state["second"].mul_(beta2).add_(inner(h, h, dims), alpha=1 - beta2)
        count = int(state["step"].item())
        correction = math.sqrt(1 - beta2**count) / (1 - beta1**count)
        d = first * (-group["lr"] * correction / (second + group["epsilon"]).sqrt())
        # m points where -d does, and turns with it.
        length, angle = inner(first, first, dims).sqrt(), inner(d, d, dims).sqrt()
        state["first"] = first * angle.cos() + y * (length * angle.sin())
        y.copy_(exponential(y, d, dims))


class GreatCircles(Method):
    """SGD-G or Adam-G on the weights that PBWN would constrain; they start with rows of norm 1.

    The run's learning rate is that of the constrained weights; the others have `factor` times that, as published. The
    term of the loss that makes rows orthogonal, which Cho and Lee add, is left out: it is no part of the step.
    """

    def __init__(
        self, title: str, kind: type[GreatCircleOptimizer], *, factor: float, clip: float | None = CLIP
    ) -> None:
        super().__init__(title)
        self._kind, self._factor, self._clip = kind, factor, clip
        clipping = "gradient clipped" if clip is not None else "gradient not clipped"
        self.about = f"unit rows moved along great circles, momentum carried along, {clipping}"

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Put the weights on their spheres."""
        pbwn.project_(model, **layers)

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """The optimizer, with a group for each way in which weights are stored."""
        momentum = _momentum(self.title, settings)
        constrained = pbwn.select(model, **layers).constrained
        stored: dict[Dims, list[Tensor]] = {}
        for weight in constrained:
            if weight.axes.groups > 1:
                raise UsageError(f"{self.title}: {weight.name!r} is stored in groups ({weight.axes}): choose pbwn-riem")
            dims = tuple(dim for dim in range(weight.tensor.ndim) if dim not in weight.axes.neurons)
            stored.setdefault(dims, []).append(weight.tensor)
        ids = {id(weight.tensor) for weight in constrained}
        others = [parameter for parameter in model.parameters() if id(parameter) not in ids]
        groups: list[dict[str, Any]] = [{"params": weights, "dims": dims} for dims, weights in stored.items()]
        groups += [{"params": others, "factor": self._factor}] if others else []
        return self._kind(
            groups,
            lr=settings.lr,
            momentum=momentum,
            nesterov=getattr(settings, "nesterov", False),
            weight_decay=settings.weight_decay,
            clip=self._clip,
        )


class GeooptSGD(Method):
    """geoopt's RiemannianSGD, where geoopt is installed: a library of others, for comparison."""

    about = "geoopt's RiemannianSGD: tangent gradient, retraction, momentum carried along"

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Make each matrix a parameter on geoopt's sphere, whose points are rows."""
        geoopt = _geoopt()
        pbwn.project_(model, **layers)
        for weight in pbwn.select(model, **layers).constrained:
            if weight.axes.neurons != (0,) or weight.tensor.ndim != 2:
                raise UsageError(
                    f"geoopt-rsgd: {weight.name!r} of shape {tuple(weight.tensor.shape)} is no matrix of rows, and "
                    "geoopt's sphere knows no others: choose sgd-g"
                )
            on_sphere = geoopt.ManifoldParameter(weight.tensor.detach(), manifold=geoopt.Sphere())
            setattr(weight.module, weight.attribute, on_sphere)

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """The optimizer of all parameters."""
        momentum = _momentum(self.title, settings)
        made: Optimizer = _geoopt().optim.RiemannianSGD(
            model.parameters(), lr=settings.lr, momentum=momentum, weight_decay=settings.weight_decay
        )
        return made


def _momentum(title: str, settings: OptimizerSettings) -> float:
    """The momentum of SGD's settings; those of another optimizer cannot be meant for a method that is one itself."""
    momentum = getattr(settings, "momentum", None)
    if momentum is None:
        raise UsageError(
            f"{title} is an optimizer itself and takes the rate, momentum and decay of SGD; the configuration has "
            f"{type(settings).__name__}: give --set optimizer.kind=sgd"
        )
    return float(momentum)


def _geoopt() -> Any:
    try:
        import geoopt
    except ImportError as error:
        raise UsageError("geoopt-rsgd needs geoopt, which is not installed: pip install geoopt") from error
    return geoopt


METHODS: Mapping[str, Method] = {
    "sgd-g": GreatCircles("SGD-G", SGDG, factor=0.05),
    "sgd-g-unclipped": GreatCircles("SGD-G, not clipped", SGDG, factor=0.05, clip=None),
    "adam-g": GreatCircles("Adam-G", AdamG, factor=0.2),
    "geoopt-rsgd": GeooptSGD("geoopt's RSGD"),
}
