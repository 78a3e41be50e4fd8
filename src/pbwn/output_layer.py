"""Which layer of a model is its output layer, and how that was found."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import nn

from pbwn.axes import can_be_output_layer
from pbwn.naming import named_modules, suggestion, unwrap

_GETTERS = ("get_output_embeddings", "get_classifier")


@dataclass(frozen=True)
class OutputLayer:
    """The modules that make up the output layer, and a sentence on how they were found."""

    modules: frozenset[nn.Module]
    description: str


_NONE = OutputLayer(frozenset(), "none found")


def find_output_layer(model: nn.Module, choice: str | Sequence[str] | None, *, frozen_too: bool) -> OutputLayer:
    """Find the output layer: by name, by itself where the choice is "auto", or none where it is None."""
    if choice in (None, [], ()):
        return OutputLayer(frozenset(), "constrained like any other (output_layer=None)")
    if choice != "auto":
        return _named(model, [choice] if isinstance(choice, str) else choice)
    return _by_getter(model) or _last(model, frozen_too=frozen_too) or _last(model, frozen_too=True) or _NONE


def _named(model: nn.Module, names: Sequence[str]) -> OutputLayer:
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f'output_layer is "auto", None, or the names of modules; found {names!r}')
    modules = {known: module for known, module, _ in named_modules(model) if known}
    for name in names:
        if name not in modules:
            raise ValueError(f"output_layer={name!r} is not a module of the model: {suggestion(name, list(modules))}")
    parts = frozenset(part for name in names for part in modules[name].modules())
    return OutputLayer(parts, f"{', '.join(map(repr, names))} (as given)")


def _by_getter(model: nn.Module) -> OutputLayer | None:
    """Ask the model itself, as Hugging Face and timm models can be asked."""
    inner = _held(unwrap(model))
    names = {module: name for name, module, _ in named_modules(model)}
    for getter in _GETTERS:
        method = getattr(inner, getter, None)
        if not callable(method):
            continue
        try:
            answer = method()
        except Exception:  # a getter that is not meant for this model; whatever it raises
            continue
        answers = (
            answer.values() if isinstance(answer, dict) else answer if isinstance(answer, (tuple, list)) else [answer]
        )
        heads = [head for head in answers if isinstance(head, nn.Module) and head in names]
        if heads:
            described = ", ".join(repr(names[head]) for head in heads)
            return OutputLayer(
                frozenset(part for head in heads for part in head.modules()), f"{described} (from {getter}())"
            )
    return None


def _held(model: nn.Module) -> nn.Module:
    """The model inside a module that merely holds it, such as a training module beside losses and metrics."""
    while not model._parameters:
        children = [child for child in model.children() if next(child.parameters(), None) is not None]
        if len(children) != 1 or any(callable(getattr(model, getter, None)) for getter in _GETTERS):
            break
        model = children[0]
    return model


def _last(model: nn.Module, *, frozen_too: bool) -> OutputLayer | None:
    """The last layer in order of registration that learns; not the output projection inside an attention layer.

    An adaptive softmax is one layer, whatever it consists of.
    """
    last: tuple[str, Collection[nn.Module], str] | None = None
    inside: set[nn.Module] = set()
    for name, module, parent in named_modules(model):
        learns = frozen_too or any(parameter.requires_grad for parameter in module.parameters())
        if not learns or module in inside or isinstance(parent, nn.MultiheadAttention):
            continue
        if isinstance(module, nn.AdaptiveLogSoftmaxWithLoss):
            last = name, list(module.modules()), "an adaptive softmax"
            inside.update(module.modules())
        elif isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
            last = name, list(module.modules()), "the last Linear or convolution"
        elif can_be_output_layer(module):  # it may hold other layers beside weights of its own
            last = name, [module], f"the last layer, of type {type(module).__name__}"
    if last is None:
        return None
    name, modules, kind = last
    return OutputLayer(frozenset(modules), f"{name or 'the model itself'!r} ({kind})")
