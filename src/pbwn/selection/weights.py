"""The result of a selection: the constrained weights, the parameters left alone and why, and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pbwn.axes import Axes
from pbwn.selection.names import layer_name, matches, named_parameters
from pbwn.selection.rules import ALL_ZERO, Reason
from pbwn.selection.table import Table, fold, folded, percent, plural, shape_text, tied_names, wrapped


@dataclass(frozen=True, eq=False)
class ConstrainedWeight:
    """A weight that is kept on its constraint, looked up in its module each time it is needed."""

    name: str
    module: nn.Module
    attribute: str
    axes: Axes
    shape: tuple[int, ...]
    padding: int | None = None  # the row that an embedding keeps at zero
    others: tuple[str, ...] = ()  # the other names of a tied weight

    @property
    def tensor(self) -> Tensor:
        """The parameter as it is now; sharding, `.to()` and loading may replace it at any time."""
        parameter = self.parameter_or_none
        if parameter is None:
            raise RuntimeError(
                f"weight {self.name!r} is gone from its {self.layer}: it was removed or parametrized after attach. "
                "Call detach() on the projection and attach again."
            )
        return parameter

    @property
    def parameter_or_none(self) -> Tensor | None:
        """The parameter as it is now, or None if it is gone."""
        return self.module._parameters.get(self.attribute)

    @property
    def layer(self) -> str:
        """The name of its layer's type."""
        return layer_name(self.module)

    @property
    def neurons(self) -> int:
        """The number of its neurons."""
        return prod(self.axes.neuron_shape(self.shape))

    @property
    def fan_in(self) -> int:
        """The number of weights of one neuron."""
        return self.axes.fan_in(self.shape)


@dataclass(frozen=True, eq=False)
class LeftAlone:
    """A parameter that is not constrained, and the reason."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    reason: Reason
    others: tuple[str, ...] = ()  # the other names of a tied parameter
    weight: ConstrainedWeight | None = None  # as it would be constrained, if known

    @property
    def layer(self) -> str:
        """The name of its layer's type."""
        return layer_name(self.module)


@dataclass(frozen=True)
class Choice:
    """What the user requested, by patterns over the names of parameters and modules."""

    only: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    axes: dict[str, Axes] = field(default_factory=dict)
    direction: str = "incoming"
    per: str = "neuron"
    spares_heads: bool = True  # output layers are found and left alone

    def includes(self, names: Iterable[str]) -> bool:
        """Whether `only`, `also` or `axes` match one of a weight's names: then no default leaves it alone."""
        return any(matches(pattern, name) for name in names for pattern in (*self.only, *self.also, *self.axes))


@dataclass(frozen=True, repr=False, eq=False)
class Selection:
    """Which parameters are constrained and which are not; prints as two tables."""

    constrained: tuple[ConstrainedWeight, ...]
    left_alone: tuple[LeftAlone, ...]
    output_layer: str
    choice: Choice = Choice()

    def counterparts(self, model: nn.Module) -> tuple[ConstrainedWeight, ...]:
        """Return the same weights in a copy of the model."""
        found = {named.name: named for named in named_parameters(model)}
        weights = []
        for weight in self.constrained:
            named = found.get(weight.name)
            if named is None or tuple(named.parameter.shape) != weight.shape:
                raise ValueError(f"this is not a copy of the model: it has no weight {weight.name!r} of the same shape")
            weights.append(replace(weight, module=named.module, attribute=named.attribute))
        return tuple(weights)

    def without(self, reasons: Mapping[ConstrainedWeight, Reason]) -> Selection:
        """Return a selection in which these weights are left alone too, each for its reason."""
        added = [LeftAlone(w.name, w.module, w.shape, reason, w.others, weight=w) for w, reason in reasons.items()]
        return replace(
            self,
            constrained=tuple(weight for weight in self.constrained if weight not in reasons),
            left_alone=(*self.left_alone, *added),
        )

    @property
    def unknown(self) -> tuple[LeftAlone, ...]:
        """The weights that are left alone because their neuron axes are not known."""
        return tuple(other for other in self.left_alone if other.reason.unknown)

    @property
    def zero(self) -> tuple[str, ...]:
        """The names of the weights that are left alone because all of their elements were zero."""
        return tuple(other.name for other in self.left_alone if other.reason is ALL_ZERO)

    @property
    def summary(self) -> tuple[str, ...]:
        """Lines on what is constrained, unknown and otherwise left alone, with their shares of the model."""
        unknown, sizes = self.unknown, self._sizes()
        rest = len(self.left_alone) - len(unknown)
        shares = [f"{plural(size, 'element')}, {percent(size, sum(sizes))}" for size in sizes]
        neurons = plural(sum(weight.neurons for weight in self.constrained), self._unit)
        lines = [f"{plural(len(self.constrained), 'weight')} constrained ({neurons}, {shares[0]} of the parameters)"]
        if unknown:
            whose = "its" if len(unknown) == 1 else "their"
            lines.append(f"{plural(len(unknown), 'weight')} left alone because {whose} axes are unknown ({shares[1]})")
        if rest:
            others = plural(rest, "other parameter" if unknown else "parameter")
            lines.append(f"{others} left alone ({shares[2]})")
        return tuple(lines)

    def _sizes(self) -> tuple[int, int, int]:
        """Count the elements that are constrained, those of unknown axes, and the others that are left alone."""
        unknown = sum(prod(other.shape) for other in self.unknown)
        left_alone = sum(prod(other.shape) for other in self.left_alone)
        return sum(prod(weight.shape) for weight in self.constrained), unknown, left_alone - unknown

    def __repr__(self) -> str:
        size, *_ = sizes = self._sizes()
        share = f"{plural(len(self.constrained), 'weight')} constrained ({percent(size, sum(sizes))} of the parameters)"
        unknown = f", {len(self.unknown):,} of unknown axes ({percent(sizes[1], sum(sizes))})" if self.unknown else ""
        return f"<Selection: {share}{unknown}, output layer: {self.output_layer}>"

    def __str__(self) -> str:
        return self.text()

    def text(self, max_rows: int | None = None) -> str:
        """Return the summary, both tables with this many rows at most, and notes."""
        summary = "\n".join(map(wrapped, [*self.summary, f"output layer: {self.output_layer}"]))
        tables = [table.text(max_rows) for table in self._tables() if table.rows]
        return "\n\n".join(part for part in (summary, *tables, "\n".join(map(wrapped, self._notes()))) if part)

    def _repr_html_(self) -> str:
        summary = "<br>".join(map(escape, [*self.summary, f"output layer: {self.output_layer}"]))
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return f"<p>{summary}</p>" + "".join(table.html() for table in self._tables() if table.rows) + notes

    def _tables(self) -> tuple[Table, Table]:
        rows = [
            (tied_names(w.name, w.others), w.layer, shape_text(w.shape), w.neurons, w.fan_in, str(w.axes))
            for w in self.constrained
        ]
        constrained = fold(rows, name=lambda row: row[0], same=lambda row: row[1:])
        left_alone = fold(
            [_left_alone_row(same) for same in _by_module(self.left_alone)],
            name=lambda row: row[0],
            same=lambda row: (*row[1:3], row[3].replace(row[0], "")),
        )
        return (
            Table(
                ["constrained", "layer", "shape", *self._columns, "axes"],
                [(name, *members[0][1:]) for name, members in constrained],
                right=self._columns,
            ),
            Table(
                ["left alone", "layer", "shape", "reason"],
                [(name, *row[1:3], row[3].replace(row[0], name)) for name, [row, *_] in left_alone],
            ),
        )

    @property
    def _unit(self) -> str:
        return "neuron" if self.choice.per == "neuron" else "norm"

    @property
    def _columns(self) -> list[str]:
        return ["neurons", "fan-in"] if self.choice.per == "neuron" else ["norms", "elements each"]

    def _notes(self) -> list[str]:
        thin = folded(weight.name for weight in self.constrained if weight.fan_in == 1)
        notes = [f"{name} has a fan-in of 1: the projection leaves only its signs" for name in thin]
        hints = dict.fromkeys(other.reason.hint for other in self.left_alone if other.reason.hint)
        return [f"note: {note}" for note in (*notes, *hints)]


def held_by(optimizer: Optimizer | Iterable[Optimizer]) -> set[int]:
    """Return the identities of the parameters that one or several optimizers hold."""
    is_list = isinstance(optimizer, Iterable) and not hasattr(optimizer, "param_groups")
    optimizers: list[Any] = list(optimizer) if is_list else [optimizer]  # type: ignore[arg-type]
    for each in optimizers:
        if not hasattr(each, "param_groups"):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, or a list of them; got {each!r}")
    return {id(parameter) for each in optimizers for group in each.param_groups for parameter in group["params"]}


def _by_module(parameters: Iterable[LeftAlone]) -> list[list[LeftAlone]]:
    """Group the parameters of a module that are left alone for the same reason."""
    groups: dict[tuple[str, Reason, tuple[str, ...]], list[LeftAlone]] = {}
    for parameter in parameters:
        key = (parameter.name.rpartition(".")[0], parameter.reason, parameter.others)
        groups.setdefault(key, []).append(parameter)
    return list(groups.values())


def _left_alone_row(parameters: list[LeftAlone]) -> tuple[str, str, str, str]:
    """Return the table row for parameters of one module."""
    first = parameters[0]
    prefix, dot, _ = first.name.rpartition(".")
    attributes = [parameter.name.rpartition(".")[2] for parameter in parameters]
    if len(attributes) > 2 and len(", ".join(attributes)) > 36:
        attributes[2:] = [f"{len(attributes) - 2} more"]
    alone = len(parameters) == 1
    name = tied_names(first.name, first.others) if alone else f"{prefix}{dot}{{{', '.join(attributes)}}}"
    shapes = ", ".join(dict.fromkeys(shape_text(parameter.shape) for parameter in parameters))
    return name, first.layer, shapes, str(first.reason)
