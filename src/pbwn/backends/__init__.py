"""The ways to project many weights in one go, one class each, and which of them each weight takes.

"numba" is the compiled path, "torch" the one of torch's own operations on kept views, both for weights in the CPU's
memory. "reference" goes through `projection` weight by weight: on accelerators, where a look at the norms would mean
waiting for the device, and for weights that share memory and so must not be written at the same time. "triton" is one
kernel launch per device and dtype. It has never run on a GPU, so it is taken only when asked for.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast

from torch import Tensor

import pbwn.backends.forking  # noqa: F401 - it has to watch for forks before a backend is loaded
from pbwn import sharded
from pbwn.axes import Axes
from pbwn.backends.reference_weights import ReferenceWeights
from pbwn.backends.sharded_weights import ShardedWeights
from pbwn.backends.torch_weights import TorchWeights, norm_dtype
from pbwn.constraint import Constraint
from pbwn.layout import is_plain, overlapping
from pbwn.selection import ConstrainedWeight
from pbwn.selection.table import plural

Backend: TypeAlias = Literal["auto", "torch", "numba", "triton"]
BACKENDS = ("auto", "torch", "numba", "triton")


class Part(Protocol):
    """Weights that are projected in one go; it relies on their staying where they are."""

    def fits(self) -> bool:
        """Whether the memory of all weights is where it was, laid out as it was."""

    def project_(self) -> None:
        """Project all weights in place: equation (10)."""

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent in place: equation (7)."""


PartMaker: TypeAlias = "Callable[[list[Tensor], list[Axes], list[Tensor | None], Constraint], Part]"


def paths(weights: Sequence[ConstrainedWeight], backend: Backend) -> list[str]:
    """The path of each weight: "numba", "torch", "reference", "triton" or "sharded".

    A backend that was asked for by name and cannot serve a weight is an error.
    """
    local = [weight for weight in weights if is_plain(weight.tensor) and weight.tensor.numel()]
    meeting = overlapping([weight.tensor for weight in local])
    shared = {weight.name for index, weight in enumerate(local) if index in meeting}
    return [_path(weight, weight.name in shared, backend) for weight in weights]


def share(tensor: Tensor, path: str) -> Hashable:
    """Weights with an equal share of a path are projected in one go."""
    return {"torch": norm_dtype(tensor), "reference": None, "sharded": None}.get(path, (tensor.device, tensor.dtype))


def part(path: str) -> PartMaker:
    """What makes a part of the weights that take a path."""
    makers: dict[str, PartMaker] = {"torch": TorchWeights, "reference": ReferenceWeights, "sharded": ShardedWeights}
    return makers[path] if path in makers else cast(PartMaker, _load(path))


def summary(taken: Sequence[str]) -> str:
    """Name the backends that these paths belong to, with their numbers of weights where there are several.

    >>> summary(["numba", "numba", "reference"])
    'numba (2 weights) and torch (1 weight)'
    """
    counts = Counter(path if path in BACKENDS else "torch" for path in taken)
    if len(counts) == 1:
        return next(iter(counts))
    return " and ".join(f"{name} ({plural(count, 'weight')})" for name, count in counts.items())


def missing(backend: Backend) -> str | None:
    """Say what a backend lacks to work here at all, or None."""
    if backend in ("auto", "torch"):
        return None
    loaded = _load(backend)
    return loaded if isinstance(loaded, str) else None


def _path(weight: ConstrainedWeight, shared: bool, backend: Backend) -> str:
    tensor, compiled = weight.tensor, _compiled(weight.tensor, backend)
    if not tensor.numel() and not sharded.is_sharded(tensor):
        return "reference"
    path, obstacle = _without_compiler(tensor, shared)
    if compiled is None:
        return path
    obstacle = obstacle or _obstacle(tensor, weight.axes, compiled)
    if obstacle is None:
        return compiled
    if backend == compiled:
        raise ValueError(f'backend="{backend}" cannot serve weight {weight.name!r}: {obstacle}. Use backend="auto".')
    return path


def _compiled(tensor: Tensor, backend: Backend) -> str | None:
    """The compiled path that is to be tried for a weight."""
    if backend == "auto":
        return "numba" if tensor.device.type == "cpu" else None
    return None if backend == "torch" else backend


def _without_compiler(tensor: Tensor, shared: bool) -> tuple[str, str | None]:
    """The path that a weight takes without a compiled one, and what stands in the way of any that uses its address."""
    if sharded.is_sharded(tensor):
        return "sharded", "it is spread over processes, which torch serves"
    if not is_plain(tensor):
        return "reference", f"it is a {type(tensor).__name__}, which has its own idea of memory"
    if shared:
        return "reference", "it shares memory with another weight"
    return ("torch" if tensor.device.type == "cpu" else "reference"), None


def _obstacle(tensor: Tensor, axes: Axes, backend: str) -> str | None:
    """Say why a compiled path cannot serve a weight, or None where it can."""
    loaded = _load(backend)
    if isinstance(loaded, str):
        return loaded
    found: str | None = loaded.obstacle(tensor, axes)
    return found


@functools.cache
def _load(backend: str) -> Any:
    """The class of a compiled backend, imported when first needed, or a sentence where it cannot be."""
    try:
        if backend == "numba":
            from pbwn.backends.numba_weights import NumbaWeights

            return NumbaWeights
        from pbwn.backends.triton_weights import TritonWeights

        return TritonWeights
    except ImportError as error:
        extra = {"numba": "fast", "triton": "gpu"}[backend]
        return f"{backend} cannot be imported ({error}): pip install 'pbwn[{extra}]'"
    except Exception as error:  # what numba meets when it is imported, such as a user's own file named coverage.py
        return f"{backend} is installed and cannot be imported ({type(error).__name__}: {error})"
