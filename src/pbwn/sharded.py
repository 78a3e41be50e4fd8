"""Weights that are spread over processes (DTensor): FSDP2 and tensor parallelism.

Each process works on the shard that it holds. Along neurons a shard has whole rows, and nothing is communicated.
Along the fan-in it has a part of each row: what the parts add up to is gathered once, for all weights together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from pbwn import projection
from pbwn.axes import Axes
from pbwn.constraint import Constraint

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a DTensor, without importing what a program of one process never uses."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def refuse_flattened(model: nn.Module) -> None:
    """Refuse weights that have lost their rows: flattened by FSDP1, or partitioned by ZeRO stage 3."""
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id"):
            raise ValueError(
                f"weight {name!r} is partitioned by DeepSpeed ZeRO stage 3, which flattens it so that its rows are "
                "lost: use torch.distributed.fsdp.fully_shard (FSDP2)"
            )
    for module in model.modules():
        is_wrapper = any(layer.__name__ == "FullyShardedDataParallel" for layer in type(module).__mro__)
        if is_wrapper or "_flat_param" in module._parameters or _is_flat(module):
            raise ValueError(
                "the model is wrapped in FullyShardedDataParallel, which flattens weights so that their rows are lost: "
                "shard it with torch.distributed.fsdp.fully_shard (FSDP2) instead"
            )


def _is_flat(module: nn.Module) -> bool:
    """Whether a linear layer is left with a piece of its weight: where the wrapper is around, and not in, the model."""
    if type(module) is not nn.Linear:
        return False
    weight = module._parameters.get("weight")
    return type(weight) is nn.Parameter and weight.ndim == 1


class FsdpModules:
    """The modules of a model whose weights FSDP2 gathers and spreads, as far as they were found."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._found: list[Any] = []

    def look_again(self) -> None:
        """Find those that are there by now, and have their shards put back."""
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        kind = getattr(fsdp, "FSDPModule", ())
        self._found = [module for module in self._model.modules() if isinstance(module, kind)]
        self.reshard()

    def reshard(self) -> None:
        """Have shards put back in place: after an evaluation the root module still holds gathered copies."""
        for module in self._found:
            module.reshard()


def reshard(model: nn.Module) -> None:
    """Have FSDP2 put all shards of a model back in place."""
    FsdpModules(model).look_again()


@dataclass(frozen=True)
class Shard:
    """The part of a weight that this process holds.

    `axes` are those of the part. `partners` are the process groups that hold the other parts of the same rows; they
    exchange tensors on devices of the type `meeting`, where an offloaded part is not.
    `blocks` gives, where the blocks of a grouped weight are cut through, the block that each entry of the part's
    dimension 0 belongs to; such a part has a row of its own for each of these entries.
    """

    part: Tensor
    axes: Axes
    partners: tuple[Any, ...]
    blocks: Tensor | None
    num_blocks: int
    meeting: str

    @classmethod
    def of(cls, weight: Tensor, axes: Axes) -> Shard:
        """Look up the part of a weight that this process holds; it shares the weight's storage."""
        assert is_sharded(weight)
        mesh, cut_dims = weight.device_mesh, [getattr(placement, "dim", None) for placement in weight.placements]
        partners = [mesh.get_group(i) for i, cut in enumerate(cut_dims) if cut is not None and cut not in axes.neurons]
        part = weight.to_local()
        if axes.groups == 1 or 0 not in cut_dims:
            return cls(part, axes, tuple(partners), None, axes.groups, mesh.device_type)
        blocks = torch.arange(weight.shape[0], device=part.device) // (weight.shape[0] // axes.groups)
        for index, cut in enumerate(cut_dims):
            if cut == 0:
                pieces, rank = blocks.chunk(mesh.size(index)), mesh.get_local_rank(index)
                blocks = pieces[rank] if rank < len(pieces) else blocks[:0]
        cuts = [placement for placement, cut in zip(weight.placements, cut_dims, strict=True) if cut == 0]
        if any(type(placement).__name__ != "Shard" for placement in cuts) or len(blocks) != part.shape[0]:
            raise ValueError(
                f"a grouped weight of shape {tuple(weight.shape)} is sharded as {weight.placements}, whose order is "
                "not known: shard it along another dimension, or leave it alone with skip="
            )
        return cls(part, Axes((0, *axes.neurons)), tuple(partners), blocks, axes.groups, mesh.device_type)

    @property
    def neuron_shape(self) -> tuple[int, ...]:
        """The shape of a tensor that holds one number per neuron."""
        shape = self.axes.neuron_shape(tuple(self.part.shape))
        return shape if self.blocks is None else (self.num_blocks, *shape[1:])

    def norms(self) -> Tensor:
        """The part's contribution to the norm of each neuron."""
        norms = projection.row_norms(self.part, self.axes)
        return norms if self.blocks is None else projection.roots(self._per_block(norms.square()))

    def dots(self, gradient: Tensor) -> Tensor:
        """The part's contribution to the inner product of each neuron's weights with their gradient."""
        dots = projection.row_dots(self.part, gradient, self.axes)
        return dots if self.blocks is None else self._per_block(dots)

    def per_row(self, values: Tensor) -> Tensor:
        """Hand a number per neuron on to the rows of this part."""
        return values if self.blocks is None else values[self.blocks]

    def _per_block(self, values: Tensor) -> Tensor:
        assert self.blocks is not None
        return values.new_zeros(self.num_blocks, *values.shape[1:]).index_add_(0, self.blocks, values)


def neuron_shape(weight: Tensor, axes: Axes) -> tuple[int, ...]:
    """The shape of a number per neuron of a weight, or of those that this process's shard has a part of."""
    return Shard.of(weight, axes).neuron_shape if is_sharded(weight) else axes.neuron_shape(tuple(weight.shape))


def row_norms(shards: Sequence[Shard]) -> list[Tensor]:
    """The norms of the neurons that each shard has a part of."""
    return _combine(shards, [shard.norms() for shard in shards], _norm_of)


def project_(
    shards: Sequence[Shard], constraint: Constraint, radii: Sequence[Tensor | None], *, leave_within: float = 0.0
) -> None:
    """Project sharded weights in place: equation (10), with one exchange for the rows that are cut."""
    for shard, norms, radius in zip(shards, row_norms(shards), radii, strict=True):
        factors = projection.safe_factors(constraint, norms, radius, leave_within=leave_within)
        projection.scale_rows_(shard.part, shard.axes, shard.per_row(factors))


def tangent_(shards: Sequence[Shard], gradients: Sequence[Tensor], radii: Sequence[Tensor | None]) -> None:
    """Make gradients of sharded weights tangent in place: equation (7), with one exchange for the rows that are cut."""
    pairs = [
        torch.stack([shard.norms(), shard.dots(gradient)]) for shard, gradient in zip(shards, gradients, strict=True)
    ]
    combined = _combine(shards, pairs, lambda parts: torch.stack([_norm_of(parts[:, 0]), parts[:, 1].sum(0)]))
    for shard, gradient, radius, (norms, dots) in zip(shards, gradients, radii, combined, strict=True):
        coefficients = shard.per_row(projection.tangent_coefficients(norms, dots, radius))
        projection.subtract_rows_(gradient, shard.part, shard.axes, coefficients)


def local_gradient(weight: Tensor) -> Tensor:
    """Look up the part of a weight's gradient that this process holds, spread like the weight."""
    assert is_sharded(weight)
    gradient: Any = weight.grad
    if gradient.placements != weight.placements:
        gradient = weight.grad = gradient.redistribute(weight.device_mesh, weight.placements)
    part: Tensor = gradient.to_local()
    return part


def gather(values: Tensor, weight: Tensor, axes: Axes) -> Tensor:
    """Put together a number per neuron over all processes that share a weight; each of them has to call this."""
    if not is_sharded(weight):
        return values
    from torch.distributed.tensor import DTensor

    shape = torch.Size(axes.neuron_shape(tuple(weight.shape)))
    stride = torch.empty(shape, device="meta").stride()
    spread = DTensor.from_local(values, weight.device_mesh, _placements(weight, axes), shape=shape, stride=stride)
    return spread.full_tensor()


def scatter(values: Tensor, weight: Tensor, axes: Axes) -> Tensor:
    """Take this process's share of a number per neuron: the inverse of `gather`."""
    if not is_sharded(weight):
        return values
    from torch.distributed.tensor import distribute_tensor

    try:
        return distribute_tensor(values, weight.device_mesh, _placements(weight, axes)).to_local()
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"radii of a weight of shape {tuple(weight.shape)} cannot be spread as {weight.placements}: make its rows "
            "divide evenly over the mesh"
        ) from error


def _placements(weight: DTensor, axes: Axes) -> list[Any]:
    """How a number per neuron is spread where its weight is spread like this."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as Cut

    def placed(placement: Any) -> Any:
        cut = getattr(placement, "dim", None)
        if cut not in axes.neurons:
            return Replicate()
        dim = axes.neurons.index(cut) + (axes.groups > 1)
        if dim == cut:
            return placement
        # FSDP2 over tensor parallelism cuts in another order, which it notes in a kind of Shard of its own.
        factor = getattr(placement, "split_factor", None)
        return Cut(dim) if factor is None else type(placement)(dim, split_factor=factor)

    return [placed(placement) for placement in weight.placements]


def _combine(shards: Sequence[Shard], values: Sequence[Tensor], merge: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Exchange the contributions to rows that are cut, all weights of a process group at once, and merge them."""
    merged = list(values)
    for group in dict.fromkeys(partner for shard in shards for partner in shard.partners):
        members = [index for index, shard in enumerate(shards) if group in shard.partners]
        mine = torch.cat([merged[index].flatten() for index in members]).to(shards[members[0]].meeting)
        parts = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(group))]
        torch.distributed.all_gather(parts, mine, group=group)
        sizes = [merged[index].numel() for index in members]
        for index, piece in zip(members, torch.stack(parts).split(sizes, dim=1), strict=True):
            merged[index] = merge(piece.to(merged[index].device).unflatten(1, merged[index].shape))
    return merged


def _norm_of(parts: Tensor) -> Tensor:
    """The norms of rows from the norms of their parts, stacked along dimension 0."""
    return projection.row_norms(parts, Axes(tuple(range(1, parts.ndim))))
