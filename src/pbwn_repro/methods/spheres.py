"""Optimizers that move each neuron on its sphere: SGD-G and Adam-G of Cho and Lee (2017), and geoopt's RiemannianSGD.

A neuron's weights y have norm 1. A step follows the great circle from y in the direction of a tangent vector d:

    exp_y(d) = y cos|d| + d sin|d| / |d|       exponential map
    pt_y(d)  = d cos|d| - y |d| sin|d|         parallel transport of d to the new point

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


def inner(a: Tensor, b: Tensor, dims: Dims) -> Tensor:
    """Return the inner product per neuron, over the dimensions `dims` of its weights."""
    return (a * b).sum(dims, keepdim=True)


def tangent(y: Tensor, gradient: Tensor, dims: Dims) -> Tensor:
    """Return the part of a gradient that is tangent to the sphere: h = g - (y.g) y, equation (7)."""
    return gradient - inner(y, gradient, dims) * y


def clipped(vector: Tensor, largest: float | None, dims: Dims) -> Tensor:
    """Clip the norm of each neuron's vector to `largest`; None leaves it unchanged."""
    if largest is None:
        return vector
    norms = inner(vector, vector, dims).sqrt()
    return vector * (largest / norms.clamp_min(largest))


def exponential(y: Tensor, d: Tensor, dims: Dims) -> Tensor:
    """Return the point at distance |d| on the great circle from y in the direction of d, renormalised against rounding.

    >>> east, north = torch.eye(2)
    >>> exponential(east, math.pi / 2 * north, (0,)).round(decimals=6).abs().tolist()
    [0.0, 1.0]
    """
    angle = inner(d, d, dims).sqrt()
    moved = y * angle.cos() + d * torch.sinc(angle / math.pi)
    norms = inner(moved, moved, dims).sqrt()
    return moved / torch.where(norms > 0, norms, torch.ones_like(norms))


def transported(y: Tensor, d: Tensor, dims: Dims) -> Tensor:
    """Return d, parallel-transported along its great circle: of the same length, tangent at the new point."""
    angle = inner(d, d, dims).sqrt()
    return d * angle.cos() - y * (angle * angle.sin())


class GreatCircleOptimizer(Optimizer):
    """The base class of SGD-G and Adam-G: groups of neurons on spheres, and groups with ordinary SGD.

    A group with `dims`, the dimensions of a neuron's weights, is on spheres and has the learning rate `lr`. The other
    groups have `lr` times their `factor`; the published learning rates of SGD-G are 0.2 and 0.01.

    Args:
        groups: the parameter groups.
        lr: the learning rate of the groups on spheres.
        momentum: the momentum of all groups.
        nesterov, weight_decay: settings of ordinary SGD, for the other groups only.
        clip: the maximum norm of a neuron's gradient on spheres; None disables clipping.
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
        **extra: Any,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "clip": clip}
        super().__init__(groups, {**defaults, "dims": None, "factor": 1.0, **extra})

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
                    self._sgd_step(parameter, parameter.grad, group)
                else:
                    dims = tuple(group["dims"])
                    h = clipped(tangent(parameter, parameter.grad, dims), group["clip"], dims)
                    self._sphere_step(parameter, h, dims, group)
        return loss

    def _sphere_step(self, y: Tensor, h: Tensor, dims: Dims, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _sgd_step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Take a step of ordinary SGD."""
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
    """d <- momentum d - lr h; y <- exp_y(d); d <- pt_y(d), where h is the clipped tangent gradient."""

    def _sphere_step(self, y: Tensor, h: Tensor, dims: Dims, group: dict[str, Any]) -> None:
        d = h * -group["lr"]
        if group["momentum"]:
            state = self.state[y]
            if "momentum_buffer" in state:
                d = d.add_(state["momentum_buffer"], alpha=group["momentum"])
            state["momentum_buffer"] = transported(y, d, dims)
        y.copy_(exponential(y, d, dims))


class AdamG(GreatCircleOptimizer):
    """Adam with one second moment v per neuron and parallel transport of the first moment m.

    m <- beta1 m + (1 - beta1) h; v <- beta2 v + (1 - beta2) h.h; d = -lr c m / sqrt(v + epsilon), with Adam's
    correction c = sqrt(1 - beta2^t) / (1 - beta1^t); y <- exp_y(d); m <- m transported along d. beta1 is `momentum`.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, beta2: float = 0.99, epsilon: float = 1e-8, **extra: Any
    ) -> None:
        super().__init__(groups, beta2=beta2, epsilon=epsilon, **extra)

    def _sphere_step(self, y: Tensor, h: Tensor, dims: Dims, group: dict[str, Any]) -> None:
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
        # m is antiparallel to d, and is transported with it.
        length, angle = inner(first, first, dims).sqrt(), inner(d, d, dims).sqrt()
        state["first"] = first * angle.cos() + y * (length * angle.sin())
        y.copy_(exponential(y, d, dims))


class GreatCircles(Method):
    """SGD-G or Adam-G on the weights that PBWN would constrain, starting from rows of norm 1.

    The run's learning rate applies to the constrained weights; the other parameters have `factor` times that, as
    published. The loss term of Cho and Lee that favours orthogonal rows is left out, as it is not part of the step.
    """

    def __init__(
        self, title: str, kind: type[GreatCircleOptimizer], *, factor: float, clip: float | None = CLIP
    ) -> None:
        super().__init__(title)
        self._kind, self._factor, self._clip = kind, factor, clip
        clipping = "gradient clipped" if clip is not None else "gradient not clipped"
        self.about = f"unit rows moved along great circles, momentum transported, {clipping}"

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Project the weights onto their spheres."""
        pbwn.project_(model, **layers)

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """Create the optimizer, with one group per layout of the constrained weights."""
        momentum = _momentum(self.title, settings)
        constrained = pbwn.select(model, **layers).constrained
        by_dims: dict[Dims, list[Tensor]] = {}
        for weight in constrained:
            if weight.axes.groups > 1:
                raise UsageError(
                    f"{self.title} does not support grouped weights such as {weight.name!r} ({weight.axes}): "
                    "choose pbwn-riem"
                )
            dims = tuple(dim for dim in range(weight.tensor.ndim) if dim not in weight.axes.neurons)
            by_dims.setdefault(dims, []).append(weight.tensor)
        ids = {id(weight.tensor) for weight in constrained}
        others = [parameter for parameter in model.parameters() if id(parameter) not in ids]
        groups: list[dict[str, Any]] = [{"params": weights, "dims": dims} for dims, weights in by_dims.items()]
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
    """RiemannianSGD of the geoopt library, for comparison; geoopt has to be installed."""

    about = "geoopt's RiemannianSGD: tangent gradient, retraction, momentum transported"

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Replace each matrix by a parameter on geoopt's sphere, whose points are rows."""
        geoopt = _geoopt()
        pbwn.project_(model, **layers)
        for weight in pbwn.select(model, **layers).constrained:
            if weight.axes.neurons != (0,) or weight.tensor.ndim != 2:
                raise UsageError(
                    f"geoopt-rsgd: geoopt's sphere supports only matrices with one neuron per row, not {weight.name!r} "
                    f"of shape {tuple(weight.tensor.shape)}: choose sgd-g"
                )
            on_sphere = geoopt.ManifoldParameter(weight.tensor.detach(), manifold=geoopt.Sphere())
            setattr(weight.module, weight.attribute, on_sphere)

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """Create the optimizer for all parameters."""
        momentum = _momentum(self.title, settings)
        optimizer: Optimizer = _geoopt().optim.RiemannianSGD(
            model.parameters(), lr=settings.lr, momentum=momentum, weight_decay=settings.weight_decay
        )
        return optimizer


def _momentum(title: str, settings: OptimizerSettings) -> float:
    """Return the momentum of SGD's settings; raise an error for the settings of another optimizer."""
    momentum = getattr(settings, "momentum", None)
    if momentum is None:
        raise UsageError(
            f"{title} is itself an optimizer, configured by SGD's learning rate, momentum and weight decay, but the "
            f"configuration has {type(settings).__name__}: pass --set optimizer.kind=sgd"
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
