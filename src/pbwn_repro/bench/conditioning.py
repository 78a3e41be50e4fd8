"""Conditioning of real networks during training: the top of the Hessian's spectrum, and gradient norms by layer.

Each network is trained with each method and seed, and measured at some moments, such as the start, the middle and the
end. The result:

    methods, moments, top, seeds
    networks                     by name; each
        methods                  by name; each a list over seeds of lists over moments, with entries
            step, loss           the loss in training mode on the examples used for the Hessian
            eigenvalues          the largest of the Hessian of that loss, largest first
            tangent_eigenvalues  if weights are projected: those of the Hessian in the spheres' tangent spaces
            weight_eigenvalues   if weights are computed from other parameters, as WN's from directions and scales:
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
    """Train and measure, except runs with saved measurements.

    Options: `networks` (the overrides of each), `methods`, `seeds`, `moments` (as fractions of a run), `examples`
    (their number for the Hessian, by network), `top` (the number of eigenvalues), `tolerance` (relative, of an
    eigenvalue).
    """
    keep_freed_memory()
    runs = [
        (network, method, seed)
        for network in options["networks"]
        for method in options["methods"]
        for seed in range(1, options["seeds"] + 1)
    ]
    networks: dict[str, Any] = {name: {"methods": {}} for name in options["networks"]}
    for number, (network, method, seed) in enumerate(runs):
        progress(number, len(runs), f"{network} {method} seed {seed}")
        overrides = {**options["networks"][network], "model": network, "method": method, "seed": seed}
        make = partial(_run, overrides, options, options["examples"][network])
        part = parts.load_or_make(f"{network}-{method}-{seed}", make)
        networks[network]["methods"].setdefault(method, []).append(part["moments"])
    progress(len(runs), len(runs), "done")
    shared = {name: options[name] for name in ("methods", "moments", "top", "seeds")}
    return {**shared, "networks": networks}


def _run(overrides: Mapping[str, Any], options: Mapping[str, Any], examples: int) -> dict[str, Any]:
    config, dataset = resolve(overrides)
    training = Training(config, dataset, Processes())
    stops = {round(share * training.total_steps) for share in options["moments"]}
    settings = {name: options[name] for name in ("top", "tolerance")}
    moments: list[dict[str, Any]] = []

    def measure(step: int, batch: tuple[Tensor, Tensor]) -> None:
        inputs, labels = (part[:examples] for part in batch)
        weights = () if training.projection is None else training.projection.selection.constrained
        moments.append({"step": step, **spectrum(training.model, inputs, labels, weights, **settings)})

    training.probe(stops, measure, examples)
    return {"moments": moments}


def spectrum(
    model: nn.Module, inputs: Tensor, labels: Tensor, weights: Any = (), *, top: int, tolerance: float = 1e-3
) -> dict[str, Any]:
    """Return the loss in training mode, the largest eigenvalues of its Hessian, and the gradient norm by weight.

    For projected `weights`, the eigenvalues in the tangent spaces of their spheres are included; for weights computed
    from other parameters, those with respect to the weights themselves. The model is not changed.
    """
    buffers, mode = [(buffer, buffer.clone()) for buffer in model.buffers()], model.training
    model.train()
    try:
        with _twice_differentiable(model):
            result = _spectrum(model, inputs, labels, weights, top, tolerance)
        parametrized = [module for module in model.modules() if parametrize.is_parametrized(module)]
        if parametrized:
            result["weight_eigenvalues"] = _weight_eigenvalues(model, inputs, labels, parametrized, top, tolerance)
        return result
    finally:  # only after the backward passes, which need the buffers' values
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
    """Compute g v / |v| from scales g and directions v, in the layout of torch's `weight_norm`."""

    def forward(self, scales: Tensor, directions: Tensor) -> Tensor:
        fan_in = [dimension for dimension, size in enumerate(scales.shape) if size == 1]
        norms: Tensor = torch.linalg.vector_norm(directions, dim=fan_in, keepdim=True)
        return directions * (scales / norms)


@contextmanager
def _twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Compute normalised weights by operations with correct second derivatives.

    The backward of torch's own operation, when differentiated, treats the norms as constants, as seen in torch 2.13
    (`gradgradcheck` of `torch._weight_norm`). Once that passes, this function is not needed.
    """
    lists: list[Any] = [each for each in model.modules() if isinstance(each, parametrize.ParametrizationList)]
    originals = [(each, each[0]) for each in lists if hasattr(each, "original1")]
    try:
        for each, _ in originals:
            each[0] = _DirectionAndScale()
        yield
    finally:
        for each, original in originals:
            each[0] = original


def _weight_eigenvalues(
    model: nn.Module, inputs: Tensor, labels: Tensor, parametrized: list[nn.Module], top: int, tolerance: float
) -> list[float]:
    """Return the largest eigenvalues with respect to the parametrised weights and all other parameters."""
    lists: list[Any] = [module.parametrizations for module in parametrized]
    proxies = {id(proxy) for each in lists for proxy in each.parameters()}
    with parametrize.cached():  # the forward pass then uses the very tensors whose gradients are taken
        weights = [getattr(module, name) for module, each in zip(parametrized, lists, strict=True) for name in each]
        others = [each for each in model.parameters() if each.requires_grad and id(each) not in proxies]
        loss = nn.functional.cross_entropy(model(inputs), labels)
    _, product = _derivatives(loss, [*weights, *others])
    size = sum(variable.numel() for variable in (*weights, *others))
    return largest(product, size, weights[0].dtype, top, tolerance)


def _derivatives(loss: Tensor, variables: list[Any]) -> tuple[tuple[Tensor, ...], Callable[[Tensor], Tensor]]:
    """Return the gradients of a loss, and a function that multiplies a vector by its Hessian."""
    gradients = torch.autograd.grad(loss, variables, create_graph=True)

    def product(vector: Tensor) -> Tensor:
        pieces = _pieces(vector, variables)
        rows = torch.autograd.grad(gradients, variables, pieces, retain_graph=True, materialize_grads=True)
        return parameters_to_vector([row.contiguous() for row in rows]).detach()

    return gradients, product


def largest(
    product: Callable[[Tensor], Tensor], size: int, dtype: torch.dtype, top: int, tolerance: float
) -> list[float]:
    """Return the largest eigenvalues of a symmetric operator, in descending order, by Lanczos iterations.

    The start vector is fixed. Fewer eigenvalues are returned if not all converge.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh  # takes a second to import

    def multiply(vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        result: np.ndarray[Any, Any] = product(torch.from_numpy(vector.reshape(-1).copy()).to(dtype)).numpy()
        return result

    kind = np.float64 if dtype == torch.float64 else np.float32
    operator = LinearOperator((size, size), matvec=multiply, dtype=kind)
    start = np.random.default_rng(0).standard_normal(size).astype(kind)
    try:
        values = eigsh(operator, top, which="LA", v0=start, tol=tolerance, maxiter=50, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        values = error.eigenvalues  # those that have converged
    return sorted(map(float, values), reverse=True)


def _pieces(vector: Tensor, parameters: list[Any]) -> list[Tensor]:
    pieces = [torch.empty_like(parameter, memory_format=torch.contiguous_format) for parameter in parameters]
    vector_to_parameters(vector, pieces)
    return pieces


def _tangent(vector: Tensor, parameters: list[nn.Parameter], weights: Any) -> Tensor:
    """Remove the components along the projected weights from a direction in parameter space, equation (7)."""
    pieces = dict(zip(map(id, parameters), _pieces(vector, parameters), strict=True))
    for weight in weights:
        piece = pieces[id(weight.tensor)]
        pieces[id(weight.tensor)] = tangent_(piece.clone(), weight.tensor, weight.axes)
    return parameters_to_vector(list(pieces.values()))
