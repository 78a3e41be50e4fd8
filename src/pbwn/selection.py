"""Which weights of a model are constrained, which are left alone, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from torch import Tensor, nn

from pbwn import text
from pbwn.axes import Axes
from pbwn.naming import named_parameters
from pbwn.reasons import Reason


@dataclass(frozen=True, eq=False)
class ConstrainedWeight:
    """A weight that is kept on its constraint, found anew in its module each time it is needed."""

    name: str
    module: nn.Module
    attribute: str
    axes: Axes
    shape: tuple[int, ...]
    padding: int | None = None  # the row that an embedding keeps at zero on purpose
    others: tuple[str, ...] = ()  # the names of tied weights beside the first

    @property
    def tensor(self) -> Tensor:
        """The parameter as it is now; sharding, `.to()` and loading may replace it at any time."""
        parameter = self.found
        if parameter is None:
            raise RuntimeError(
                f"weight {self.name!r} is gone from its {self.layer}: it was removed or parametrized after attach. "
                "Call detach() on the projection and attach anew."
            )
        return parameter

    @property
    def found(self) -> Tensor | None:
        """The same, or None where it is gone."""
        return self.module._parameters.get(self.attribute)

    @property
    def layer(self) -> str:
        """The name of its layer's type."""
        return type(self.module).__name__

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
    others: tuple[str, ...] = ()  # the names of tied parameters beside the first

    @property
    def layer(self) -> str:
        """The name of its layer's type."""
        return type(self.module).__name__


@dataclass(frozen=True)
class Selection:
    """What is constrained and what is not; prints as two tables."""

    constrained: tuple[ConstrainedWeight, ...]
    left_alone: tuple[LeftAlone, ...]
    output_layer: str

    def counterparts(self, model: nn.Module) -> tuple[ConstrainedWeight, ...]:
        """The same weights in a copy of the model."""
        found = {named.name: named for named in named_parameters(model)}
        weights = []
        for weight in self.constrained:
            named = found.get(weight.name)
            if named is None or tuple(named.parameter.shape) != weight.shape:
                raise ValueError(f"this is no copy of the model: it has no weight {weight.name!r} of the same shape")
            weights.append(replace(weight, module=named.module, attribute=named.attribute))
        return tuple(weights)

    def __str__(self) -> str:
        neurons = text.plural(sum(weight.neurons for weight in self.constrained), "neuron")
        summary = (
            f"{text.plural(len(self.constrained), 'weight')} constrained ({neurons}), "
            f"{text.plural(len(self.left_alone), 'parameter')} left alone; output layer: {self.output_layer}"
        )
        constrained = text.table(
            ["constrained", "layer", "shape", "neurons", "fan-in", "axes"],
            [(_names(w), w.layer, text.shape(w.shape), w.neurons, w.fan_in, w.axes) for w in self.constrained],
            right=["neurons", "fan-in"],
        )
        left_alone = text.table(
            ["left alone", "layer", "shape", "reason"],
            [_left_alone_row(same) for same in _grouped(self.left_alone)],
        )
        notes = [
            f"note: {w.name} has a fan-in of 1: the projection leaves nothing of it but its signs"
            for w in self.constrained
            if w.fan_in == 1
        ]
        return "\n\n".join(
            part
            for part in (
                summary,
                constrained if self.constrained else "",
                left_alone if self.left_alone else "",
                "\n".join(notes),
            )
            if part
        )


def _grouped(parameters: Iterable[LeftAlone]) -> list[list[LeftAlone]]:
    """The parameters of a module that are left alone for the same reason, together."""
    groups: dict[tuple[str, Reason, tuple[str, ...]], list[LeftAlone]] = {}
    for parameter in parameters:
        key = (parameter.name.rpartition(".")[0], parameter.reason, parameter.others)
        groups.setdefault(key, []).append(parameter)
    return list(groups.values())


def _left_alone_row(parameters: list[LeftAlone]) -> tuple[str, str, str, str]:
    """One row for parameters of one module."""
    first = parameters[0]
    prefix, dot, _ = first.name.rpartition(".")
    attributes = [parameter.name.rpartition(".")[2] for parameter in parameters]
    if len(attributes) > 4:
        attributes[3:] = [f"{len(attributes) - 3} more"]
    name = _names(first) if len(parameters) == 1 else f"{prefix}{dot}{{{', '.join(attributes)}}}"
    shapes = ", ".join(dict.fromkeys(text.shape(parameter.shape) for parameter in parameters))
    return name, first.layer, shapes, str(first.reason)


def _names(parameter: ConstrainedWeight | LeftAlone) -> str:
    """The name, and those that it is tied to."""
    others = list(parameter.others)
    if len(others) > 3:
        others[2:] = [f"{len(others) - 2} more"]
    return f"{parameter.name} (= {', '.join(others)})" if others else parameter.name
