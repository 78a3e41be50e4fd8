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
# The title and number format of each in the table.
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
            `step`, `before` and `after`, the jump in figure 2b.
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
        self._kinds: dict[str, object] = {}  # layer and shape of each weight: the table folds those that are equal

    def stop(self) -> None:
        """Stop recording. The records stay."""
        stop = self._stop()
        if stop is not None:
            stop()

    def latest(self) -> list[dict[str, Any]]:
        """Return the latest record of each weight."""
        return list({record["weight"]: record for record in self.records}.values())

    def table(self) -> str:
        """Return the latest record of each weight as a table; repeated blocks are one row, with their medians."""
        if not self.records:
            return self._empty_message
        latest = self.latest()
        weights = fold(latest, name=lambda row: str(row["weight"]), same=lambda row: self._kinds[row["weight"]])
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
    def _empty_message(self) -> str:
        """The message before the first record."""
        first, second = self.every, 2 * self.every
        return f"no step recorded yet: steps {first}, {second}, ... are recorded; monitor(every=1) records every step"

    def plot(self) -> Any:
        """Plot each quantity over the steps, with a line for each weight, and return the matplotlib figure."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "a plot needs matplotlib: pip install matplotlib, or use .records or .table()", name=error.name
            ) from error
        if not self.records and not self.losses:
            raise RuntimeError(self._empty_message)
        names = list(dict.fromkeys(record["weight"] for record in self.records))
        figure = Figure(figsize=(10, 9 if self.losses else 6), layout="constrained")
        grid = figure.subplots(3 if self.losses else 2, 3, squeeze=False)
        for axes, (quantity, title) in zip(grid[:2].flat, QUANTITIES.items(), strict=True):
            for name in names:
                points = [(record["step"], record[quantity]) for record in self.records if record["weight"] == name]
                axes.plot(*zip(*points, strict=True), label=name, linewidth=1)
            axes.set_title(title, fontsize=9)
            axes.set_xlabel("step")
        grid[1][2].set_ylim(bottom=0)  # constant on the sphere up to rounding, which should not be magnified
        if self.losses:
            steps = [loss["step"] for loss in self.losses]
            for when, style in (("before", "o-"), ("after", "x-")):
                values = [loss[when] for loss in self.losses]
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
        """Return the latest record of each weight as flat names and numbers, for a logger."""
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
        """Whether a step is to be recorded."""
        return step % self.every == 0

    def loss_of(self, model: nn.Module) -> Tensor | None:
        """Return the current loss, or None without a loss function; modes, buffers and random states are restored."""
        if self._loss is None:
            return None
        with restoring_model(model), torch.no_grad():
            loss = self._loss()
        if not isinstance(loss, Real) and not (isinstance(loss, Tensor) and loss.numel() == 1):
            found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise TypeError(
                f"the loss of a monitor must be one number or a tensor with one element; loss() returned {found}"
            )
        return torch.as_tensor(loss, dtype=torch.float32).detach().reshape(()).clone()

    def add_losses(self, step: int, before: Tensor | None, after: Tensor | None) -> None:
        """Record the loss before and after a call of `project()`."""
        if before is not None and after is not None:
            self._add_losses(step, *torch.stack([before, after.to(before.device)]).tolist())

    def add(
        self,
        measurement: StepMeasurement,
        *,
        rates: Sequence[float | Tensor | None],
        projected: bool,
        losses: Sequence[Tensor | None],
    ) -> None:
        """Record a step: read its quantities, all at once, and pass them to the writer and to `on_record`."""
        quantities = [value for of_weight in measurement.quantities(rates) for value in of_weight]
        known = [loss for loss in losses if loss is not None]
        device, dtype = quantities[0].device, quantities[0].dtype
        values = torch.stack([value.to(device, dtype) for value in (*quantities, *known)]).tolist()
        found = []
        self._kinds |= {weight.name: (weight.layer, weight.shape) for weight in measurement.weights}
        for index, weight in enumerate(measurement.weights):
            own = values[index * len(QUANTITIES) : (index + 1) * len(QUANTITIES)]
            record = dict(zip(QUANTITIES, own, strict=True))
            found.append({"step": measurement.step, "weight": weight.name, "projected": projected, **record})
        self.records += found
        if len(known) == 2:
            self._add_losses(measurement.step, *values[-2:])
        if self._writer is not None:
            for record in found:
                for quantity in QUANTITIES:
                    self._writer.add_scalar(f"pbwn/{quantity}/{record['weight']}", record[quantity], record["step"])
        if self._on_record is not None:
            self._on_record(found)

    def _add_losses(self, step: int, before: float, after: float) -> None:
        self.losses.append({"step": step, "before": before, "after": after})
        if self._writer is not None:
            self._writer.add_scalar("pbwn/loss_before_projection", before, step)
            self._writer.add_scalar("pbwn/loss_after_projection", after, step)


@dataclass
class StepMeasurement:
    """The measurements of a recorded step, while it is taken.

    Args:
        step: the number of the step.
        weights: the weights that the step moves.
        before: copies of the tensors that it starts from.
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
    def measure_gradients(self) -> None:
        """Measure the gradients; only the first time in a step, where a closure completes them several times."""
        for index, weight in enumerate(self.weights if not self._gradients else ()):
            gradient, start = _gradient_of(weight.tensor), _wide(self.before[index])
            share = None if gradient is None else self._share_along(index, start, _wide(gradient))
            self._gradients.append(share)

    @torch.no_grad()
    def measure_updates(
        self, stored: Sequence[Tensor], constraint: Constraint, radii: Mapping[str, float | Tensor]
    ) -> None:
        """Measure the optimizer's updates, and the norms that they lead to."""
        for index, (weight, tensor) in enumerate(zip(self.weights, stored, strict=True)):
            start, now = _wide(self.before[index]), _wide(tensor)
            self._updates.append(self._share_along(index, start, now - start))
            norms, radius = _row_norms(now, weight.axes), radii.get(weight.name)
            own = radius.to(norms) if isinstance(radius, Tensor) else radius
            deviations = constraint.deviations(norms, own)
            self._norms.append(dtensor.gather(norms, now, weight.axes).mean())
            self._drifts.append(dtensor.gather(deviations, now, weight.axes).max())

    @torch.no_grad()
    def measure_angles(self, stored: Sequence[Tensor]) -> None:
        """Measure the mean angle between each neuron's weights before and after the whole step.

        From |a - b|² = (|a| - |b|)² + |a||b| |a/|a| - b/|b||²: the cosine of a small angle has no digits left.
        """
        for index, (weight, tensor) in enumerate(zip(self.weights, stored, strict=True)):
            start, now, axes = _wide(self.before[index]), _wide(tensor), weight.axes
            old, new, distance = self._start(index, start), _row_norms(now, axes), _row_norms(now - start, axes)
            squared = ((distance - (new - old)) * (distance + (new - old)) / old / new).clamp(0, 4)
            angles = 2 * torch.atan2(functional.roots(squared), functional.roots(4 - squared))
            angles = angles.where((old != 0) & (new != 0), 0)  # a row of zeros has no direction to turn
            self._angles.append(dtensor.gather(angles, now, axes).mean())

    @torch.no_grad()
    def quantities(self, rates: Sequence[float | Tensor | None]) -> Iterable[tuple[Tensor, ...]]:
        """Yield the quantities of each weight, in the order of `QUANTITIES`."""
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
        """Return the norm of a vector's part along each neuron's weights, the paper's (w·g) w, over its own norm."""
        axes, norms = self.weights[index].axes, self._start(index, start)
        along = (dtensor.row_dots(start, vector, axes) / norms).where(norms > 0, 0)
        lengths = _row_norms(vector, axes)
        part, whole = (dtensor.gather(values, start, axes).square().sum() for values in (along, lengths))
        return functional.roots(part / whole).clamp(max=1)

    def _start(self, index: int, start: Tensor) -> Tensor:
        """Return the norms of a weight's neurons before the step, measured once."""
        if index not in self._starts:
            self._starts[index] = _row_norms(start, self.weights[index].axes)
        return self._starts[index]


def _typical(quantity: str, records: Iterable[Mapping[str, float]]) -> float:
    """Return one number for several weights: the largest drift, the median of any other quantity, without NaN."""
    values = torch.tensor([record[quantity] for record in records], dtype=torch.float64)
    return float(values.max() if quantity == "drift" else values.nanmedian())


def _wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, in which squares of float32 are in range and small angles keep their digits."""
    return tensor.detach().to(functional.wide_dtype(tensor))


def _row_norms(tensor: Tensor, axes: Axes) -> Tensor:
    """Return the norms of a float64 tensor's rows. Squares beyond the range of float64 are not handled."""
    if dtensor.is_sharded(tensor):
        return dtensor.row_norms(tensor, axes)
    rows = axes.rows(tensor)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=tuple(range(axes.neuron_dims, rows.ndim)))
    return norms


def _gradient_of(weight: Tensor) -> Tensor | None:
    """Return the dense gradient of a weight, sharded like the weight."""
    if dtensor.is_sharded(weight):
        dtensor.local_gradient(weight)
    return weight.grad.to_dense() if weight.grad is not None and weight.grad.is_sparse else weight.grad
