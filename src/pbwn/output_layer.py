"""Which layer of a model is its output layer, and how that was found."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from pbwn.axes import layer_axes
from pbwn.naming import named_modules, suggestion, unwrap

_GETTERS = ("get_output_embeddings", "get_classifier")


@dataclass(frozen=True)
class OutputLayer:
    """The modules that make up the output layer, and a sentence on how they were found."""

    modules: frozenset[nn.Module]
    description: str


def find_output_layer(model: nn.Module, choice: str | None) -> OutputLayer:
    """Find the output layer: by name, by itself where the choice is "auto", or none where it is None."""
    if choice is None:
        return OutputLayer(frozenset(), "constrained like any other (output_layer=None)")
    if choice != "auto":
        return _named(model, choice)
    return _by_getter(model) or _last(model)


def _named(model: nn.Module, name: str) -> OutputLayer:
    modules = {known: module for known, module, _ in named_modules(model) if known}
    if name not in modules:
        raise ValueError(f"output_layer={name!r} is not a module of the model: {suggestion(name, list(modules))}")
    return OutputLayer(frozenset(modules[name].modules()), f"{name!r} (as given)")


def _by_getter(model: nn.Module) -> OutputLayer | None:
    """Ask the model itself, as Hugging Face and timm models can be asked."""
    inner = unwrap(model)
    names = {module: name for name, module, _ in named_modules(model)}
    for getter in _GETTERS:
        method = getattr(inner, getter, None)
        if not callable(method):
            continue
        try:
            answer = method()
        except (AttributeError, NotImplementedError):  # a base class's getter, not meant for this model
            continue
        heads = [head for head in (answer if isinstance(answer, (tuple, list)) else [answer]) if head in names]
        if heads:
            described = ", ".join(repr(names[head]) for head in heads)
            return OutputLayer(
                frozenset(part for head in heads for part in head.modules()), f"{described} (from {getter}())"
            )
    return None


def _last(model: nn.Module) -> OutputLayer:
    """The last layer in order of registration, the output projection inside an attention not counted."""
    last = None
    for name, module, parent in named_modules(model):
        known = layer_axes(module)
        # Linear layers and convolutions are the ones whose outgoing weights are defined.
        if known is not None and known.outgoing and not isinstance(parent, nn.MultiheadAttention):
            last = name, module
    if last is None:
        return OutputLayer(frozenset(), "none found")
    name, module = last
    return OutputLayer(frozenset({module}), f"{name or 'the model itself'!r} (the last Linear or convolution)")
