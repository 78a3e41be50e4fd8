"""What a parameter is by itself: a weight with known neuron axes, or something to leave alone, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from pbwn.axes import Axes, layer_axes
from pbwn.naming import NamedParameter

SUPPORTED_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NORMALISATION = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# How weight_norm, spectral_norm and pruning in their older, hook-based forms rename the weight that they recompute.
_RECOMPUTED_SUFFIXES = ("_g", "_v", "_orig")


@dataclass(frozen=True)
class Reason:
    """Why a parameter is left alone; `unknown` where that is for lack of knowledge rather than by intention."""

    text: str
    unknown: bool = False

    def __str__(self) -> str:
        return self.text


def axes_or_reason(named: NamedParameter, direction: str, *, frozen_too: bool) -> Axes | Reason:
    """The neuron axes of a parameter, or the reason that lies in itself to leave it alone."""
    name, module, attribute, parameter = named
    if isinstance(module, ParametrizationList) or _is_recomputed(module, attribute):
        return Reason("parametrized: the layer's weight is computed from it")
    if isinstance(module, _NORMALISATION):
        return Reason("normalisation layer")
    if "bias" in attribute:
        return Reason("bias")
    if parameter.ndim < 2:
        return Reason(f"{parameter.ndim}-d parameter")
    if not (parameter.requires_grad or frozen_too):
        return Reason("frozen")
    if parameter.dtype not in SUPPORTED_DTYPES:
        return Reason(f"dtype {str(parameter.dtype).removeprefix('torch.')} is not supported")
    return _known_axes(module, name, attribute, tuple(parameter.shape), direction)


def _known_axes(module: nn.Module, name: str, attribute: str, shape: tuple[int, ...], direction: str) -> Axes | Reason:
    layer = type(module).__name__
    known = layer_axes(module)
    incoming = known and known.find(module, attribute, "incoming")
    if known is None or incoming is None:
        return Reason(f"neuron axes unknown: pass axes={{{name!r}: ...}} or pbwn.register({layer}, ...)", unknown=True)
    axes = known.find(module, attribute, direction)
    if axes is None:
        return Reason(f"outgoing weights of {layer} are not defined")
    misfit = axes.misfit(shape)
    return axes if misfit is None else Reason(f"unusual {layer}: {misfit}", unknown=True)


def _is_recomputed(module: nn.Module, attribute: str) -> bool:
    for suffix in _RECOMPUTED_SUFFIXES:
        original = attribute.removesuffix(suffix)
        if original != attribute and original not in module._parameters and hasattr(module, original):
            return True
    return False
