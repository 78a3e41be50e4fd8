"""The path that needs torch alone: kept views of the weights, and what is done to many weights at once.

Norms are computed in the weights' own precision (half precision in float32) and are right within `_SAFE`, where no
square overflows or loses digits; a weight with a row outside goes through `projection`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pbwn import projection
from pbwn.axes import Axes
from pbwn.backends.reference_weights import is_laid_out, tangent_gradient_
from pbwn.backends.torch_norms import Norms, Rows
from pbwn.constraint import Constraint, UnitNorm
from pbwn.layout import Whereabouts

_GROUP_BYTES = 6 * 1024 * 1024  # a group is scaled while it is in a cache; smaller ones take more calls
_UNIT = UnitNorm()
_SAFE = {torch.float32: (1e-15, 1e15), torch.float64: (1e-140, 1e140)}  # norms and their inverses


class TorchWeights:
    """Weights in the CPU's memory whose norms have one dtype, in groups of neurons that fit into a cache.

    Whoever keeps it must make sure that the weights are still where they were.
    """

    def __init__(
        self, tensors: Sequence[Tensor], axes: Sequence[Axes], radii: Sequence[Tensor | None], constraint: Constraint
    ) -> None:
        self._weights = list(zip(tensors, axes, radii, strict=True))
        self._strides = [tensor.stride() for tensor in tensors]
        self._dtype = norm_dtype(tensors[0])
        self.fits = Whereabouts(tensors).hold
        members: list[list[_Neurons]] = []
        filled = _GROUP_BYTES
        for index, weight in enumerate(self._weights):
            for neurons in _cut(index, *weight):
                size = neurons.rows.nbytes
                if filled + size > _GROUP_BYTES:
                    members.append([])
                    filled = 0
                members[-1].append(neurons)
                filled += size
        most = max(Norms.numbers([neurons.rows for neurons in group]) for group in members)
        self._scratch = _Scratch(most, self._dtype)
        with self._scratch as numbers:
            self._groups = [_Group(group, constraint, numbers) for group in members]

    def project_(self) -> None:
        """Project all weights: equation (10). The views are detached: there is no gradient to turn off."""
        with self._scratch:
            for group in self._groups:
                group.project_()

    @torch.no_grad()
    def tangent_(self) -> None:
        """Make the gradients of all weights tangent: equation (7)."""
        gradients = []
        for (tensor, axes, radii), stride in zip(self._weights, self._strides, strict=True):
            gradient = tensor.grad
            if gradient is None or not is_laid_out(gradient, tensor.shape, stride, self._dtype, tensor.device):
                tangent_gradient_(tensor, axes, radii)
                gradient = None
            gradients.append(gradient)
        with self._scratch:
            for group in self._groups:
                group.tangent_(gradients)


class _Scratch:
    """Numbers that are needed during a call. Views of them can be kept, their memory is taken anew each time."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        self._numbers = torch.empty(count, dtype=dtype, device="cpu")
        self._bytes = self._numbers.nbytes

    def __enter__(self) -> Tensor:
        self._numbers.untyped_storage().resize_(self._bytes)
        return self._numbers

    def __exit__(self, *_: object) -> None:
        self._numbers.untyped_storage().resize_(0)


@dataclass(frozen=True, eq=False)
class _Neurons:
    """Some neurons of a weight: their rows, `offset` numbers into the weight."""

    weight: int
    rows: Rows
    offset: int
    radii: Tensor | None
    is_weight: bool

    @property
    def axes(self) -> Axes:
        """The axes of the view, in which the neurons are in front."""
        return Axes(tuple(range(self.rows.neuron_dims)))

    def of(self, gradient: Tensor) -> Tensor:
        """The same view of a gradient that is laid out like the weight."""
        if self.is_weight:
            return gradient
        view = self.rows.view
        return gradient.as_strided(view.shape, view.stride(), gradient.storage_offset() + self.offset)


def _cut(index: int, tensor: Tensor, axes: Axes, radii: Tensor | None) -> Iterator[_Neurons]:
    """Cut a weight between its neurons, into parts that are no larger than a group."""
    rows = axes.rows(tensor.detach())
    count = min(rows.shape[0], -(-Rows.of(rows, axes.neuron_dims).nbytes // _GROUP_BYTES))
    own = None if radii is None else radii.tensor_split(count)
    is_weight = count == 1 and rows.shape == tensor.shape and rows.stride() == tensor.stride()
    for number, view in enumerate(rows.tensor_split(count)):
        offset = int(view.storage_offset() - tensor.storage_offset())
        some = Rows.of(view, axes.neuron_dims)
        yield _Neurons(index, some, offset, None if own is None else own[number], is_weight)


class _Group:
    """Some neurons of some weights, with a number for each."""

    def __init__(self, members: Sequence[_Neurons], constraint: Constraint, numbers: Tensor) -> None:
        self._members = sorted(members, key=lambda neurons: neurons.rows.pieces)
        self._constraint = constraint
        self._norms = Norms([neurons.rows for neurons in self._members], numbers)
        self._numbers = self._norms.all
        self._rows = [neurons.rows.view for neurons in self._members]
        self._fan_in = [neurons.axes.fan_in_dims(neurons.rows.view) for neurons in self._members]
        parts = self._numbers.split([neurons.rows.neurons for neurons in self._members])
        self._per_row = [
            part.view(*view.shape[: -len(dims) or None], *(1 for _ in dims))
            for part, view, dims in zip(parts, self._rows, self._fan_in, strict=True)
        ]
        given = [neurons.radii.flatten() for neurons in self._members if neurons.radii is not None]
        self._radii = torch.cat(given).to(torch.float64) if given else None
        length = constraint.length
        lengths = self._radii if length == "initial" else torch.tensor([length], dtype=torch.float64, device="cpu")
        self._is_usual = lengths is None or _are_safe(lengths.where(lengths > 0, 1).to(numbers.dtype))

    def project_(self) -> None:
        """Norms of all rows, what all neurons are multiplied by at once, then the products."""
        self._norms.measure_()
        if not self._is_usual or not _are_safe(self._numbers):
            self._project_with_care_()
            return
        if self._constraint == _UNIT:
            self._numbers.reciprocal_()  # from a cache, products take less time than quotients
        else:
            self._numbers.copy_(self._factors())
        torch._foreach_mul_(self._rows, self._per_row)

    def tangent_(self, gradients: Sequence[Tensor | None]) -> None:
        """Norms of all rows and their products with the gradients, coefficients at once, then what is subtracted.

        `gradients` holds one for each weight, laid out like it, or None where there is nothing to do.
        """
        slopes = {
            index: neurons.of(gradient)
            for index, neurons in enumerate(self._members)
            if (gradient := gradients[neurons.weight]) is not None
        }
        if not slopes:
            return
        self._norms.measure_()
        dots = []
        for index, norms in enumerate(self._per_row):
            if index in slopes:
                dots.append((self._rows[index] * slopes[index]).sum(self._fan_in[index]).flatten())
            else:
                dots.append(torch.zeros_like(norms).flatten())
                norms.fill_(1)
        products = torch.cat(dots)
        if not (_are_safe(self._numbers) and products.isfinite().all()):
            for index in list(slopes):
                if not (_are_safe(self._per_row[index]) and dots[index].isfinite().all()):
                    neurons = self._members[index]
                    projection.tangent_(slopes.pop(index), neurons.rows.view, neurons.axes, radii=neurons.radii)
        self._numbers.copy_(projection.tangent_coefficients(self._numbers.to(torch.float64), products, self._radii))
        views, coefficients = ([kept[index] for index in slopes] for kept in (self._rows, self._per_row))
        if slopes:
            torch._foreach_addcmul_(list(slopes.values()), views, coefficients, -1)

    def _factors(self) -> Tensor:
        """What each neuron is multiplied by, from its norm: 1 where it is to be left as it is."""
        return projection.safe_factors(self._constraint, self._numbers.to(torch.float64), self._radii)

    def _project_with_care_(self) -> None:
        """Rows next to a norm that may have lost digits go through `projection`, as all do if the radius is extreme."""
        unsafe = [not self._is_usual or not _are_safe(norms) for norms in self._per_row]
        self._numbers.copy_(self._factors())
        for neurons, factors, is_unsafe in zip(self._members, self._per_row, unsafe, strict=True):
            if is_unsafe:
                projection.project_(neurons.rows.view, neurons.axes, self._constraint, radii=neurons.radii)
            else:
                neurons.rows.view.mul_(factors)


def norm_dtype(weight: Tensor) -> torch.dtype:
    """The precision of a weight's norms on this path."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def _are_safe(norms: Tensor) -> bool:
    low, high = _SAFE[norms.dtype]
    smallest, largest = norms.aminmax()
    return low <= smallest.item() and largest.item() <= high  # false where one is NaN
