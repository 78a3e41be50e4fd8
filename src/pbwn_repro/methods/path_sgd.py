"""Path-SGD (Neyshabur et al. 2015): steps scaled by the squared weights of the paths through each weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pbwn_repro.errors import UsageError
from pbwn_repro.methods.method import Method, OptimizerSettings
from pbwn_repro.models.family import Layers


def path_norms(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return, for each layer, the squared path norms of the units below it and of the units above it.

    With elementwise squares, the former come from a forward pass from ones, s_l = W_l^2 s_(l-1) + b_l^2, and the latter
    from a backward pass from ones, t_(l-1) = (W_l^2)^T t_l. A bias is the weight of an edge from an extra input unit.

    >>> below, above = path_norms([torch.tensor([[2.0]]), torch.tensor([[3.0]])], [torch.zeros(1), torch.zeros(1)])
    >>> [float(each) for each in (*below, *above)]
    [1.0, 4.0, 9.0, 1.0]
    """
    squares = [weight.square() for weight in weights]
    below = [torch.ones_like(weights[0][0])]
    for square, bias in zip(squares[:-1], biases[:-1], strict=True):
        below.append(square @ below[-1] + bias.square())
    above = [torch.ones_like(biases[-1])]
    for square in reversed(squares[1:]):
        above.append(square.T @ above[-1])
    return below, above[::-1]


class PathSGD(Optimizer):
    """w <- w - lr g / k, with k the sum over the paths through w of the product of all their other squared weights.

    k is s_i t_j for the weight from unit i to unit j, and t_j for a bias. Scaling the incoming weights of a unit by c
    and its outgoing weights by 1 / c scales the steps in the same way, so that both networks learn the same function.

    Args:
        params: weight and bias of each linear layer in turn, from the first to the last, with ReLUs between layers.
        lr: the learning rate.
    """

    def __init__(self, params: Iterable[Tensor], *, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights, biases = group["params"][::2], group["params"][1::2]
            for weight, bias, s, t in zip(weights, biases, *path_norms(weights, biases), strict=True):
                smallest = torch.finfo(t.dtype).tiny  # a unit without outgoing paths has zero gradient too
                if weight.grad is not None:
                    per_path = weight.grad / s.clamp_min(smallest) / t.clamp_min(smallest).unsqueeze(1)
                    weight.sub_(per_path, alpha=group["lr"])
                if bias.grad is not None:
                    bias.sub_(bias.grad / t.clamp_min(smallest), alpha=group["lr"])
        return loss


class PathNormalized(Method):
    """Path-SGD, for networks of linear layers with ReLUs between them and nothing else."""

    about = "steps divided by the squared weights of the paths through each weight"

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, layers: Layers) -> Optimizer:
        """Create the optimizer for the chain of linear layers."""
        if getattr(settings, "momentum", None) != 0 or settings.weight_decay:
            raise UsageError(
                f"path-sgd is plain SGD with its own step sizes, but the optimizer is {settings!r}: pass "
                "--set optimizer.kind=sgd --set optimizer.momentum=0 --weight-decay 0"
            )
        return PathSGD(chain(model), lr=settings.lr)


def chain(model: nn.Module) -> list[nn.Parameter]:
    """Return weight and bias of each linear layer, in order; raise an error if the model is no chain of such layers."""
    leaves = [module for module in model.modules() if not any(module.children())]
    unsupported = next((type(module).__name__ for module in leaves if type(module) not in _SUPPORTED), None)
    linear: list[Any] = [module for module in leaves if type(module) is nn.Linear]
    parameters = [parameter for layer in linear for parameter in (layer.weight, layer.bias) if parameter is not None]
    fits = all(below.out_features == above.in_features for below, above in pairwise(linear))
    is_complete = {*map(id, parameters)} == {*map(id, model.parameters())} and len(parameters) == 2 * len(linear)
    if unsupported or not (linear and fits and is_complete):
        raise UsageError(
            "path-sgd supports networks of linear layers with biases, and ReLUs between them, such as mlp; "
            f"{type(model).__name__} has {f'a {unsupported}' if unsupported else 'another structure'}: choose another "
            "method"
        )
    return parameters


_SUPPORTED = (nn.Linear, nn.ReLU, nn.Flatten, nn.Identity)

METHODS: Mapping[str, Method] = {"path-sgd": PathNormalized("Path-SGD")}
