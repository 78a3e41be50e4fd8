"""The check of the constrained weights: how far rows are off the sphere, and which are dead or broken."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from torch import Tensor

from pbwn.constraint import TOLERANCE, Constraint
from pbwn.paths import dtensor
from pbwn.selection import ConstrainedWeight
from pbwn.selection.table import Table, fold, plural

RowIndex: TypeAlias = "int | tuple[int, ...]"


@dataclass(frozen=True)
class WeightReport:
    """One weight, as the next step starts from it: the largest relative deviation of its rows, and its special rows.

    A row's index is a number, or a tuple where several axes index the neurons. `dead` rows are zero, `nonfinite` ones
    hold NaN or infinity, `free` ones are not constrained, because they had no norm to keep at attach. Zero rows do not
    count for the deviation; `zero_rows_allowed` says whether the constraint permits the ones found.
    `between_projections` says that a step has moved the weight since its last projection, as happens with `every` > 1.
    `held` says whether an optimizer still holds the weight: none holds one that was replaced after attach. `in_model`
    says whether its layer is still part of the model.
    """

    name: str
    deviation: float
    tolerance: float
    dead: tuple[RowIndex, ...]
    nonfinite: tuple[RowIndex, ...]
    free: tuple[RowIndex, ...]
    zero_rows_allowed: bool
    between_projections: bool
    held: bool
    in_model: bool


@dataclass(frozen=True)
class Certificate:
    """The state of the constrained weights; `ok` if they are as the constraint requires."""

    weights: tuple[WeightReport, ...]
    hooks_in_place: bool = True
    gone: tuple[str, ...] = ()  # weights that were removed or parametrized after attach
    unconstrained: tuple[str, ...] = ()  # weights that were not trained at attach, and are by now
    stalled: tuple[str, ...] = ()  # weights with NaN in the optimizer's state, whose rows a step rule never moves again
    second_iterates: tuple[str, ...] = ()  # optimizers with a second set of weights, which no projection reaches

    @property
    def between_projections(self) -> bool:
        """Whether some weight is still to be projected."""
        return any(weight.between_projections for weight in self.weights)

    @property
    def ok(self) -> bool:
        """Whether hooks and weights are in place, no row is dead or broken, and projected weights are on the sphere."""
        return not self.problems

    @property
    def largest_deviation(self) -> float:
        """The largest relative deviation of a row, over all weights."""
        return max((weight.deviation for weight in self.weights), default=0.0)

    @property
    def dead(self) -> dict[str, tuple[RowIndex, ...]]:
        """The indices of zero rows, by the name of the weight."""
        return {weight.name: weight.dead for weight in self.weights if weight.dead}

    @property
    def nonfinite(self) -> dict[str, tuple[RowIndex, ...]]:
        """The indices of rows with NaN or infinity, by the name of the weight."""
        return {weight.name: weight.nonfinite for weight in self.weights if weight.nonfinite}

    @property
    def free(self) -> dict[str, tuple[RowIndex, ...]]:
        """The indices of rows that have been unconstrained since attach, by the name of the weight."""
        return {weight.name: weight.free for weight in self.weights if weight.free}

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing but not a problem, one sentence each."""
        found = [
            f"{name}: {_rows(rows)} unconstrained: no norm to keep at attach (zero, not finite or too small)"
            for name, rows in self.free.items()
        ]
        for name in self.second_iterates:
            found.append(
                f"{name} keeps a second set of weights, which is not checked: those it evaluates with may be off the "
                "sphere"
            )
        return tuple(found)

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that keeps this from being ok, one sentence each."""
        found = []
        if not self.hooks_in_place:
            found.append(
                "not hooked to its optimizer (detached, or the optimizer was copied, pickled or deleted): call "
                "projection.rebind(optimizer)"
            )
        for name in self.gone:
            found.append(f"{name}: removed or parametrized after attach: call detach() and attach again")
        for name in self.unconstrained:
            found.append(
                f"{name}: trained but not constrained, because it was not trained at attach: call projection.detach() "
                "and pbwn.attach(model, optimizer, ...) again"
            )
        for name in self.stalled:
            found.append(
                f"{name}: NaN in the optimizer's state, so the rows never move again: load an earlier checkpoint"
            )
        for weight in self.weights:
            if weight.nonfinite:
                found.append(f"{weight.name}: {_rows(weight.nonfinite)} not finite")
            if weight.dead and not weight.zero_rows_allowed:
                found.append(f"{weight.name}: {_rows(weight.dead)} zero and cannot be projected")
            if not weight.held:
                found.append(
                    f"{weight.name}: replaced after attach, or no longer in its optimizer: make a new optimizer, and "
                    "call rebind(optimizer)"
                )
            if not weight.in_model:
                found.append(
                    f"{weight.name}: its layer is no longer part of the model: make sure that an optimizer holds the "
                    "new layer's weights, then call detach() and attach again"
                )
            if weight.deviation > weight.tolerance and not weight.between_projections:
                found.append(
                    f"{weight.name}: off by {weight.deviation:.1e}, more than rounding allows ({weight.tolerance:.0e})"
                )
        return tuple(found)

    def __str__(self) -> str:
        when = ", between projections" if self.between_projections else ""
        weights = plural(len(self.weights), "weight")
        measured = (
            f"largest deviation {self.largest_deviation:.1e} over {weights}, "
            f"{_count(self.dead)} dead and {_count(self.nonfinite)} broken rows{when}"
        )
        verdict = "ok" if self.ok else "NOT ok"
        return f"{verdict}: " + "\n- ".join([*self.problems, measured, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"<Certificate: {str(self).partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        summary, *lines = str(self).splitlines()
        header = ["weight", "deviation", "allowed", "dead", "broken", "free"]
        rows = [
            (w.name, f"{w.deviation:.1e}", f"{w.tolerance:.0e}", len(w.dead), len(w.nonfinite), len(w.free))
            for w in self.weights
        ]
        listed = fold(rows, name=lambda row: row[0], same=lambda row: row[2:])
        worst = [(name, max(members, key=lambda row: float(row[1]))) for name, members in listed]
        table = Table(header, [(name, *row[1:]) for name, row in worst], right=header[1:])
        return "".join(f"<p>{escape(line)}</p>" for line in (summary, *lines)) + table.html()


def certify(
    weights: Sequence[ConstrainedWeight],
    constraint: Constraint,
    radii: Mapping[str, float | Tensor],
    stored: Mapping[str, Tensor] | None = None,
    *,
    between_projections: Collection[str] = (),
    not_held: Collection[str] = (),
    removed: Collection[str] = (),
) -> tuple[WeightReport, ...]:
    """Measure every weight in float64. Where weights are sharded, every process has to call this.

    `stored` has the tensors that the next step starts from, where these are not the weights.
    `between_projections` names the weights that a step has moved since their last projection, `not_held` those that no
    optimizer holds, `removed` those whose layer is no longer in the model.
    """
    stored = stored or {}
    return tuple(
        _report(
            weight,
            stored.get(weight.name, weight.tensor),
            constraint,
            radii.get(weight.name),
            between_projections=weight.name in between_projections,
            held=weight.name not in not_held,
            in_model=weight.name not in removed,
        )
        for weight in weights
    )


def _report(
    weight: ConstrainedWeight, tensor: Tensor, constraint: Constraint, radii: float | Tensor | None, **flags: bool
) -> WeightReport:
    norms = dtensor.gather(dtensor.row_norms(tensor, weight.axes), tensor, weight.axes)
    if isinstance(radii, Tensor):
        radii = dtensor.gather(radii.to(norms), tensor, weight.axes)
    deviations = constraint.deviations(norms, radii)
    finite = norms.isfinite()
    zero = norms == 0
    if weight.padding is not None:
        zero[weight.padding] = False
        deviations[weight.padding] = 0
    alive = finite & ~zero
    return WeightReport(
        name=weight.name,
        deviation=float(deviations.where(alive, 0).max()) if norms.numel() else 0.0,
        tolerance=TOLERANCE[tensor.dtype],
        dead=_indices(zero),
        nonfinite=_indices(~finite),
        free=_indices(radii == 0) if isinstance(radii, Tensor) else (),
        zero_rows_allowed=not bool((zero & (deviations > 0)).any()),
        **flags,
    )


def _indices(mask: Tensor) -> tuple[RowIndex, ...]:
    return tuple(index[0] if len(index) == 1 else tuple(index) for index in mask.nonzero().tolist())


def _rows(indices: tuple[RowIndex, ...]) -> str:
    listed = ", ".join(map(str, indices[:5])) + (", ..." if len(indices) > 5 else "")
    return f"row {listed} is" if len(indices) == 1 else f"{len(indices):,} rows ({listed}) are"


def _count(rows: Mapping[str, tuple[RowIndex, ...]]) -> int:
    return sum(len(indices) for indices in rows.values())
