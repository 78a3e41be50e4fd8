"""Existing selections: used with the optimizers of `attach`, and compared with a model that has changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from inspect import signature
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from pbwn.axes import Axes
from pbwn.paths import dtensor
from pbwn.selection.names import NamedParameter, matches, named_parameters
from pbwn.selection.output_layer import named_heads
from pbwn.selection.rules import FROZEN, NOT_HELD, Reason, default_axes
from pbwn.selection.selector import select
from pbwn.selection.table import shape_text
from pbwn.selection.weights import Choice, ConstrainedWeight, Selection, held_by
from pbwn.selection.zeros import with_zeros, without_zeros


def chosen(
    model: nn.Module,
    selection: Selection | None,
    *,
    optimizer: Iterable[Optimizer] | None = None,
    frozen: Literal["leave", "constrain"] = "leave",
    zero: Collection[str] = (),
    zero_too: bool = False,
    **options: Any,
) -> Selection:
    """Return a given selection, restricted to these optimizers, or that of `select` with these options.

    `zero` names weights that were zero when training started, and are left alone though they are no longer zero;
    `zero_too` constrains weights of zeros like any other. Where weights are sharded, every process has to call this.
    """
    if selection is None:
        selection = select(model, optimizer=optimizer, frozen=frozen, **options)
    elif not isinstance(selection, Selection):
        raise TypeError(f"selection must be what pbwn.select(model) returned; got {type(selection).__name__}")
    else:
        for name, option in options.items():
            default = signature(select).parameters[name].default
            if option != default and (option or default):
                raise ValueError(f"selection= says which weights are constrained: pass {name}= to pbwn.select instead")
        _check_model(model, selection)
        dtensor.reshard(model)
    if zero_too:
        selection = with_zeros(selection)
    held = None if optimizer is None else held_by(optimizer)
    reasons: dict[ConstrainedWeight, Reason] = {}
    for weight in selection.constrained:
        if held is not None and id(weight.tensor) not in held:
            reasons[weight] = NOT_HELD
        elif frozen == "leave" and not weight.tensor.requires_grad:
            reasons[weight] = FROZEN
    selection = selection.without(reasons)
    return selection if zero_too else without_zeros(selection, known=zero)


def _check_model(model: nn.Module, selection: Selection) -> None:
    """Refuse a selection of another model, or of this one before its weights changed."""
    found = {named.name: named for named in named_parameters(model)}
    for weight in selection.constrained:
        named = found.get(weight.name)
        if named is None or named.module is not weight.module or tuple(named.parameter.shape) != weight.shape:
            raise ValueError(
                f"the selection is not of this model as it is now: it has no weight {weight.name!r} of shape "
                f"{shape_text(weight.shape)} in the same layer. Call pbwn.select(model) again"
            )


def unconstrained(model: nn.Module, selection: Selection, parameters: Iterable[NamedParameter]) -> list[str]:
    """Return the trained parameters that would be constrained by now: untrained when selected, or new in the model."""
    by_name = {name: other for other in selection.left_alone for name in (other.name, *other.others)}
    # A parameter's name changes when layers are added or removed; its attribute of its module does not.
    by_attribute = {(other.module, other.name.rpartition(".")[2]): other for other in selection.left_alone}
    found, new = [], []
    for named in parameters:
        known = by_name.get(named.name) or by_attribute.get((named.module, named.attribute))
        if known is None:
            new.append(named)
        elif known.reason.untrained:
            found.append(named.name)
    heads = named_heads(model) if new and selection.choice.spares_heads else frozenset()
    return found + [named.name for named in new if _is_default(named, selection.choice, heads)]


def _is_default(named: NamedParameter, choice: Choice, heads: Collection[nn.Module]) -> bool:
    """Whether a parameter that is new in the model would be constrained."""
    if any(matches(pattern, named.name) for pattern in choice.skip):
        return False
    is_named = choice.includes([named.name])
    verdict = default_axes(named, choice.direction, is_named=is_named, output_layer=heads)
    if isinstance(verdict, Axes):
        return is_named or not choice.only
    return is_named and verdict.unknown
