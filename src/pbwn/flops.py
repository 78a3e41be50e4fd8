"""The cost of a training step, and what the constraint adds to it (section 3.3 of the paper)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pbwn.forward import refusal_of, restoring_model
from pbwn.selection import Selection, chosen
from pbwn.selection.names import named_modules, unwrap
from pbwn.selection.table import Table


@dataclass(frozen=True)
class WeightCost:
    """The FLOPs of one constrained weight of n neurons with p weights each: its layer's step, and what is added to it.

    `step` is None where the layer itself is never called, such as the output projection inside an attention layer,
    where its work is counted.
    """

    name: str
    neurons: int
    fan_in: int
    step: int | None
    projection: float
    riemannian: int


@dataclass(frozen=True)
class Cost:
    """FLOPs of one training step of a model, and what each method adds to it; prints as a table."""

    step: int
    weights: tuple[WeightCost, ...]
    batch_size: int
    every: int

    @property
    def projection(self) -> float:
        """What the projection adds to a step, 3np / T over all weights."""
        return sum(weight.projection for weight in self.weights)

    @property
    def riemannian(self) -> int:
        """What the Riemannian gradient and the projection at every step add, 6np over all weights."""
        return sum(weight.riemannian for weight in self.weights)

    def __str__(self) -> str:
        rows = [
            (w.name, w.neurons, w.fan_in, _flops(w.step), _flops(w.projection), _flops(w.riemannian))
            for w in self.weights
        ]
        total = ("the whole step", "", "", _flops(self.step), _flops(self.projection), _flops(self.riemannian))
        shares = ("", "", "", "", _percent(self.projection, self.step), _percent(self.riemannian, self.step))
        interval = "" if self.every == 1 else f", projected every {self.every} steps"
        header = ["weight", "neurons", "fan-in", "FLOPs a step", "+ projection", "+ riemannian"]
        return (
            f"batch size {self.batch_size}{interval}\n\n"
            + Table(header, [*rows, total, shares], right=header[1:]).text()
        )


def cost(
    model: nn.Module,
    input_shape: tuple[int, ...],
    *,
    batch_size: int = 128,
    every: int = 1,
    selection: Selection | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> Cost:
    """Count the FLOPs of a training step and of each method's extra work, weight by weight.

    A layer's step is its forward pass three times: output, gradient of the input, gradient of the weight, which is
    the paper's 6mnp for a linear layer with a batch of m. The projection adds 3np / T, the Riemannian method 6np.
    It is counted on a copy of the model on the meta device, where nothing is computed; a model that cannot run there,
    such as one that depends on values, is run as it is.

    Args:
        model: any module that takes one tensor.
        input_shape: the shape of one example.
        batch_size: the number of examples in a step.
        every: the interval T between projections.
        selection: the weights to count, as `select(model)` returned them; by default those of `select(model)`.
        input_dtype: `torch.long` for a model of tokens.

    >>> model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    >>> print(cost(model, (100,), batch_size=32))
    batch size 32
    <BLANKLINE>
    weight          neurons  fan-in  FLOPs a step  + projection  + riemannian
    --------------  -------  ------  ------------  ------------  ------------
    0.weight             50     100         960 k          15 k          30 k
    the whole step                         1.06 M          15 k          30 k
                                                        1.4205%       2.8409%
    """
    for name, value in (("batch_size", batch_size), ("every", every)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer; got {value!r}")
    if not isinstance(input_shape, Sequence) or not all(isinstance(size, int) for size in input_shape):
        raise TypeError(f"input_shape must be the shape of one example, such as (3, 32, 32); got {input_shape!r}")
    selection = chosen(model, selection, frozen="leave" if selection is None else "constrain")
    steps = _step_flops(model, (batch_size, *input_shape), input_dtype)
    weights = tuple(
        WeightCost(
            name=weight.name,
            neurons=weight.neurons,
            fan_in=weight.fan_in,
            step=steps.get(weight.name.rpartition(".")[0]),
            projection=3 * weight.neurons * weight.fan_in / every,
            riemannian=6 * weight.neurons * weight.fan_in,
        )
        for weight in selection.constrained
    )
    return Cost(step=steps[""], weights=weights, batch_size=batch_size, every=every)


def _step_flops(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, int]:
    """Return the FLOPs of a training step, by module name; the model itself has the empty name."""
    inner = unwrap(model)
    try:
        forward = _forward_flops(copy.deepcopy(inner).to("meta").eval(), torch.zeros(shape, dtype=dtype, device="meta"))
    except Exception:  # anything that the meta device does not support
        device = next((parameter.device for parameter in inner.parameters()), torch.device("cpu"))
        advice = "pass the shape of one example as input_shape, and input_dtype=torch.long for a model of tokens"
        with restoring_model(inner), refusal_of(f"a batch of shape {shape}", advice):
            forward = _forward_flops(inner.eval(), torch.zeros(shape, dtype=dtype, device=device))
    return {name: 3 * flops for name, flops in forward.items()}


def _forward_flops(model: nn.Module, example: Tensor) -> dict[str, int]:
    from torch.utils.flop_counter import FlopCounterMode  # imports triton where that is installed

    counted: dict[str, int] = {}
    counter, uncounted = FlopCounterMode(display=False), [0]

    def enter(name: str) -> None:
        counted[name] = counted.get(name, 0) - counter.get_total_flops() - uncounted[0]

    def leave(name: str) -> None:
        counted[name] += counter.get_total_flops() + uncounted[0]

    def count_bilinear(module: nn.Module, _: Any, output: Tensor) -> None:
        assert isinstance(module, nn.Bilinear)
        features = module.out_features * module.in1_features * module.in2_features
        uncounted[0] += 2 * output[..., 0].numel() * features

    innermost = dict(named_modules(model))  # a wrapper and what it wraps have one name
    handles = [
        module.register_forward_hook(count_bilinear)  # which torch does not count
        for module in model.modules()
        if getattr(type(module), "forward", None) is nn.Bilinear.forward
    ]
    for name, module in innermost.items():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: enter(name)))
        handles.append(module.register_forward_hook(lambda *_, name=name: leave(name)))
    try:
        with counter, torch.no_grad():
            model(example)
    finally:
        for handle in handles:
            handle.remove()
    return counted


def _flops(count: float | None) -> str:
    if count is None:
        return "-"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.4f}%" if whole else ""
