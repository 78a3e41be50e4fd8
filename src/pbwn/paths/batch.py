"""Many weights per call, each on the path that serves its memory, with the results of `functional` up to rounding.

"numba" is the compiled loop for contiguous rows in the CPU's memory, "torch" the path of torch's own operations for
everything else, "compile" that of torch's compiler, on request. Rows that are cut over processes take a path of their
own. What a path keeps between calls, such as views and addresses, is valid while the weights stay where they are: that
is checked in each call.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from pbwn import functional
from pbwn.constraint import TOLERANCE, Constraint, MaxNorm, mismatch
from pbwn.layout import MemorySnapshot, is_plain, overlapping
from pbwn.paths import dtensor
from pbwn.paths.torch import Entry, FunctionalPath, Rates, TorchPath, has_usual_radii, norm_dtype
from pbwn.selection import ConstrainedWeight
from pbwn.selection.rules import SUPPORTED_DTYPES
from pbwn.selection.table import plural

Backend: TypeAlias = Literal["auto", "torch", "numba", "compile"]
BACKENDS = ("auto", "torch", "numba", "compile")


class Batch:
    """Weights that are projected together."""

    def __init__(
        self,
        weights: Sequence[ConstrainedWeight],
        constraint: Constraint,
        radii: Mapping[str, float | Tensor] | None = None,
        *,
        masters: Mapping[str, Callable[[], Tensor]] | None = None,
        backend: Backend = "auto",
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Store the settings; the weights are not touched yet.

        Args:
            weights: the weights.
            constraint: the constraint that they are kept on.
            radii: by weight name, the norm of its neurons: one for all of them, or one each.
            masters: by weight name, a function that looks up the wider copy that the optimizer keeps of it. The copy is
                then projected, and rounded into the weight.
            backend: which path to use.
            on_change: called when weights turn out to be replaced or moved, before they are touched.
        """
        self._weights = weights
        self._constraint = constraint
        self._radii = radii or {}
        self._masters = masters or {}
        self._backend: Backend = backend
        self._on_change = on_change
        self._factors: Mapping[str, float] = {}
        self._plan: _Plan | None = None

    def scale_radii(self, factors: Mapping[str, float]) -> None:
        """Multiply the original radii by these factors, by weight name, from the next projection on."""
        if factors == self._factors:
            return
        refuse_mismatches(self._constraint, self._weights, factors)
        self._factors = dict(factors)
        if self._plan is not None:
            self._plan.scale_radii_([factors.get(weight.name, 1.0) for weight in self._weights])

    def project_(self, *, synchronize: bool = False) -> None:
        """Project all weights, in place: equation (10).

        `synchronize` waits for the device, so that rows whose squares leave the range of their dtype are exact at once.
        """
        plan = self._current_plan()
        for path in plan.paths:
            path.project_(synchronize=synchronize)
        plan.finish_()

    @torch.no_grad()
    def project_deviating_(self) -> None:
        """Project the rows that are off by more than rounding, and leave the others bit for bit."""
        plan = self._current_plan()
        for weight, tensor in zip(self._weights, plan.stored, strict=True):
            norms, tolerance = dtensor.row_norms(tensor, weight.axes), TOLERANCE[tensor.dtype]
            radii = self._radii_of(weight) * self._factors.get(weight.name, 1.0)
            factors = functional.safe_factors(self._constraint, norms, radii, leave_within=tolerance)
            if dtensor.is_sharded(tensor):
                shard = dtensor.Shard.of(tensor, weight.axes)
                functional.scale_rows_(shard.part, shard.axes, shard.per_row(factors))
            else:
                functional.scale_rows_(tensor, weight.axes, factors)
        plan.finish_()

    def tangent_(self) -> None:
        """Make the gradients of all weights tangent to their spheres, in place: equation (7)."""
        plan = self._current_plan()
        for path in plan.paths:
            path.tangent_()
        increment_version([tensor.grad for tensor in plan.sharded if tensor.grad is not None])

    @torch.no_grad()
    def snapshot(self) -> list[Tensor]:
        """Copy all weights as the next step starts from them, into memory that is kept for the next snapshot."""
        plan = self._current_plan()
        return plan.snapshot_(plan.local)

    @torch.no_grad()
    def step_(self, before: Sequence[Tensor], rates: Rates) -> None:
        """Apply a step rule to the updates of all weights since a snapshot, and project them.

        `rates` holds the learning rate of each weight for the rule "angle", and is None for "tangent".
        """
        plan = self._current_plan()
        if before is not plan.before:  # the plan is new: master weights were found, or a weight was replaced
            plan.snapshot_(before)
        for path, indices, starts in zip(plan.paths, plan.indices, plan.starts, strict=True):
            path.step_(starts, None if rates is None else [rates[index] for index in indices])
        plan.finish_()

    def _radii_of(self, weight: ConstrainedWeight) -> float | Tensor:
        """Return the radii of a weight's neurons, on its device."""
        radii = self._radii.get(weight.name)
        if radii is None:
            return self._constraint.length
        return radii.to(weight.tensor.device) if isinstance(radii, Tensor) else radii

    def _current_plan(self) -> _Plan:
        """Return the plan of the last call, or a new one if a weight was replaced, moved, restrided or cast since."""
        plan = self._plan
        if plan is None or not plan.fits():
            if self._on_change is not None:
                self._on_change()
            refuse_gathered([] if plan is None else plan.sharded_weights)
            refuse_radii(self._weights, self._radii)
            radii = [self._radii_of(weight) for weight in self._weights]
            names = (weight.name for weight in self._weights)
            refuse_mismatches(self._constraint, self._weights, dict(zip(names, radii, strict=True)))
            masters = [self._masters.get(weight.name) for weight in self._weights]
            with torch.inference_mode(False), torch.no_grad():  # the plan outlives the mode that it is created in
                plan = self._plan = _Plan(self._weights, masters, radii, self._constraint, self._backend)
                if self._factors:
                    plan.scale_radii_([self._factors.get(weight.name, 1.0) for weight in self._weights])
        return plan


class _Plan:
    """The path of each weight, and what the paths keep between calls."""

    def __init__(
        self,
        weights: Sequence[ConstrainedWeight],
        masters: Sequence[Callable[[], Tensor] | None],
        radii: Sequence[float | Tensor],
        constraint: Constraint,
        backend: Backend,
    ) -> None:
        self._modules = [weight.module for weight in weights]
        self._attributes = [weight.attribute for weight in weights]
        self._parameters = [weight.tensor for weight in weights]
        self._masters = [(find, find()) for find in masters if find is not None]
        found = zip(self._parameters, masters, strict=True)
        self.stored = [parameter if find is None else find() for parameter, find in found]
        self._rounded = [pair for pair in zip(self._parameters, self.stored, strict=True) if pair[0] is not pair[1]]
        self.sharded_weights = [weight for weight in weights if dtensor.is_sharded(weight.tensor)]
        self.sharded = [weight.tensor for weight in self.sharded_weights]
        self._memory = MemorySnapshot(self.stored)
        members = _members(weights, self.stored, radii)
        self.local = [member.entry.weight.detach() for member in members]
        self.before: list[Tensor] = []  # the weights before a step, if a step rule needs them
        kinds = [_path(member, backend) for member in members]
        self._unseen = [tensor for tensor, kind in zip(self.stored, kinds, strict=True) if kind == "numba"]
        self._unseen += self.sharded
        groups: dict[tuple[str, Hashable], list[int]] = {}
        for index, (member, kind) in enumerate(zip(members, kinds, strict=True)):
            if kind != "empty":
                groups.setdefault((kind, _group_key(member, kind)), []).append(index)
        self.indices = list(groups.values())  # of the weights that each path serves
        self.paths = [
            _make(kind, [members[index] for index in indices], constraint) for (kind, _), indices in groups.items()
        ]

    def snapshot_(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy these tensors, one for each weight, to where the paths read the weights before a step."""
        if not self.before:
            self.before = [torch.empty_like(weight) for weight in self.local]
            self.starts = [[self.before[index] for index in indices] for indices in self.indices]
        for kept, tensor in zip(self.before, tensors, strict=True):
            kept.copy_(tensor)
        return self.before

    def fits(self) -> bool:
        """Whether the weights are the same, with the same memory and layout.

        This runs in every step, over every weight: each check is one loop in C.
        """
        found = map(dict.get, map(_parameters, self._modules), self._attributes)
        return (
            all(map(is_, found, self._parameters))
            and all(find() is kept for find, kept in self._masters)
            and self._memory.is_unchanged()
        )

    @torch.no_grad()
    def scale_radii_(self, factors: Sequence[float]) -> None:
        """Multiply the radii that each weight came with by a factor."""
        for path, indices in zip(self.paths, self.indices, strict=True):
            path.scale_radii_([factors[index] for index in indices])

    @torch.no_grad()
    def finish_(self) -> None:
        """Round master copies into their weights, and increment the versions of tensors written behind torch's back."""
        for parameter, master in self._rounded:
            parameter.copy_(master)
        increment_version(self._unseen)


class _Member(NamedTuple):
    """A weight as the paths see it, its shard if it is sharded, and whether it shares memory with another."""

    entry: Entry
    shard: dtensor.Shard | None
    overlaps: bool


def paths(weights: Sequence[ConstrainedWeight], backend: Backend) -> list[str]:
    """Return the path of each weight: "numba", "torch", "compile", "functional", "cut" or "empty".

    A backend that was requested by name and does not support a weight is an error.
    """
    tensors = [weight.tensor for weight in weights]
    return [_path(member, backend) for member in _members(weights, tensors, [1.0] * len(weights))]


def summary(kinds: Sequence[str]) -> str:
    """Return the backends that these paths belong to, with their numbers of weights if there are several.

    >>> summary(["numba", "numba", "cut"])
    'numba (2 weights) and torch (1 weight)'
    """
    counts = Counter(path if path in BACKENDS else "torch" for path in kinds)
    if len(counts) == 1:
        return next(iter(counts))
    return " and ".join(f"{name} ({plural(count, 'weight')})" for name, count in counts.items())


def missing(backend: Backend) -> str | None:
    """Return why a backend cannot work here at all, or None."""
    loaded = _numba_path() if backend == "numba" else None
    return loaded if isinstance(loaded, str) else None


def _members(
    weights: Sequence[ConstrainedWeight], stored: Sequence[Tensor], radii: Sequence[float | Tensor]
) -> list[_Member]:
    shards = [
        dtensor.Shard.of(tensor, weight.axes) if dtensor.is_sharded(tensor) else None
        for weight, tensor in zip(weights, stored, strict=True)
    ]
    entries = [_entry(*arguments) for arguments in zip(weights, stored, shards, radii, strict=True)]
    plain = [index for index, entry in enumerate(entries) if is_plain(entry.weight) and entry.weight.numel()]
    overlaps = {plain[index] for index in overlapping([entries[index].weight for index in plain])}
    return [_Member(entry, shards[index], index in overlaps) for index, entry in enumerate(entries)]


def _entry(weight: ConstrainedWeight, stored: Tensor, shard: dtensor.Shard | None, radii: float | Tensor) -> Entry:
    parameter = weight.tensor
    set_gradient = partial(setattr, parameter, "grad")
    if shard is None:
        return Entry(weight.name, stored, weight.axes, radii, partial(getattr, parameter, "grad"), set_gradient)
    get_gradient = partial(dtensor.local_gradient, parameter)
    return Entry(weight.name, shard.part, shard.axes, shard.per_row(radii), get_gradient, set_gradient)


def _path(member: _Member, backend: Backend) -> str:
    """Return the path of a weight; an error if the backend was requested by name and does not support it."""
    path, obstacle = _without_compiler(member)
    requested = "numba" if backend == "auto" else backend
    if requested == "torch" or path == "empty":
        return path
    if obstacle is None and requested == "numba":
        loaded = _numba_path()
        obstacle = loaded if isinstance(loaded, str) else loaded.obstacle(member.entry.weight, member.entry.axes)
    if obstacle is None:
        return requested
    if backend == requested:
        raise ValueError(f'backend="{backend}" cannot serve weight {member.entry.name!r}: {obstacle}. Use "auto".')
    return path


def _without_compiler(member: _Member) -> tuple[str, str | None]:
    """Return the path that a weight takes without a compiler, and what rules a compiler out."""
    if member.shard is not None and member.shard.groups:
        return "cut", "its rows are cut over processes"
    weight = member.entry.weight
    if not weight.numel():
        return "empty", None
    path = "torch" if has_usual_radii(member.entry) else "functional"
    if member.overlaps:
        return path, "it shares memory with another weight"
    return path, None if is_plain(weight) else f"it is a {type(weight).__name__}, whose memory is not known"


def _group_key(member: _Member, path: str) -> Hashable:
    """Return the key that groups the weights of a path; on torch's, a weight that shares memory is its own group."""
    weight = member.entry.weight
    if path == "numba":
        return weight.dtype
    if path in ("functional", "compile"):
        return weight.device
    groups = () if member.shard is None else member.shard.groups
    return weight.device, norm_dtype(weight), groups, member.entry.name if member.overlaps else None


def _make(path: str, members: Sequence[_Member], constraint: Constraint) -> FunctionalPath:
    entries = [member.entry for member in members]
    if path == "cut":
        return dtensor.ShardedRows(entries, constraint, [member.shard for member in members if member.shard])
    if path == "numba":
        compiled: FunctionalPath = _numba_path()(entries, constraint)
        return compiled
    if path == "compile":
        from pbwn.paths.compile import CompiledPath

        return CompiledPath(entries, constraint)
    return TorchPath(entries, constraint) if path == "torch" else FunctionalPath(entries, constraint)


@functools.cache
def _numba_path() -> Any:
    """Import the class of the compiled path when first needed; where that fails, return the reason."""
    try:
        from pbwn.paths.numba import NumbaPath
    except ImportError as error:
        return f"numba cannot be imported ({error}): pip install 'pbwn[fast]'"
    except Exception as error:  # numba's imports may fail, such as on a user's own coverage.py
        return f"numba is installed and cannot be imported ({type(error).__name__}: {error})"
    return NumbaPath


def refuse_mismatches(
    constraint: Constraint, weights: Iterable[ConstrainedWeight], lengths: Mapping[str, float | Tensor]
) -> None:
    """Refuse weights without values, and those whose dtype cannot hold the norm of their neurons."""
    for weight in weights:
        tensor, length = weight.tensor, lengths.get(weight.name)
        if tensor.is_meta:
            raise ValueError(f"parameter {weight.name!r} is on the meta device and has no values: materialise it first")
        if tensor.dtype not in SUPPORTED_DTYPES:
            raise ValueError(f"weight {weight.name!r}: its dtype {tensor.dtype} is not supported")
        if isinstance(constraint, MaxNorm):
            length = min(constraint.limit, torch.finfo(tensor.dtype).max)  # beyond which nothing is ever shortened
        found = mismatch(length, tensor.dtype, weight.fan_in) if isinstance(length, float) else None
        if found is not None:
            raise ValueError(f"weight {weight.name!r}: {found}")


def refuse_gathered(weights: Iterable[ConstrainedWeight]) -> None:
    """Refuse weights that were sharded over processes but are whole: what is written to such copies is lost."""
    for weight in weights:
        if not dtensor.is_sharded(weight.tensor):
            raise RuntimeError(
                f"weight {weight.name!r} was sharded over processes, and a gathered copy is in its place: attach to "
                "the whole model that fully_shard was called on, so that its shards are put back before a projection"
            )


def refuse_radii(weights: Iterable[ConstrainedWeight], radii: Mapping[str, float | Tensor]) -> None:
    """Refuse weights whose number of neurons has changed since the radii were measured."""
    for weight in weights:
        own = radii.get(weight.name)
        if isinstance(own, Tensor) and tuple(own.shape) != dtensor.neuron_shape(weight.tensor, weight.axes):
            raise RuntimeError(
                f"weight {weight.name!r} has neurons of shape {dtensor.neuron_shape(weight.tensor, weight.axes)}, and "
                f"radii of shape {tuple(own.shape)}: it was cut, grown or sharded after attach. Call detach() on the "
                "projection and attach again."
            )


_parameters = attrgetter("_parameters")
