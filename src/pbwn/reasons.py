"""What a parameter is by itself: a weight with known neuron axes, or something to leave alone, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from pbwn.axes import Axes, can_be_registered, layer_axes
from pbwn.naming import NamedParameter

SUPPORTED_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NORMALISATION = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# How weight_norm, spectral_norm and pruning in their older, hook-based forms rename the weight that they recompute.
_RECOMPUTED_SUFFIXES = ("_g", "_v", "_orig")


@dataclass(frozen=True)
class Reason:
    """Why a parameter is left alone; `unknown` where that is for lack of knowledge rather than by intention.

    `untrained` where it would be constrained if it were trained.
    """

    text: str
    unknown: bool = False
    untrained: bool = False

    def __str__(self) -> str:
        return self.text


_SCRIPTED = Reason("scripted modules are not supported", unknown=True)


def axes_or_reason(named: NamedParameter, direction: str, *, frozen_too: bool) -> Axes | Reason:
    """The neuron axes of a parameter, or the reason that lies in itself to leave it alone."""
    known = layer_axes(named.module)
    if known is not None and known.find(named.module, named.attribute, "incoming") is not None:
        axes = known.find(named.module, named.attribute, direction)
        found = _obstacle(named) or _fitting(named, axes, known.dims_of(named.attribute))
        if named.parameter.requires_grad or frozen_too or named.parameter.ndim < 2:
            return found
        return Reason("frozen", untrained=isinstance(found, Axes))
    layer = type(named.module)
    other = f" or pbwn.register({layer.__name__}, ...)" if can_be_registered(layer) else ""
    return _kind(named) or Reason(f"neuron axes unknown: pass axes={{{named.name!r}: ...}}{other}", unknown=True)


def _obstacle(named: NamedParameter) -> Reason | None:
    """Why a weight with known axes cannot be constrained as it is."""
    parameter = named.parameter
    if parameter.ndim < 2:
        return Reason(f"{parameter.ndim}-d parameter")
    if parameter.numel() == 0:
        return Reason("empty")
    return unsupported(named)


def unsupported(named: NamedParameter) -> Reason | None:
    """Say so where rows cannot be normalised in a weight's dtype or memory, or the weight cannot be reached."""
    parameter = named.parameter
    if isinstance(named.module, torch.jit.ScriptModule):
        return _SCRIPTED
    if parameter.layout is not torch.strided:
        return Reason(f"layout {str(parameter.layout).removeprefix('torch.')} is not supported")
    if any(count > 1 and stride == 0 for count, stride in zip(parameter.shape, parameter.stride(), strict=True)):
        return Reason("expanded: several of its numbers are one in memory")
    if parameter.dtype in SUPPORTED_DTYPES:
        return None
    return Reason(f"dtype {str(parameter.dtype).removeprefix('torch.')} is not supported")


def _fitting(named: NamedParameter, axes: Axes | None, dims: int | None) -> Axes | Reason:
    layer, shape = type(named.module).__name__, tuple(named.parameter.shape)
    if axes is None:
        return Reason(f"outgoing weights of {layer} are not defined")
    if dims not in (None, len(shape)):
        return Reason(
            f"unusual {layer}: {len(shape)} dimensions instead of {dims}, pass axes={{{named.name!r}: ...}}",
            unknown=True,
        )
    misfit = axes.misfit(shape)
    return axes if misfit is None else Reason(f"unusual {layer}: {misfit}", unknown=True)


def _kind(named: NamedParameter) -> Reason | None:
    """What a parameter without known axes is, if it is no weight."""
    if isinstance(named.module, ParametrizationList) or _is_recomputed(named.module, named.attribute):
        return Reason("parametrized: the layer's weight is computed from it")
    if isinstance(named.module, _NORMALISATION):
        return Reason("normalisation layer")
    if re.search(r"(^|_)bias(es)?\d*(_|$)", named.attribute):
        return Reason("bias")
    if named.parameter.ndim < 2:
        return Reason(f"{named.parameter.ndim}-d parameter")
    if isinstance(named.module, torch.jit.ScriptModule):
        return _SCRIPTED
    return None if named.parameter.requires_grad else Reason("frozen")


def _is_recomputed(module: nn.Module, attribute: str) -> bool:
    parameters = module._parameters.keys()  # a scripted module's cannot be iterated otherwise
    for suffix in _RECOMPUTED_SUFFIXES:
        original = attribute.removesuffix(suffix)
        if original not in parameters and isinstance(getattr(module, original, None), Tensor):
            return True
    return False
