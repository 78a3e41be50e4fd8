"""Which dimensions of a weight index its neurons, per layer type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from typing import TypeAlias

from torch import Tensor, nn


@dataclass(frozen=True)
class Axes:
    """The dimensions of a weight that index its neurons; a neuron's weights lie along all the others.

    `Axes((0,))` fits a linear layer or a convolution, whose weight is stored (out, in, ...); `Axes((0, 1))` a stack
    of experts stored (expert, out, in). With `groups=g`, dimension 0 consists of g equal blocks, and a neuron's
    weights stay within one block: a grouped transposed convolution is stored (in, out / g, ...) and has
    `Axes((1,), groups=g)`.

    >>> Axes((0,)).neuron_shape((16, 3, 5, 5)), Axes((0,)).fan_in((16, 3, 5, 5))
    ((16,), 75)
    >>> Axes((1,), groups=2).neuron_shape((6, 4, 3, 3)), Axes((1,), groups=2).fan_in((6, 4, 3, 3))
    ((2, 4), 27)
    """

    neurons: tuple[int, ...]
    groups: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.neurons, int):
            raise TypeError(f"axes are a tuple of dimensions: write ({self.neurons},)")
        object.__setattr__(self, "neurons", tuple(self.neurons))
        if not self.neurons or any(not isinstance(d, int) or d < 0 for d in self.neurons):
            raise ValueError(f"axes are dimensions counted from 0, such as (0,) or (0, 1); found {self.neurons}")
        if len(set(self.neurons)) < len(self.neurons):
            raise ValueError(f"axes name each dimension once; found {self.neurons}")
        if not isinstance(self.groups, int) or self.groups < 1:
            raise ValueError(f"groups is a whole number from 1 up; found {self.groups}")
        if self.groups > 1 and 0 in self.neurons:
            raise ValueError(f"groups={self.groups} splits dimension 0, which {self.neurons} already counts as neurons")

    def __str__(self) -> str:
        return str(self.neurons) if self.groups == 1 else f"{self.neurons}, groups={self.groups}"

    def misfit(self, shape: tuple[int, ...]) -> str | None:
        """Say why these axes cannot describe a weight of this shape, or None where they can."""
        if max(self.neurons) >= len(shape):
            return f"axes {self} need {max(self.neurons) + 1} dimensions or more, the weight has {len(shape)}"
        if len(self.neurons) == len(shape):
            return f"axes {self} count every dimension as neurons and leave no weights to normalise"
        if shape[0] % self.groups:
            return f"dimension 0 has {shape[0]} entries, which do not split into {self.groups} groups"
        return None

    def rows(self, weight: Tensor) -> Tensor:
        """View the weight with its neurons in the leading dimensions; whatever its strides, nothing is copied."""
        if self.groups == 1:
            blocks, neurons = weight, self.neurons
        else:
            blocks, neurons = weight.unflatten(0, (self.groups, -1)), (0, *(d + 1 for d in self.neurons))
        return blocks.permute(*neurons, *(d for d in range(blocks.ndim) if d not in neurons))

    def fan_in_dims(self, weight: Tensor) -> tuple[int, ...]:
        """The dimensions of `rows(weight)` that a neuron's weights lie along."""
        first = self.neuron_dims
        return tuple(range(first, weight.ndim + (self.groups > 1)))

    @property
    def neuron_dims(self) -> int:
        """The number of leading dimensions of `rows(weight)` that index neurons."""
        return len(self.neurons) + (self.groups > 1)

    def neuron_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a tensor that holds one number per neuron."""
        sizes = tuple(shape[d] for d in self.neurons)
        return sizes if self.groups == 1 else (self.groups, *sizes)

    def fan_in(self, shape: tuple[int, ...]) -> int:
        """The number of weights of one neuron."""
        return prod(shape[d] for d in range(len(shape)) if d not in self.neurons) // self.groups


AxesOf: TypeAlias = "Axes | Callable[[nn.Module], Axes]"


@dataclass(frozen=True)
class LayerAxes:
    """The neuron axes of a layer type's weights, by the pattern of the parameter's name, in each direction."""

    incoming: Mapping[str, AxesOf]
    outgoing: Mapping[str, AxesOf] = field(default_factory=dict)

    def find(self, module: nn.Module, parameter: str, direction: str) -> Axes | None:
        """The axes of one parameter of this module, or None where they are not known."""
        for pattern, axes in (self.incoming if direction == "incoming" else self.outgoing).items():
            if fnmatchcase(parameter, pattern):
                found = as_axes(axes(module) if callable(axes) else axes)
                if not isinstance(found, Axes):
                    raise TypeError(f"the axes of {type(module).__name__}.{parameter} are no tuple: {found!r}")
                return found
        return None


def _grouped_columns(module: nn.Module) -> Axes:
    return Axes((1,), groups=module.groups)  # type: ignore[arg-type]


_ROWS, _COLUMNS = Axes((0,)), Axes((1,))
_LINEAR = LayerAxes({"weight": _ROWS}, {"weight": _COLUMNS})
_TRANSPOSED_LINEAR = LayerAxes({"weight": _COLUMNS}, {"weight": _ROWS})
_CONVOLUTION = LayerAxes({"weight": _ROWS}, {"weight": _grouped_columns})
_TRANSPOSED_CONVOLUTION = LayerAxes({"weight": _grouped_columns}, {"weight": _ROWS})

# A type that must not be imported here stands by its qualified name.
_KNOWN: dict[type[nn.Module] | str, LayerAxes] = {
    nn.Linear: _LINEAR,
    nn.Bilinear: LayerAxes({"weight": _ROWS}),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CONVOLUTION),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _TRANSPOSED_CONVOLUTION),
    nn.MultiheadAttention: LayerAxes({"in_proj_weight": _ROWS, "[qkv]_proj_weight": _ROWS}),
    # Ends that keep out weight_hh_l0_g and its like: what hooks compute a recurrent layer's weight from.
    nn.RNNBase: LayerAxes({"weight_[ih][hr]_l*[0-9]": _ROWS, "weight_[ih][hr]_l*_reverse": _ROWS}),
    nn.RNNCellBase: LayerAxes({"weight_[ih]h": _ROWS}),
    nn.Embedding: LayerAxes({"weight": _ROWS}),
    nn.EmbeddingBag: LayerAxes({"weight": _ROWS}),
    "transformers.pytorch_utils.Conv1D": _TRANSPOSED_LINEAR,
}


def layer_axes(module: nn.Module) -> LayerAxes | None:
    """What is known of a module's type, or of the nearest type that it derives from."""
    return _known_of(type(module))


def is_linear_or_convolution(module: nn.Module) -> bool:
    """Whether a module is a layer that can be a network's output layer."""
    return isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)) or layer_axes(module) is _TRANSPOSED_LINEAR


def _known_of(module_type: type[nn.Module]) -> LayerAxes | None:
    for layer in module_type.__mro__:
        known = _KNOWN.get(layer) or _KNOWN.get(f"{layer.__module__}.{layer.__qualname__}")
        if known is not None:
            return known
    return None


def register(layer: type[nn.Module], /, **weights: Axes | tuple[int, ...] | Callable[[nn.Module], Axes]) -> None:
    """Teach pbwn the neuron axes of a custom layer, one keyword per weight; it holds for derived types too.

    Axes that depend on the layer's own settings are given as a function of the module.

    >>> class Experts(nn.Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.weight = nn.Parameter(torch.randn(4, 8, 16))  # expert, out, in
    >>> register(Experts, weight=(0, 1))
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise TypeError(f"register takes a module type, such as MyLayer; found {layer!r}")
    if not weights:
        raise ValueError(
            f"name the weights of {layer.__name__} and their axes: register({layer.__name__}, weight=(0,))"
        )
    # What is known of the type that it derives from still holds for the weights that are not named here.
    known = _known_of(layer) or LayerAxes({})
    incoming = {name: as_axes(axes) for name, axes in weights.items()}
    outgoing = {name: axes for name, axes in known.outgoing.items() if name not in weights}
    _KNOWN[layer] = LayerAxes({**incoming, **{k: v for k, v in known.incoming.items() if k not in weights}}, outgoing)


def as_axes(axes: Axes | tuple[int, ...] | Callable[[nn.Module], Axes]) -> AxesOf:
    """Accept a bare tuple for Axes."""
    if isinstance(axes, Axes) or callable(axes):
        return axes
    if isinstance(axes, (tuple, list)):
        return Axes(tuple(axes))
    raise TypeError(f"axes are a tuple of dimensions or pbwn.Axes; found {axes!r}")
