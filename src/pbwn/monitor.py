"""What the constraint does during training: drift, shares along the weight, angles, effective rates, jumps of the loss.

A record is measured in float64 on the weights' own device, and read with one host synchronisation. Steps that are not
recorded cost one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from pbwn import functional
from pbwn.axes import Axes
from pbwn.constraint import Constraint
from pbwn.forward import restoring_model
from pbwn.paths import dtensor
from pbwn.selection import ConstrainedWeight
from pbwn.selection.table import Table, fold, wrapped

QUANTITIES = {
    "norm": "norm before the projection",
    "drift": "drift: largest deviation before it",
    "gradient_share": "share of the gradient along w",
    "update_share": "share of the update along w",
    "angle": "angle turned (rad)",
    "effective_rate": "effective rate of SGD, lr / |w|²",
}
# In the table: how each is titled and written.
_COLUMNS = {
    "norm": ("norm", ".3f"),
    "drift": ("drift", ".1e"),
    "gradient_share": ("gradient", ".3f"),
    "update_share": ("update", ".3f"),
    "angle": ("angle", ".1e"),
    "effective_rate": ("lr/|w|²", ".1e"),
}
_LEGEND = (
    "gradient, update: their share along w, 0 is tangent to the sphere. angle: radians turned, the measure for every "
    "optimizer; lr/|w|² is the effective rate of SGD. Weights shown as one: medians, and the largest drift."
)


class Monitor:
    """What `projection.monitor()` returns: records of plain numbers, by weight and step.

    Attributes:
        records: a dictionary for each weight and recorded step: `step`, `weight`, whether the step `projected`, and

            - `norm`, the mean norm of the weight's neurons after the optimizer's step, before the projection;
            - `drift`, their largest relative deviation from the constraint at that moment;
            - `gradient_share`, the norm of the parts `(w·g) w / |w|²` of the gradient over its own norm, and
              `update_share`, the same for the optimizer's update: 0 is tangent to the spheres, 1 along the weights;
            - `angle`, by which the whole step, projection included, has turned the neurons on average, in radians;
            - `effective_rate`, the mean of `lr / |w|²`, with the norms before the step: the effective learning rate of
              SGD. With Adam or `step="angle"` it says little; `angle` measures the same for every optimizer.

            A quantity that is not defined, such as the share of a gradient that is zero, or the angle of weights
            that are not finite, is NaN.
        losses: if a loss was given, a dictionary for each projection of a recorded step and each call of `project()`:
            `step`, `before` and `after`, the jump of figure 2b.
    """

    def __init__(
        self,
        *,
        every: int,
        loss: Callable[[], Any] | None = None,
        writer: Any = None,
        on_record: Callable[[list[dict[str, Any]]], None] | None = None,
        stop: Callable[[], Callable[[], None] | None],
    ) -> None:
        """Use `projection.monitor`."""
        if isinstance(every, bool) or not isinstance(every, Integral) or int(every) < 1:
            raise ValueError(f"every must be a positive integer; got {every!r}")
        if loss is not None and not callable(loss):
            raise TypeError(
                f"loss must be a function without arguments that returns the loss; got {type(loss).__name__}"
            )
        if writer is not None and not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(
                "writer must be a torch.utils.tensorboard.SummaryWriter, or have its add_scalar method; got "
                f"{type(writer).__name__}"
            )
        if on_record is not None and not callable(on_record):
            raise TypeError(f"on_record must be a function of a record; got {type(on_record).__name__}")
        self.records: list[dict[str, Any]] = []
        self.losses: list[dict[str, Any]] = []
        self.every: int = int(every)
        self._loss: Callable[[], Any] | None = loss
        self._writer: Any = writer
        self._on_record: Callable[[list[dict[str, Any]]], None] | None = on_record
        self._stop: Callable[[], Callable[[], None] | None] = stop
        self._kinds: dict[str, object] = {}  # what weights that are shown as one have in common

    def stop(self) -> None:
        """Stop recording. The records stay."""
        stop = self._stop()
        if stop is not None:
            stop()

    def latest(self) -> list[dict[str, Any]]:
        """The latest record of each weight."""
        return list({record["weight"]: record for record in self.records}.values())

    def table(self) -> str:
        """The latest record of each weight, as a table; weights of repeated blocks as one, with their medians."""
        if not self.records:
            return self._nothing
        latest = self.latest()
        weights = fold(latest, name=lambda each: str(each["weight"]), same=lambda each: self._kinds[each["weight"]])
        rows = [
            (name, *(format(_typical(quantity, records), form) for quantity, (_, form) in _COLUMNS.items()))
            for name, records in weights
        ]
        titles = [title for title, _ in _COLUMNS.values()]
        table = Table(["weight", *titles], rows, right=titles).text()
        steps = [record["step"] for record in latest]
        when = f"step {max(steps)}" if min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}"
        return f"{when}\n\n{table}\n\n{wrapped(_LEGEND)}"

    @property
    def _nothing(self) -> str:
        """What there is to say before the first record."""
        first, second = self.every, 2 * self.every
        return f"no step recorded yet: recorded are steps {first}, {second}, ...; monitor(every=1) records each"

    def plot(self) -> Any:
        """A matplotlib figure: a panel for each quantity, a line for each weight, over the steps."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "a plot needs matplotlib: pip install matplotlib, or use .records or .table()", name=error.name
            ) from error
        if not self.records and not self.losses:
            raise RuntimeError(self._nothing)
        names = list(dict.fromkeys(record["weight"] for record in self.records))
        figure = Figure(figsize=(10, 9 if self.losses else 6), layout="constrained")
        grid = figure.subplots(3 if self.losses else 2, 3, squeeze=False)
        for axes, (quantity, title) in zip(grid[:2].flat, QUANTITIES.items(), strict=True):
            for name in names:
                lines = [(each["step"], each[quantity]) for each in self.records if each["weight"] == name]
                axes.plot(*zip(*lines, strict=True), label=name, linewidth=1)
            axes.set_title(title, fontsize=9)
            axes.set_xlabel("step")
        grid[1][2].set_ylim(bottom=0)  # on the sphere it is constant but for rounding, which is not to be magnified
        if self.losses:
            steps = [each["step"] for each in self.losses]
            for when, style in (("before", "o-"), ("after", "x-")):
                values = [each[when] for each in self.losses]
                grid[2][0].plot(steps, values, style, label=f"{when} the projection", markersize=3, linewidth=1)
            grid[2][0].set_title("loss", fontsize=9)
            grid[2][0].set_xlabel("step")
            grid[2][0].legend(fontsize=7)
            for axes in grid[2][1:]:
                axes.axis("off")
        if 0 < len(names) <= 12:
            grid[0][0].legend(fontsize=6)
        return figure

    def metrics(self, prefix: str = "pbwn") -> dict[str, float]:
        """The latest record of each weight with one name for each number, for a logger."""
        return {
            f"{prefix}/{quantity}/{record['weight']}": record[quantity]
            for record in self.latest()
            for quantity in QUANTITIES
            if not isnan(record[quantity])
        }

    def __repr__(self) -> str:
        steps = len({record["step"] for record in self.records})
        return f"<Monitor: every {self.every} steps, {steps:,} recorded>"

    def __str__(self) -> str:
        return self.table() if self.records else repr(self)

    def is_due(self, step: int) -> bool:
        """Whether a step is recorded."""
        return step % self.every == 0

    def loss_of(self, model: nn.Module) -> Tensor | None:
        """The loss now, if one was given; the model and random states are left as they were."""
        if self._loss is None:
            return None
        with restoring_model(model), torch.no_grad():
            loss = self._loss()
        if not isinstance(loss, Real) and not (isinstance(loss, Tensor) and loss.numel() == 1):
            found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise TypeError(f"the loss of a monitor must be one number or a tensor with one; loss() returned {found}")
        return torch.as_tensor(loss, dtype=torch.float32).detach().reshape(()).clone()

    def add_losses(self, step: int, before: Tensor | None, after: Tensor | None) -> None:
        """Record the loss around a call of `project()`."""
        if before is not None and after is not None:
            self._note_losses(step, *torch.stack([before, after.to(before.device)]).tolist())

    def add(
        self,
        watched: Watched,
        *,
        rates: Sequence[float | Tensor | None],
        projected: bool,
        losses: Sequence[Tensor | None],
    ) -> None:
        """Read the quantities of a step, all at once, and pass them on."""
        quantities = [one for each in watched.quantities(rates) for one in each]
        known = [loss for loss in losses if loss is not None]
        device, dtype = quantities[0].device, quantities[0].dtype
        values = torch.stack([one.to(device, dtype) for one in (*quantities, *known)]).tolist()
        found = []
        self._kinds |= {weight.name: (weight.layer, weight.shape) for weight in watched.weights}
        for index, weight in enumerate(watched.weights):
            mine = values[index * len(QUANTITIES) : (index + 1) * len(QUANTITIES)]
            record = dict(zip(QUANTITIES, mine, strict=True))
            found.append({"step": watched.step, "weight": weight.name, "projected": projected, **record})
        self.records += found
        if len(known) == 2:
            self._note_losses(watched.step, *values[-2:])
        if self._writer is not None:
            for record in found:
                for quantity in QUANTITIES:
                    self._writer.add_scalar(f"pbwn/{quantity}/{record['weight']}", record[quantity], record["step"])
        if self._on_record is not None:
            self._on_record(found)

    def _note_losses(self, step: int, before: float, after: float) -> None:
        self.losses.append({"step": step, "before": before, "after": after})
        if self._writer is not None:
            self._writer.add_scalar("pbwn/loss_before_projection", before, step)
            self._writer.add_scalar("pbwn/loss_after_projection", after, step)


@dataclass
class Watched:
    """A step that is recorded, while it is taken.

    Args:
        step: its number.
        weights: the weights that the step moves.
        before: copies of what it starts from.
    """

    step: int
    weights: Sequence[ConstrainedWeight]
    before: Sequence[Tensor]
    _starts: dict[int, Tensor] = field(default_factory=dict)  # the norms before the step
    _gradients: list[Tensor | None] = field(default_factory=list)
    _updates: list[Tensor] = field(default_factory=list)
    _norms: list[Tensor] = field(default_factory=list)
    _drifts: list[Tensor] = field(default_factory=list)
    _angles: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def see_gradients(self) -> None:
        """Measure the gradients as they are; the first time in a step, where a closure completes them several times."""
        for index, weight in enumerate(self.weights if not self._gradients else ()):
            gradient, start = _gradient_of(weight.tensor), _wide(self.before[index])
            share = None if gradient is None else self._share_along(index, start, _wide(gradient))
            self._gradients.append(share)

    @torch.no_grad()
    def see_updates(
        self, stored: Sequence[Tensor], constraint: Constraint, radii: Mapping[str, float | Tensor]
    ) -> None:
        """Measure what the optimizer has done to the weights."""
        for index, (weight, tensor) in enumerate(zip(self.weights, stored, strict=True)):
            start, now = _wide(self.before[index]), _wide(tensor)
            self._updates.append(self._share_along(index, start, now - start))
            norms, radius = _row_norms(now, weight.axes), radii.get(weight.name)
            own = radius.to(norms) if isinstance(radius, Tensor) else radius
            deviations = constraint.deviations(norms, own)
            self._norms.append(dtensor.gather(norms, now, weight.axes).mean())
            self._drifts.append(dtensor.gather(deviations, now, weight.axes).max())

    @torch.no_grad()
    def see_results(self, stored: Sequence[Tensor]) -> None:
        """Measure where the whole step has led: the angle between each neuron's weights before and after, their mean.

        From |a - b|² = (|a| - |b|)² + |a||b| |a/|a| - b/|b||²: the angle's cosine has no digits left where it is small.
        """
        for index, (weight, tensor) in enumerate(zip(self.weights, stored, strict=True)):
            start, now, axes = _wide(self.before[index]), _wide(tensor), weight.axes
            old, new, apart = self._start(index, start), _row_norms(now, axes), _row_norms(now - start, axes)
            squared = ((apart - (new - old)) * (apart + (new - old)) / old / new).clamp(0, 4)
            angles = 2 * torch.atan2(functional.roots(squared), functional.roots(4 - squared))
            angles = angles.where((old != 0) & (new != 0), 0)  # a row of zeros has no direction to turn
            self._angles.append(dtensor.gather(angles, now, axes).mean())

    @torch.no_grad()
    def quantities(self, rates: Sequence[float | Tensor | None]) -> Iterable[tuple[Tensor, ...]]:
        """The quantities of each weight, in the order of `QUANTITIES`."""
        for index, weight in enumerate(self.weights):
            norms = dtensor.gather(self._starts[index], self.before[index], weight.axes)
            alive = norms > 0
            inverse = norms.square().reciprocal().where(alive, 0).sum() / alive.sum()
            missing, rate = torch.full_like(inverse, float("nan")), rates[index]
            effective = missing if rate is None else inverse * (rate.to(inverse) if isinstance(rate, Tensor) else rate)
            gradient = self._gradients[index] if self._gradients else None
            share = missing if gradient is None else gradient
            yield (self._norms[index], self._drifts[index], share, self._updates[index], self._angles[index], effective)

    def _share_along(self, index: int, start: Tensor, vector: Tensor) -> Tensor:
        """The norm of a vector's part along each neuron's weights, over the vector's norm: the paper's (w·g) w."""
        axes, norms = self.weights[index].axes, self._start(index, start)
        along = (dtensor.row_dots(start, vector, axes) / norms).where(norms > 0, 0)
        lengths = _row_norms(vector, axes)
        part, whole = (dtensor.gather(values, start, axes).square().sum() for values in (along, lengths))
        return functional.roots(part / whole).clamp(max=1)

    def _start(self, index: int, start: Tensor) -> Tensor:
        """The norms of a weight's neurons before the step, measured once."""
        if index not in self._starts:
            self._starts[index] = _row_norms(start, self.weights[index].axes)
        return self._starts[index]


def _typical(quantity: str, records: Iterable[Mapping[str, float]]) -> float:
    """One number for several weights: the largest drift, and of what else is defined the median."""
    values = torch.tensor([record[quantity] for record in records], dtype=torch.float64)
    return float(values.max() if quantity == "drift" else values.nanmedian())


def _wide(tensor: Tensor) -> Tensor:
    """A tensor in float64, in which squares of float32 are in range and small angles keep their digits."""
    return tensor.detach().to(functional.wide_dtype(tensor))


def _row_norms(tensor: Tensor, axes: Axes) -> Tensor:
    """The norms of the rows of a float64 tensor. Squares are in range: rows that are not do not matter here."""
    if dtensor.is_sharded(tensor):
        return dtensor.row_norms(tensor, axes)
    rows = axes.rows(tensor)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=tuple(range(axes.neuron_dims, rows.ndim)))
    return norms


def _gradient_of(weight: Tensor) -> Tensor | None:
    """The gradient of a weight, dense; where the weight is sharded, sharded like it."""
    if dtensor.is_sharded(weight):
        dtensor.local_gradient(weight)
    return weight.grad.to_dense() if weight.grad is not None and weight.grad.is_sparse else weight.grad
