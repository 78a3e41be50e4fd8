"""The rules for a single parameter: its neuron axes, or the reason to leave it alone."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from pbwn.axes import Axes, MismatchError, WeightAxes, can_be_registered, weight_axes
from pbwn.selection.names import NamedParameter, is_scripted, layer_name

SUPPORTED_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NORMALISATION = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# The suffixes with which hook-based weight_norm, spectral_norm and pruning rename the weight that they recompute.
_RECOMPUTED_SUFFIXES = ("_g", "_v", "_orig")
# The adapters of peft, torchtune and loralib: a pair of factors of which one starts at zero, or a scale of a weight.
_ADAPTER = re.compile(
    r"(^|\.)(\w+_)?(\w*lora|lily|peanut|hira|hra|miss|deft|adamss|hada|lokr|vera|ia3|oft|boft)(_\w+)?(\.|$)",
    re.IGNORECASE,
)
_BIAS = re.compile(r"(^|_)bias(es)?\d*(_|$)")
# Parameters that are added to features, looked up or multiplied with, and belong to no neuron.
_TABLE = re.compile(
    r"(^|_)(tokens?|prompts?|probe|queries|latents?|table|pos|pos_emb|w?pe|frequencies|(\w+_)embed|embeddings?|"
    r"position(al)?(_(enc(oding)?|bias(es)?))?)(_(h|w|t|table|win(dow)?|vlm|[1-3]d))?$",
    re.IGNORECASE,
)
_GAIN = re.compile(
    r"(^|_)(gamma|gain|scales?|layer_scale|lambda|alpha|modulation|mean|std|A_log)(_?\d+)?$", re.IGNORECASE
)


@dataclass(frozen=True)
class Reason:
    """Why a parameter is left alone; `unknown` if that is because its axes are not known, rather than on purpose.

    `untrained` if it would be constrained if it were trained. `hint` is a note below the table on how to constrain it.
    """

    text: str
    unknown: bool = False
    untrained: bool = False
    hint: str = ""

    def __str__(self) -> str:
        return self.text


EMBEDDING = Reason("embedding", hint="also=[...] constrains embeddings")
OUTPUT_LAYER = Reason("output layer", hint="output_layer=None constrains the output layer too")
TIED_EMBEDDING = Reason("tied to output layer", hint=EMBEDDING.hint)
ADAPTER = Reason("adapter", hint="also=[...] constrains adapters, except rows of zeros")
FROZEN = Reason("frozen", untrained=True)
NOT_HELD = Reason("not in the given optimizers", untrained=True)
ALL_ZERO = Reason(
    "all zero",
    hint="a weight that is all zero, such as LoRA's B or the end of a residual branch that starts at zero, would be "
    "scaled up to the sphere in its first step: MaxNorm constrains it; with UnitNorm, start it from other values",
)
_SCRIPTED = Reason("scripted modules are not supported", unknown=True)


def axes_or_reason(named: NamedParameter, direction: str, *, frozen_too: bool) -> Axes | Reason:
    """Return the neuron axes of a parameter, or the reason to leave it alone that lies in the parameter itself."""
    if named.parameter.is_nested:
        return Reason("nested: a list of tensors, not a weight")
    known = weight_axes(named.module, named.attribute)
    if known is None:
        return _kind(named) or _unknown_axes(named)
    found = _obstacle(named) or _known_axes(named, known, direction)
    if named.parameter.requires_grad or frozen_too or named.parameter.ndim < 2:
        return found
    return FROZEN if isinstance(found, Axes) else Reason("frozen")


def default_axes(
    named: NamedParameter,
    direction: str,
    *,
    is_named: bool,
    output_layer: Collection[nn.Module] = (),
    frozen_too: bool = False,
) -> Axes | Reason:
    """Return the result of `axes_or_reason`, or a reason that holds unless the weight is named: its layer's role."""
    verdict = axes_or_reason(named, direction, frozen_too=frozen_too)
    if is_named or not (isinstance(verdict, Axes) or verdict.untrained or verdict.unknown):
        return verdict
    if is_adapter(named.name):
        return ADAPTER
    if isinstance(named.module, (nn.Embedding, nn.EmbeddingBag)):
        return EMBEDDING
    if named.module in output_layer:
        return Reason("output layer") if isinstance(verdict, Reason) and verdict.unknown else OUTPUT_LAYER
    return verdict


def is_adapter(name: str) -> bool:
    """Whether a parameter's name is that of an adapter, such as LoRA's factors."""
    return _ADAPTER.search(name) is not None


def unsupported(named: NamedParameter) -> Reason | None:
    """Return why a weight's rows cannot be normalised, by its dtype, memory or module, or None if they can."""
    parameter = named.parameter
    if is_scripted(named.module):
        return _SCRIPTED
    if parameter.is_inference():
        return Reason("made in inference mode, in which nothing can be trained: create the model outside it")
    if _wraps_others(parameter):
        return Reason(f"a {type(parameter).__name__}, which wraps other tensors, is not supported")
    if parameter.layout is not torch.strided:
        return Reason(f"layout {str(parameter.layout).removeprefix('torch.')} is not supported")
    if any(count > 1 and stride == 0 for count, stride in zip(parameter.shape, parameter.stride(), strict=True)):
        return Reason("expanded: several of its elements share memory")
    if parameter.dtype in SUPPORTED_DTYPES:
        return None
    return Reason(f"dtype {str(parameter.dtype).removeprefix('torch.')} is not supported")


def _wraps_others(tensor: Tensor) -> bool:
    """Whether a tensor keeps its values in others, as quantized ones do; torch's own types do not count."""
    kind = type(tensor)
    is_own = kind.__module__.partition(".")[0] == "torch"
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ and not is_own


def _obstacle(named: NamedParameter) -> Reason | None:
    """Return why a weight with known axes cannot be constrained, or None if it can."""
    parameter = named.parameter
    if parameter.ndim < 2:
        return Reason(f"{parameter.ndim}-d parameter")
    if parameter.numel() == 0:
        return Reason("empty")
    return unsupported(named)


def _known_axes(named: NamedParameter, known: WeightAxes, direction: str) -> Axes | Reason:
    layer = layer_name(named.module)
    try:
        axes = known.find(named.module, tuple(named.parameter.shape), direction)
    except MismatchError as error:
        return Reason(f"unusual {layer}: {error}, pass axes={{{named.name!r}: ...}}", unknown=True)
    return axes or Reason(f"outgoing weights of {layer} are not defined")


def _unknown_axes(named: NamedParameter) -> Reason:
    layer = type(named.module)
    other = f" or pbwn.register({layer_name(named.module)}, ...)" if can_be_registered(layer) else ""
    return Reason(f"neuron axes unknown: pass axes={{{named.name!r}: ...}}{other}", unknown=True)


def _kind(named: NamedParameter) -> Reason | None:
    """Return what a parameter without known axes is, if it is recognised, as the reason to leave it alone."""
    if isinstance(named.module, ParametrizationList) or _is_recomputed(named.module, named.attribute):
        return Reason("parametrized: the layer's weight is computed from it")
    if isinstance(named.module, _NORMALISATION):
        return Reason("normalisation layer")
    if _BIAS.search(named.attribute):
        return Reason("bias")
    if named.parameter.ndim < 2:
        return Reason(f"{named.parameter.ndim}-d parameter")
    if is_scripted(named.module):
        return _SCRIPTED
    return _table_or_gain(named) or (None if named.parameter.requires_grad else Reason("frozen"))


def _table_or_gain(named: NamedParameter) -> Reason | None:
    """Recognise tokens, tables and gains: parameters of several dimensions in which no neuron has incoming weights."""
    attribute = named.attribute
    if attribute.isdigit():  # in a list of parameters, whose name counts
        attribute = named.name.removesuffix(f".{attribute}").rpartition(".")[2]
    if _TABLE.search(attribute):
        return Reason("token or position table: not a layer's weight")
    shape = named.parameter.shape
    is_vector = len(shape) > 2 and sum(size > 1 for size in shape) <= 1
    if is_vector or _GAIN.search(attribute):
        return Reason("gain or token: one element for each feature" if is_vector else "gain: not a layer's weight")
    return None


def _is_recomputed(module: nn.Module, attribute: str) -> bool:
    parameters = module._parameters.keys()  # a scripted module's cannot be iterated otherwise
    for suffix in _RECOMPUTED_SUFFIXES:
        original = attribute.removesuffix(suffix)
        if original not in parameters and isinstance(getattr(module, original, None), Tensor):
            return True
    return False
