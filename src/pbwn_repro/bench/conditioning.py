"""How well conditioned real networks are while they train: the top of the Hessian's spectrum, gradients by layer.

Each network is trained with each method and seed, and looked at at the start, in the middle and at the end. The result:

    methods, moments, top, seeds
    networks                     by name; each
        methods                  by name; each a list, one entry for each seed, each a list, one entry for each moment
            step, loss           the loss on the examples that the Hessian is of, in training mode
            eigenvalues          the largest of the Hessian of that loss, largest first
            tangent_eigenvalues  where weights are projected: those of the Hessian between directions along the spheres
            weight_eigenvalues   where weights are computed from other parameters, as WN's from directions and scales:
                                 those of the Hessian with respect to the weights themselves
            gradient_norms       of the loss, by weight

Eigenvalues are found by Lanczos iterations (scipy's eigsh) on products of the Hessian with vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, parametrize, vector_to_parameters

from pbwn.functional import tangent_
from pbwn_repro.bench.parts import Parts, Progress
from pbwn_repro.engine.processes import Processes, keep_freed_memory
from pbwn_repro.engine.training import Training
from pbwn_repro.runs.resolution import resolve


def conditioning(options: Mapping[str, Any], parts: Parts, progress: Progress) -> dict[str, Any]:
    """Train and measure; networks whose measurements are kept already are not trained again.

    Options: `networks` (the overrides of each), `methods`, `seeds`, `moments` (shares of the run), `examples` (by
    network: how many the Hessian is computed over), `top` (how many eigenvalues), `tolerance` (of an eigenvalue,
    relative to itself).
    """
    keep_freed_memory()
    wanted = [
        (network, method, seed)
        for network in options["networks"]
        for method in options["methods"]
        for seed in range(1, options["seeds"] + 1)
    ]
    networks: dict[str, Any] = {name: {"methods": {}} for name in options["networks"]}
    for number, (network, method, seed) in enumerate(wanted):
        progress(number, len(wanted), f"{network} {method} seed {seed}")
        overrides = {**options["networks"][network], "model": network, "method": method, "seed": seed}
        part = parts.kept(f"{network}-{method}-{seed}", partial(_run, overrides, options, options["examples"][network]))
        networks[network]["methods"].setdefault(method, []).append(part["moments"])
    progress(len(wanted), len(wanted), "done")
    shared = {name: options[name] for name in ("methods", "moments", "top", "seeds")}
    return {**shared, "networks": networks}


def _run(overrides: Mapping[str, Any], options: Mapping[str, Any], examples: int) -> dict[str, Any]:
    config, dataset = resolve(overrides)
    training = Training(config, dataset, Processes())
    stops = {round(share * training.total_steps) for share in options["moments"]}
    accuracy = {name: options[name] for name in ("top", "tolerance")}
    found: list[dict[str, Any]] = []

    def look(step: int, batch: tuple[Tensor, Tensor]) -> None:
        inputs, labels = (part[:examples] for part in batch)
        weights = () if training.projection is None else training.projection.selection.constrained
        found.append({"step": step, **spectrum(training.model, inputs, labels, weights, **accuracy)})

    training.visit(stops, look, examples)
    return {"moments": found}


def spectrum(
    model: nn.Module, inputs: Tensor, labels: Tensor, weights: Any = (), *, top: int, tolerance: float = 1e-3
) -> dict[str, Any]:
    """The loss in training mode, the largest eigenvalues of its Hessian, and the gradient's norm by weight.

    `weights` are those that are projected: the Hessian is also looked at between directions tangent to their spheres.
    Where weights are computed from other parameters, it is looked at with respect to the weights too. Nothing of the
    model is changed.
    """
    buffers, mode = [(buffer, buffer.clone()) for buffer in model.buffers()], model.training
    model.train()
    try:
        with _twice_differentiable(model):
            found = _spectrum(model, inputs, labels, weights, top, tolerance)
        parametrized = [module for module in model.modules() if parametrize.is_parametrized(module)]
        if parametrized:
            found["weight_eigenvalues"] = _of_weights(model, inputs, labels, parametrized, top, tolerance)
        return found
    finally:  # what the backward passes need of buffers must not be written to before
        model.train(mode)
        for buffer, value in buffers:
            buffer.copy_(value)


def _spectrum(
    model: nn.Module, inputs: Tensor, labels: Tensor, weights: Any, top: int, tolerance: float
) -> dict[str, Any]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loss = nn.functional.cross_entropy(model(inputs), labels)
    gradients, product = _derivatives(loss, parameters)

    def tangent_product(vector: Tensor) -> Tensor:
        return _tangent(product(_tangent(vector, parameters, weights)), parameters, weights)

    size, dtype = sum(parameter.numel() for parameter in parameters), parameters[0].dtype
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    norms = {
        names[id(parameter)]: float(gradient.detach().norm())
        for parameter, gradient in zip(parameters, gradients, strict=True)
        if parameter.ndim > 1
    }
    result = {
        "loss": float(loss.detach()),
        "eigenvalues": largest(product, size, dtype, top, tolerance),
        "gradient_norms": norms,
    }
    if weights:
        result["tangent_eigenvalues"] = largest(tangent_product, size, dtype, top, tolerance)
    return result


class _DirectionAndScale(nn.Module):
    """g v / |v|, of scales and directions that are laid out as torch's `weight_norm` has them."""

    def forward(self, scales: Tensor, directions: Tensor) -> Tensor:
        fan_in = [dimension for dimension, size in enumerate(scales.shape) if size == 1]
        norms: Tensor = torch.linalg.vector_norm(directions, dim=fan_in, keepdim=True)
        return directions * (scales / norms)


@contextmanager
def _twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Compute normalised weights by operations whose second derivatives are right.

    Those of torch's own are not: what it differentiates again takes the norms as constants, seen in torch 2.13
    (`gradgradcheck` of `torch._weight_norm`). Where that passes, this can go.
    """
    lists: list[Any] = [each for each in model.modules() if isinstance(each, parametrize.ParametrizationList)]
    kept = [(each, each[0]) for each in lists if hasattr(each, "original1")]
    try:
        for each, _ in kept:
            each[0] = _DirectionAndScale()
        yield
    finally:
        for each, own in kept:
            each[0] = own


def _of_weights(
    model: nn.Module, inputs: Tensor, labels: Tensor, parametrized: list[nn.Module], top: int, tolerance: float
) -> list[float]:
    """The largest eigenvalues with respect to the weights that parametrizations compute, and all other parameters."""
    lists: list[Any] = [module.parametrizations for module in parametrized]
    proxies = {id(proxy) for each in lists for proxy in each.parameters()}
    with parametrize.cached():  # the forward pass then takes the tensors that are differentiated by
        weights = [getattr(module, name) for module, each in zip(parametrized, lists, strict=True) for name in each]
        others = [each for each in model.parameters() if each.requires_grad and id(each) not in proxies]
        loss = nn.functional.cross_entropy(model(inputs), labels)
    _, product = _derivatives(loss, [*weights, *others])
    size = sum(variable.numel() for variable in (*weights, *others))
    return largest(product, size, weights[0].dtype, top, tolerance)


def _derivatives(loss: Tensor, variables: list[Any]) -> tuple[tuple[Tensor, ...], Callable[[Tensor], Tensor]]:
    """The gradients of a loss, and what multiplies a vector by its Hessian."""
    gradients = torch.autograd.grad(loss, variables, create_graph=True)

    def product(vector: Tensor) -> Tensor:
        pieces = _pieces(vector, variables)
        rows = torch.autograd.grad(gradients, variables, pieces, retain_graph=True, materialize_grads=True)
        return parameters_to_vector([row.contiguous() for row in rows]).detach()

    return gradients, product


def largest(
    product: Callable[[Tensor], Tensor], size: int, dtype: torch.dtype, top: int, tolerance: float
) -> list[float]:
    """The largest eigenvalues of a symmetric operator, largest first, by Lanczos iterations from a fixed start."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh  # takes a second to import

    def multiply(vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = product(torch.from_numpy(vector.reshape(-1).copy()).to(dtype)).numpy()
        return found

    kind = np.float64 if dtype == torch.float64 else np.float32
    operator = LinearOperator((size, size), matvec=multiply, dtype=kind)
    start = np.random.default_rng(0).standard_normal(size).astype(kind)
    try:
        values = eigsh(operator, top, which="LA", v0=start, tol=tolerance, maxiter=50, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        values = error.eigenvalues  # those that were found to the tolerance
    return sorted(map(float, values), reverse=True)


def _pieces(vector: Tensor, parameters: list[Any]) -> list[Tensor]:
    pieces = [torch.empty_like(parameter, memory_format=torch.contiguous_format) for parameter in parameters]
    vector_to_parameters(vector, pieces)
    return pieces


def _tangent(vector: Tensor, parameters: list[nn.Parameter], weights: Any) -> Tensor:
    """Remove from a direction in all parameters what is along the projected weights, equation (7)."""
    pieces = dict(zip(map(id, parameters), _pieces(vector, parameters), strict=True))
    for weight in weights:
        piece = pieces[id(weight.tensor)]
        pieces[id(weight.tensor)] = tangent_(piece.clone(), weight.tensor, weight.axes)
    return parameters_to_vector(list(pieces.values()))
