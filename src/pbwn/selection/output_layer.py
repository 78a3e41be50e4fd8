"""The output layers of a model, and how they were found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import nn

from pbwn.axes import NEVER_LAST, can_be_output_layer
from pbwn.selection.names import named_modules, suggestion
from pbwn.selection.rules import is_adapter
from pbwn.selection.table import folded
from pbwn.selection.trace import trace_output

_GETTERS = ("get_output_embeddings", "get_classifier")


@dataclass(frozen=True)
class OutputLayer:
    """The modules that make up the output layers, and a sentence on how they were found."""

    modules: frozenset[nn.Module]
    description: str
    is_guess: bool = False


def find_output_layer(model: nn.Module, choice: str | Sequence[str] | None, inputs: Sequence[Any] = ()) -> OutputLayer:
    """Find the output layers: by the given names, automatically if the choice is "auto", or none if it is None.

    Automatically means: traced if there are inputs, else by the model's own getters, else by the names that such layers
    usually have, and only then by order.
    """
    if choice in (None, [], ()):
        return OutputLayer(frozenset(), "constrained like any other (output_layer=None)")
    if choice != "auto":
        return _given(model, [choice] if isinstance(choice, str) else choice)
    return _Layers(model).traced(model, inputs) if inputs else _Layers(model).output_layer()


def named_heads(model: nn.Module) -> frozenset[nn.Module]:
    """Return the output layers by the model's own getters and by their names."""
    layers = _Layers(model)
    return layers.found(*layers.heads).modules


def _given(model: nn.Module, names: Sequence[str]) -> OutputLayer:
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f'output_layer must be "auto", None, or names of modules; got {names!r}')
    modules = {known: module for known, module in named_modules(model) if known}
    for name in names:
        if name not in modules:
            raise ValueError(f"output_layer={name!r} is not a module of the model: {suggestion(name, list(modules))}")
    parts = frozenset(part for name in names for part in modules[name].modules())
    return OutputLayer(parts, f"{', '.join(map(repr, names))} (as given)")


def _parts(layer: nn.Module) -> Iterable[nn.Module]:
    """Return a layer with its parts; a registered one, which may hold other layers beside its weights, alone."""
    is_whole = isinstance(layer, (nn.AdaptiveLogSoftmaxWithLoss, nn.Linear, nn.modules.conv._ConvNd))
    return layer.modules() if is_whole else [layer]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in folded([name or "the model itself" for name in names]))


# Names that output layers have in Transformers, timm, diffusers, torchvision and in tutorials, each for one part of a
# layer's name between dots. These mean an output layer wherever they are found,
_ANYWHERE = re.compile(
    r"(\w+_)?lm_heads?|(?!pre_|feature_)(\w+_)?classifiers?(_\w+)?|qa_outputs|answer_class|vocab_projector|embed_out|"
    r"output_projection|(\w+_)?(class|cls|box|bbox|mask|label|objectness|decode|aux|auxiliary|score|codec|ctc|"
    r"segmentation|regression|detection|classification|mlm|nsp|itm|answer)_heads?|"
    r"(class|box|bbox|mask|label)(_\w+)?_(predictors?|embed|embedder)|(class|cls|box|bbox|mask|obj)_(scores?|preds?)|"
    r"aux\d*|AuxLogits|(?!\w*(router|gate|attn|attention)_)(\w+_)?logits(_\w+)?|controlnet_(\w+_)?blocks?|"
    r"(output_hypernetworks|hq_mask)_mlps?"
)
# these on the highest level where there are some,
_HIGH = re.compile(
    r"(?!\w*(proj|projection|pool|pooling|pos|position|points?|anchor|conv)_heads?)(\w+_)?heads?(_\w+)?|cls|predictors?|"
    r"(\w+_)?predictions?|(\w+_)?score|conv_out|(\w+_)?proj_out|(\w+_)?out_proj"
)
# these on the highest level of all,
_TOP = re.compile(r"fc|out|outputs?|readout|outc")
# these there too, where nothing else is found,
_FINAL = re.compile(
    r"final|last|(final|last|out|output)_(conv|layer|linear|fc|proj|projection|dense)|decoder_pred|"
    r"(conv|layer|linear|fc|dense)_(out|final|last)"
)
# and these, inside a module with one of the other names, for its last layer.
_INSIDE = re.compile(
    r"(\w+_)?out_proj|decoder|seq_relationship|(\w+_)?head(_\w+)?|predictions|out|output|projection|(linear|fc|dense|proj|conv)_out|"
    r"final_layer"
)
# Parts of a layer's name that mean a hidden layer.
_HIDDEN = re.compile(r"\w*router|gate|(?!(class|box|bbox|mask)_)\w*embed\w*|\w*(ada_?ln|modulation)\w*", re.IGNORECASE)
_HIDDEN_TOO = re.compile(
    r"\d+|\w*(tower|backbone|vision|visual|audio|projector|merger|adapter|prenet|resampler|attention|attn)\w*"
)


class _Layers:
    """The layers of a model that may be output layers, by their names, in order of registration."""

    def __init__(self, model: nn.Module) -> None:
        self._modules: dict[str, nn.Module] = {}  # of a wrapper and what it wraps, the innermost
        self._names: dict[nn.Module, str] = {}
        self._layers: dict[str, nn.Module] = {}
        self._holders: set[str] = set()  # the names of layers, and of all modules that hold one
        self._children: dict[str, list[str]] = {}
        self._wholes: dict[nn.Module, nn.Module] = {}  # modules that count as one layer, by their parts
        for name, module in named_modules(model):
            if name not in self._modules and name:
                self._children.setdefault(name.rpartition(".")[0], []).append(name)
            self._modules[name] = module
            self._names.setdefault(module, name)
            if isinstance(module, (nn.AdaptiveLogSoftmaxWithLoss, nn.MultiheadAttention)):
                self._wholes.update(dict.fromkeys(module.modules(), module))
            is_layer = can_be_output_layer(module) or isinstance(module, nn.AdaptiveLogSoftmaxWithLoss)
            if is_layer and self._wholes.get(module, module) is module and not is_adapter(name):
                self._layers[name] = module
                holder = name
                while holder not in self._holders:
                    self._holders.add(holder)
                    holder = holder.rpartition(".")[0]
        self._core = self._find_core()

    def output_layer(self) -> OutputLayer:
        """Find the output layers by the model's own getters, by their names, or by order."""
        if self._core in self._layers:
            return self.found(([self._core], self._kind(self._core)))
        heads = self.heads
        if heads:
            return self.found(*heads)
        inside = [name for name in self._layers if name.startswith(self._prefix)]
        if not inside:
            return OutputLayer(frozenset(), "none found")
        last = self._last(inside)
        if len(inside) == 1:
            return self.found(([last], "the only layer"))
        guess = self.found(([last], f"{self._kind(last)}, in order of registration"))
        return OutputLayer(guess.modules, f"guessed: {guess.description}", is_guess=True)

    def traced(self, model: nn.Module, inputs: Sequence[Any]) -> OutputLayer:
        """Find the layers that come last before the output, and output layers by name that the pass did not use.

        A model may have heads that it does not use in every pass, or only for the loss.
        """
        last, hidden = trace_output(model, inputs)
        if not last:  # no weight went through torch's functions, as in a scripted model
            return self.output_layer()
        ends = dict.fromkeys(self._wholes.get(named.module, named.module) for named in last)
        # A tied embedding is the output layer where no linear layer shares its weight; it is left alone in any case.
        heads = [module for module in ends if not isinstance(module, NEVER_LAST)] or [
            module for module in ends if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        ]
        passed = {named.module for named in (*last, *hidden)}
        known = [name for names, _ in self.heads for name in names]
        unused = [name for name in known if not passed & set(self._modules[name].modules())]
        if not heads and not unused:
            return OutputLayer(frozenset(), "none: no linear layer or convolution comes last before the output")
        traced = [self._names[head] for head in heads]
        return self.found((traced, "seen with the inputs"), (unused, f"by {_whose(unused)}, and not seen"))

    def found(self, *groups: tuple[list[str], str]) -> OutputLayer:
        """Return output layers by groups of names, each with how it was found."""
        parts = frozenset(part for names, _ in groups for name in names for part in _parts(self._modules[name]))
        return OutputLayer(parts, ", ".join(f"{_listed(names)} ({how})" for names, how in groups if names))

    @property
    def heads(self) -> list[tuple[list[str], str]]:
        """The output layers by the model's own getters, and those by their names."""
        reported, getter = self._reported()
        named = self._by_name(reported)
        if named:  # an embedding counts only if there is no other output layer
            reported = [name for name in reported if name in self._layers]
        groups = [(reported, f"from {getter}()"), (named, f"by {_whose(named)}")]
        return [group for group in groups if group[0]]

    @property
    def _prefix(self) -> str:
        return f"{self._core}." if self._core else ""

    def _find_core(self) -> str:
        """Return the name of the part of the model that its output certainly comes from.

        That is the last layer or network in a Sequential, and the model inside a module that merely holds it, such as a
        training module with losses and metrics.
        """
        core = ""
        while core not in self._layers:
            module = self._modules[core]
            children = [name for name in self._children.get(core, ()) if name in self._holders]
            is_sequence = getattr(type(module), "forward", None) is nn.Sequential.forward
            if any(callable(getattr(module, getter, None)) for getter in _GETTERS) or not children:
                break
            with_parameters = [
                name for name in self._children[core] if next(self._modules[name].parameters(), None) is not None
            ]
            if not is_sequence and (module._parameters or len(with_parameters) > 1):
                break
            core = children[-1]
        return core

    def _reported(self) -> tuple[list[str], str]:
        """Call the getters that models of Hugging Face and timm have: the layers, and the name of the getter."""
        for getter in _GETTERS:
            method = getattr(self._modules[self._core], getter, None)
            if not callable(method):
                continue
            try:
                result = method()
            except Exception:  # a getter that is not meant for this model may raise anything
                continue
            results = result.values() if isinstance(result, dict) else result
            heads = results if isinstance(results, Iterable) and not isinstance(results, nn.Module) else [results]
            known = [self._names[head] for head in heads if isinstance(head, nn.Module) and head in self._names]
            found = [end for name in known for end in self._ends(name)]
            if found:
                return list(dict.fromkeys(found)), getter
        return [], ""

    def _ends(self, head: str) -> list[str]:
        """Return the last layers of a module that is an output layer or holds several."""
        module = self._modules[head]
        if head in self._layers or isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            return [head]
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            return [end for child in self._children.get(head, ()) for end in self._ends(child)]
        inside = list(self._inside(head))
        for names in (_ANYWHERE, _INSIDE):
            found = [name for layer in inside if (name := self._head(layer, head, names, _HIDDEN_TOO)) is not None]
            if found:
                return [end for name in dict.fromkeys(found) for end in self._ends(name)]
        return self._siblings(inside[-1]) if inside else []

    def _inside(self, name: str) -> Iterable[str]:
        for child in self._children.get(name, ()):
            if not _HIDDEN.fullmatch(child.rpartition(".")[2]):
                if child in self._layers:
                    yield child
                yield from self._inside(child)

    def _siblings(self, name: str) -> list[str]:
        """Return a layer with its siblings in a ModuleDict, which has no order."""
        parent = name.rpartition(".")[0]
        is_choice = isinstance(self._modules[parent], nn.ModuleDict)
        return [child for child in self._children[parent] if child in self._layers] if is_choice else [name]

    def _by_name(self, reported: Sequence[str]) -> list[str]:
        """Return all layers that have the name of an output layer, without those already reported."""
        heads = self._find(_ANYWHERE)
        certain = {end for head in heads for end in self._ends(head)}
        heads += [name for name, layer in self._layers.items() if isinstance(layer, nn.AdaptiveLogSoftmaxWithLoss)]
        high, top = self._find(_HIGH, _HIDDEN_TOO), self._at_the_top(_TOP)
        found = [*reported, *heads]
        level = min((name.count(".") for name in found or (*high, *top)), default=0)
        is_classified = any(not name.endswith(("head", "heads")) for name in found)
        for head in (*high, *top):
            # Beside a classifier or a decoder, a head is the layer before it.
            prepares = head.rpartition(".")[2] in ("head", "heads") and is_classified
            if head.count(".") <= level and not (
                prepares and not any(name.startswith(f"{head}.") for name in reported)
            ):
                heads.append(head)
        if not reported and not heads:
            heads = self._at_the_top(_FINAL)
        ends = dict.fromkeys(end for head in dict.fromkeys(heads) for end in self._ends(head))
        modules = {self._modules[name] for name in reported}
        named = []
        for end in ends:
            is_preparation = end.endswith(".dense") and (reported or (len(ends) > 1 and end not in certain))
            if self._modules[end] not in modules and not is_preparation:
                modules.add(self._modules[end])
                named.append(end)
        return named

    def _at_the_top(self, names: re.Pattern[str]) -> list[str]:
        return [head for head in self._find(names, _HIDDEN_TOO) if "." not in head.removeprefix(self._prefix)]

    def _find(self, names: re.Pattern[str], *hidden: re.Pattern[str]) -> list[str]:
        """Return the modules with one of these names, outermost first."""
        inside = [layer for layer in self._layers if layer.startswith(self._prefix)]
        return [head for layer in inside if (head := self._head(layer, self._core, names, *hidden)) is not None]

    def _head(self, layer: str, base: str, names: re.Pattern[str], *hidden: re.Pattern[str]) -> str | None:
        """Return a layer's name up to its outermost part below `base` that names an output layer, or None."""
        path = base
        for part in layer.removeprefix(f"{base}.").split("."):
            path = f"{path}.{part}" if path else part
            if names.fullmatch(part):
                return path
            if any(pattern.fullmatch(part) for pattern in (_HIDDEN, *hidden)) or self._is_encoder(path):
                return None
        return None

    def _is_encoder(self, path: str) -> bool:
        """Whether a module is an encoder beside a decoder."""
        parent, _, own = path.rpartition(".")
        return "encoder" in own and any("decoder" in child.rpartition(".")[2] for child in self._children[parent])

    def _last(self, inside: list[str]) -> str:
        """Return the last layer by order, skipping frozen networks beside a trained one, such as a teacher."""
        branches = groupby(inside, key=lambda name: name.removeprefix(self._prefix).partition(".")[0])
        is_any_trained = self._is_trained(inside)
        return next(
            names[-1]
            for names in reversed([list(names) for _, names in branches])
            if len(names) == 1 or self._is_trained(names) or not is_any_trained
        )

    def _is_trained(self, names: Iterable[str]) -> bool:
        return any(parameter.requires_grad for name in names for parameter in self._layers[name].parameters())

    def _kind(self, name: str) -> str:
        module = self._layers[name]
        if isinstance(module, nn.AdaptiveLogSoftmaxWithLoss):
            return "an adaptive softmax"
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
            return "the last Linear or convolution"
        return f"the last layer, of type {type(module).__name__}"


def _whose(names: Sequence[str]) -> str:
    return "its name" if len(names) == 1 else "their names"
