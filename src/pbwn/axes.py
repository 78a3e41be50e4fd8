"""The dimensions of a weight that index its neurons, by layer type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from typing import Literal, TypeAlias

from torch import Tensor, nn


@dataclass(frozen=True)
class Axes:
    """The dimensions of a weight that index its neurons; a neuron's weights lie along all the others.

    `Axes((0,))` fits a linear layer or a convolution, whose weight is stored (out, in, ...); `Axes((0, 1))` a stack
    of experts stored (expert, out, in). With `groups=g`, dimension 0 consists of g equal blocks, and a neuron's
    weights stay within one block: a grouped transposed convolution is stored (in, out / g, ...) and has
    `Axes((1,), groups=g)`. Without neurons there is one norm for the whole matrix, `Axes(())`, or one for each of the
    matrices that are packed along dimension 0, `Axes((), groups=3)`, or along another, `Axes((), groups=3, grouped=1)`.

    >>> Axes((0,)).neuron_shape((16, 3, 5, 5)), Axes((0,)).fan_in((16, 3, 5, 5))
    ((16,), 75)
    >>> Axes((1,), groups=2).neuron_shape((6, 4, 3, 3)), Axes((1,), groups=2).fan_in((6, 4, 3, 3))
    ((2, 4), 27)
    >>> Axes(()).neuron_shape((8, 4)), Axes((), groups=2).neuron_shape((8, 4))
    ((), (2,))
    """

    neurons: tuple[int, ...]
    groups: int = 1
    grouped: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.neurons, int):
            raise TypeError(f"axes are a tuple of dimensions: write ({self.neurons},)")
        object.__setattr__(self, "neurons", tuple(self.neurons))
        if any(not isinstance(d, int) or d < 0 for d in self.neurons):
            raise ValueError(f"axes must be dimensions counted from 0, such as (0,) or (0, 1); got {self.neurons}")
        if len(set(self.neurons)) < len(self.neurons):
            raise ValueError(f"axes must name each dimension once; got {self.neurons}")
        if not isinstance(self.groups, int) or self.groups < 1:
            raise ValueError(f"groups must be a positive integer; got {self.groups}")
        if not isinstance(self.grouped, int) or self.grouped < 0:
            raise ValueError(f"grouped must be a dimension counted from 0; got {self.grouped}")
        if self.groups > 1 and self.grouped in self.neurons:
            raise ValueError(
                f"groups={self.groups} splits dimension {self.grouped}, which {self.neurons} already counts as neurons"
            )

    def __str__(self) -> str:
        if not self.neurons:
            return "whole matrix" if self.groups == 1 else f"{self.groups} packed matrices"
        return str(self.neurons) if self.groups == 1 else f"{self.neurons}, groups={self.groups}"

    def mismatch(self, shape: tuple[int, ...]) -> str | None:
        """Return why these axes cannot describe a weight of this shape, or None if they can."""
        last = max(self.grouped, *self.neurons, 0)
        if last >= len(shape):
            return f"axes {self} need {last + 1} dimensions or more, the weight has {len(shape)}"
        if len(self.neurons) == len(shape):
            return f"axes {self} count every dimension as neurons and leave no weights to normalise"
        if shape[self.grouped] % self.groups:
            count = shape[self.grouped]
            return f"dimension {self.grouped} has {count} entries, which do not split into {self.groups} groups"
        return None

    def rows(self, weight: Tensor) -> Tensor:
        """View the weight with its neurons in the leading dimensions; nothing is copied, whatever its strides."""
        if self.groups == 1:
            blocks, neurons = weight, self.neurons
        else:
            blocks = weight.unflatten(self.grouped, (self.groups, -1))
            neurons = (self.grouped, *(d + (d > self.grouped) for d in self.neurons))
        return blocks.permute(*neurons, *(d for d in range(blocks.ndim) if d not in neurons))

    @property
    def neuron_dims(self) -> int:
        """The number of leading dimensions of `rows(weight)` that index neurons."""
        return len(self.neurons) + (self.groups > 1)

    def neuron_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a tensor that holds one element per neuron."""
        sizes = tuple(shape[d] for d in self.neurons)
        return sizes if self.groups == 1 else (self.groups, *sizes)

    def fan_in(self, shape: tuple[int, ...]) -> int:
        """Return the number of weights of one neuron."""
        return prod(shape[d] for d in range(len(shape)) if d not in self.neurons) // self.groups


def matrix_axes(axes: Axes, module: nn.Module, name: str) -> Axes:
    """Return axes with one norm for each matrix in a weight with these neuron axes.

    The last axis counts the rows of a matrix, those before it count matrices, such as stacked experts. The matrices
    that attention and recurrent layers pack into one weight are separate.
    """
    if len(axes.neurons) > 1:
        return Axes(axes.neurons[:-1])
    *_, layer, attribute = ("", *name.split("."))
    shape = module._parameters[attribute].shape  # type: ignore[union-attr]
    if isinstance(module, nn.MultiheadAttention):
        return Axes((), groups=3 if attribute == "in_proj_weight" else 1)
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        has_gates = attribute.startswith(("weight_ih", "weight_hh"))
        return Axes((), groups=shape[0] // module.hidden_size if has_gates else 1)
    outputs, inputs = (
        next((size for size in (getattr(module, name, None) for name in names) if isinstance(size, int)), 0)
        for names in _SIZES
    )
    if layer in _PACKED_NAMES and inputs and outputs == 3 * inputs and sorted(shape) == [inputs, outputs]:
        return Axes((), groups=3, grouped=shape.index(outputs))
    return Axes(())


# The names of linear layers that compute queries, keys and values of equal size at once, one after the other, and the
# attributes in which such layers keep their numbers of outputs and inputs.
_PACKED_NAMES = ("qkv", "Wqkv", "c_attn", "in_proj", "qkv_proj")
_SIZES = ("out_features", "nf"), ("in_features", "nx")

AxesOf: TypeAlias = "Axes | Callable[[nn.Module], Axes]"


class MismatchError(ValueError):
    """A weight whose shape contradicts its layer type, or the sizes that the layer itself states."""


@dataclass(frozen=True)
class WeightAxes:
    """The neuron axes of one weight of a layer type, in each direction in which they are defined.

    `dims` is the number of the weight's dimensions: a derived layer that stores more, such as a stack of weights, has
    other axes.
    """

    incoming: AxesOf
    outgoing: AxesOf | None = None
    dims: int | None = None

    def find(self, module: nn.Module, shape: tuple[int, ...], direction: str) -> Axes | None:
        """Return the axes of this module's weight, or None where they are not defined; raises `MismatchError`."""
        if self.dims not in (None, len(shape)):
            raise MismatchError(f"{len(shape)} dimensions instead of {self.dims}")
        axes = self.incoming if direction == "incoming" else self.outgoing
        if axes is None:
            return None
        found = as_axes(axes(module) if callable(axes) else axes)
        mismatch = found.mismatch(shape)
        if mismatch is not None:
            raise MismatchError(mismatch)
        return found


_ROWS, _COLUMNS = Axes((0,)), Axes((1,))


def _by_sizes(unit: str, first: Literal["out", "in"], direction: str, module: nn.Module) -> Axes:
    """Return the axes of a layer that states its sizes: stored (out, in / groups, ...) or (in, out / groups, ...).

    `first` is how layers of this type are stored; the sizes of a derived layer may show another order.
    """
    out_size, in_size = getattr(module, f"out_{unit}", None), getattr(module, f"in_{unit}", None)
    groups, stored = getattr(module, "groups", 1), first
    if isinstance(out_size, int) and isinstance(in_size, int):
        found = tuple(module._parameters["weight"].shape[:2])  # type: ignore[union-attr]
        expected = {"out": (out_size, in_size // groups), "in": (in_size, out_size // groups)}
        if found not in expected.values():
            raise MismatchError(
                f"shape {found[0]}x{found[1]} fits neither out_{unit}={out_size} nor in_{unit}={in_size}"
            )
        if found != expected[first]:
            stored = "in" if first == "out" else "out"
    neurons_first = (stored == "out") == (direction == "incoming")
    return _ROWS if neurons_first else Axes((1,), groups=groups)


def _sized(unit: str, first: Literal["out", "in"], dims: int) -> dict[str, WeightAxes]:
    incoming, outgoing = (partial(_by_sizes, unit, first, direction) for direction in ("incoming", "outgoing"))
    return {"weight": WeightAxes(incoming, outgoing, dims)}


def _matrices(*patterns: str) -> dict[str, WeightAxes]:
    return dict.fromkeys(patterns, WeightAxes(_ROWS, dims=2))


_EXPERTS = {"weight": WeightAxes(Axes((0, 1)), Axes((0, 2)), dims=3)}

# The weights of each layer type, by patterns of the parameters' names. Types that must not be imported here are given
# by their qualified names.
_KNOWN: dict[type[nn.Module] | str, Mapping[str, WeightAxes]] = {
    nn.Linear: _sized("features", "out", 2),
    nn.Bilinear: {"weight": WeightAxes(_ROWS, dims=3)},
    nn.Conv1d: _sized("channels", "out", 3),
    nn.Conv2d: _sized("channels", "out", 4),
    nn.Conv3d: _sized("channels", "out", 5),
    nn.ConvTranspose1d: _sized("channels", "in", 3),
    nn.ConvTranspose2d: _sized("channels", "in", 4),
    nn.ConvTranspose3d: _sized("channels", "in", 5),
    nn.MultiheadAttention: _matrices("in_proj_weight", "[qkv]_proj_weight"),
    # Patterns end in a digit or in _reverse, so that they do not match weight_hh_l0_g, from which weight_norm computes
    # the weight.
    nn.RNNBase: _matrices("weight_[ih][hr]_l*[0-9]", "weight_[ih][hr]_l*_reverse"),
    nn.RNNCellBase: _matrices("weight_[ih]h"),
    nn.Embedding: _matrices("weight"),
    nn.EmbeddingBag: _matrices("weight"),
    "transformers.pytorch_utils.Conv1D": {"weight": WeightAxes(_COLUMNS, _ROWS, dims=2)},
    "transformers.models.jetmoe.modeling_jetmoe.JetMoeParallelExperts": _EXPERTS,
    "transformers.models.granitemoe.modeling_granitemoe.GraniteMoeParallelExperts": _EXPERTS,
}
NEVER_LAST = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase, nn.Embedding, nn.EmbeddingBag)
_CONTAINERS = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def weight_axes(module: nn.Module, parameter: str) -> WeightAxes | None:
    """Return the known axes of one parameter, by the nearest known base type of its module or by its sizes."""
    known = _known_of(type(module)) or _mixture_of_experts(module)
    return next((axes for pattern, axes in known.items() if fnmatchcase(parameter, pattern)), None)


def _known_of(module_type: type[nn.Module]) -> Mapping[str, WeightAxes]:
    for layer in module_type.__mro__:
        known = _KNOWN.get(layer) or _KNOWN.get(f"{layer.__module__}.{layer.__qualname__}")
        if known is not None:
            return known
    return {}


def _mixture_of_experts(module: nn.Module) -> dict[str, WeightAxes]:
    """Return the axes of the stacked experts of transformers and of their router, by their own sizes.

    Experts are three-dimensional, stored (expert, out, in) or (expert, in, out). That `gate_up_proj` packs two matrices
    does not matter to its neurons. Where sizes are ambiguous, because a matrix is square, the axes are not known.
    """
    hidden = _first_size(module, "hidden_dim", "hidden_size")
    inner = _first_size(module, "intermediate_dim", "intermediate_size", "expert_dim", "moe_intermediate_dim")
    is_router = type(module).__name__.endswith("Router")
    found: dict[str, WeightAxes] = {}
    for name, parameter in module._parameters.items():
        shape = () if parameter is None or parameter.is_nested else tuple(parameter.shape)
        if len(shape) == 3 and inner is not None and name in _EXPERT_OUTPUTS:
            size, is_output = _EXPERT_OUTPUTS[name] * inner, name != "down_proj"
            out_dim = _output_dim(shape, size, is_output, getattr(module, "is_transposed", None))
            if out_dim is not None:
                found[name] = WeightAxes(Axes((0, out_dim)), Axes((0, 3 - out_dim)))
        elif name == "weight" and len(shape) == 2 and shape[1] == hidden != shape[0] and is_router:
            found[name] = WeightAxes(_ROWS, _COLUMNS)
    return found


_EXPERT_OUTPUTS = {"gate_up_proj": 2, "gate_proj": 1, "up_proj": 1, "down_proj": 1}  # times the intermediate size


def _output_dim(shape: tuple[int, ...], size: int, is_output: bool, is_transposed: object) -> int | None:
    """Return which of dimensions 1 and 2 is the output of experts, or None; `size` is that of the output or the input.

    `is_transposed` is the attribute in which transformers states the order for most of its experts.
    """
    if size not in shape[1:]:
        return None
    if shape[1] == shape[2]:
        return (2 if is_transposed else 1) if isinstance(is_transposed, bool) else None
    return 1 + (shape[2] == size) if is_output else 1 + (shape[1] == size)


def _first_size(module: nn.Module, *names: str) -> int | None:
    return next((size for name in names if isinstance(size := getattr(module, name, None), int)), None)


def can_be_output_layer(module: nn.Module) -> bool:
    """Whether a module maps features to features: linear layers, convolutions, and registered layers."""
    return _known_of(type(module)) not in ({}, _EXPERTS) and not isinstance(module, NEVER_LAST)


def can_be_registered(layer: type[nn.Module]) -> bool:
    """Whether a type can have known weights: torch's containers, from which modules of all kinds derive, cannot."""
    return layer not in _CONTAINERS


def register(layer: type[nn.Module], /, **weights: Axes | tuple[int, ...] | Callable[[nn.Module], Axes]) -> None:
    """Register the neuron axes of a custom layer, one keyword per weight, for derived types too.

    Axes that depend on the layer's own settings are passed as a function of the module.

    >>> class Experts(nn.Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.weight = nn.Parameter(torch.randn(4, 8, 16))  # expert, out, in
    >>> register(Experts, weight=(0, 1))
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise TypeError(f"register takes a module type, such as MyLayer; got {layer!r}")
    if not can_be_registered(layer):
        raise TypeError(f"{layer.__name__} is a container, not a layer: name the weight in attach(axes=...)")
    if not weights:
        raise ValueError(
            f"name the weights of {layer.__name__} and their axes: register({layer.__name__}, weight=(0,))"
        )
    given = {name: WeightAxes(axes if callable(axes) else as_axes(axes)) for name, axes in weights.items()}
    # The known axes of its base type still hold for the weights that are not named here.
    _KNOWN[layer] = given | {name: axes for name, axes in _known_of(layer).items() if name not in given}


def as_axes(axes: Axes | tuple[int, ...]) -> Axes:
    """Convert a bare tuple to Axes, and return Axes as they are."""
    if isinstance(axes, (tuple, list)):
        return Axes(tuple(axes))
    if not isinstance(axes, Axes):
        raise TypeError(f"axes must be a tuple of dimensions or pbwn.Axes; got {axes!r}")
    return axes
