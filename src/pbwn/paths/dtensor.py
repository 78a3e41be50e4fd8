"""Weights that are sharded over processes (DTensor): FSDP2 and tensor parallelism.

Each process works on the shard that it holds. Sharded along neurons, a shard has whole rows: it is projected like any
other weight, and nothing is communicated. Sharded along the fan-in, it has a part of each row: the norms of the parts
are exchanged once, for all weights together.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from pbwn import functional
from pbwn.axes import Axes
from pbwn.constraint import Constraint
from pbwn.paths.torch import Entry, TorchPath, norm_dtype

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

T = TypeVar("T", bound="float | Tensor")


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a DTensor, without an import that a program of one process never needs."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


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
    """Whether a linear layer has only a flat piece of its weight, as when a wrapper around the model cuts it."""
    if type(module) is not nn.Linear:
        return False
    weight = module._parameters.get("weight")
    return type(weight) is nn.Parameter and weight.ndim == 1


class FsdpModules:
    """The modules of a model whose weights FSDP2 shards, as of the last call of `find`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._found: list[Any] = []

    def find(self) -> None:
        """Find the sharded modules, and have their shards put back."""
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        kind = getattr(fsdp, "FSDPModule", ())
        self._found = [module for module in self._model.modules() if isinstance(module, kind)]
        self.reshard()

    def reshard(self) -> None:
        """Have shards put back: after an evaluation the root module still holds gathered copies."""
        for module in self._found:
            module.reshard()


def reshard(model: nn.Module) -> None:
    """Have FSDP2 put back all shards of a model."""
    FsdpModules(model).find()


@dataclass(frozen=True)
class Shard:
    """The part of a weight that this process holds.

    Args:
        part: the local tensor; it shares the weight's storage.
        axes: the axes of the part.
        groups: the process groups that hold the other parts of the same rows; none where rows are whole.
        device_type: the type of the devices on which processes exchange tensors; an offloaded part is on another.
        blocks: if the blocks of a grouped weight are cut, the block that each entry of the part's dimension 0 belongs
            to; such a part has its own row for each of these entries.
        num_blocks: the total number of blocks.
    """

    part: Tensor
    axes: Axes
    groups: tuple[Any, ...]
    device_type: str
    blocks: Tensor | None = None
    num_blocks: int = 1

    @classmethod
    def of(cls, weight: Tensor, axes: Axes) -> Shard:
        """Look up the part of a weight that this process holds."""
        assert is_sharded(weight)
        mesh, cut_dims = weight.device_mesh, [getattr(placement, "dim", None) for placement in weight.placements]
        groups = [mesh.get_group(i) for i, cut in enumerate(cut_dims) if cut is not None and cut not in axes.neurons]
        part = weight.to_local()
        if axes.groups == 1 or axes.grouped not in cut_dims:
            return cls(part, axes, tuple(groups), mesh.device_type)
        blocks = torch.arange(weight.shape[0], device=part.device) // (weight.shape[0] // axes.groups)
        for index, cut in enumerate(cut_dims):
            if cut == 0:
                pieces, rank = blocks.chunk(mesh.size(index)), mesh.get_local_rank(index)
                blocks = pieces[rank] if rank < len(pieces) else blocks[:0]
        cuts = [placement for placement, cut in zip(weight.placements, cut_dims, strict=True) if cut == 0]
        is_unknown = any(type(placement).__name__ != "Shard" for placement in cuts) or len(blocks) != part.shape[0]
        if axes.grouped or is_unknown:
            raise ValueError(
                f"a grouped weight of shape {tuple(weight.shape)} is sharded as {weight.placements}, and which of its "
                "blocks a process has is not known: shard it along another dimension, or leave it alone with skip="
            )
        return cls(part, Axes((0, *axes.neurons)), tuple(groups), mesh.device_type, blocks, axes.groups)

    @property
    def neuron_shape(self) -> tuple[int, ...]:
        """The shape of a tensor that holds one value per neuron that this process has a part of."""
        shape = self.axes.neuron_shape(tuple(self.part.shape))
        return shape if self.blocks is None else (self.num_blocks, *shape[1:])

    def per_row(self, values: T) -> T:
        """Expand one value per neuron to the rows of the part; a scalar holds for all of them."""
        if self.blocks is None or not isinstance(values, Tensor):
            return values
        return values.index_select(0, self.blocks)  # type: ignore[return-value]

    def neuron_of_row(self) -> Tensor:
        """Return the index of the neuron that each row of the part belongs to."""
        shape = self.axes.neuron_shape(tuple(self.part.shape))
        indices = torch.arange(torch.Size(self.neuron_shape).numel(), device=self.part.device).view(self.neuron_shape)
        return (indices if self.blocks is None else indices.index_select(0, self.blocks)).expand(shape).flatten()


class ShardedRows(TorchPath):
    """Shards that hold parts of rows, with the same process groups: one exchange for all weights together.

    On the CPU, norms are accumulated in float64, so that no row is out of range. Elsewhere a row whose norm comes out
    infinite or zero takes a second projection, as on the path of whole rows.
    """

    has_fallback = False

    def __init__(self, entries: Sequence[Entry], constraint: Constraint, shards: Sequence[Shard]) -> None:
        is_cpu = shards[0].part.device.type == "cpu"
        super().__init__(entries, constraint, torch.float64 if is_cpu else norm_dtype(shards[0].part))
        self._groups, self._device_type = shards[0].groups, shards[0].device_type
        self._neurons = None
        if any(shard.blocks is not None for shard in shards):
            counts = [torch.Size(shard.neuron_shape).numel() for shard in shards]
            starts = [sum(counts[:index]) for index in range(len(counts))]
            indices = [shard.neuron_of_row() + start for shard, start in zip(shards, starts, strict=True)]
            self._neurons, self._num_neurons = torch.cat(indices), sum(counts)

    def _combine_(self, norms: Tensor, dots: Tensor | None = None) -> None:
        """Replace the norms of parts by those of whole rows, and their products likewise."""
        values = norms.unsqueeze(0) if dots is None else torch.stack([norms, dots])
        values = values.to(functional.wide_dtype(norms))
        if self._neurons is not None:
            sums = values.new_zeros(len(values), self._num_neurons)
            values[0].square_()
            values = sums.index_add_(1, self._neurons, values)
            values[0] = functional.roots(values[0])
        values = exchange(values, self._groups, self._device_type)
        if self._neurons is not None:
            values = values.index_select(1, self._neurons)
        norms.copy_(values[0])
        if dots is not None:
            dots.copy_(values[1])


def exchange(values: Tensor, groups: Sequence[Any], device_type: str) -> Tensor:
    """Combine the values of rows that are cut over processes: norms in row 0 of `values`, sums in the others.

    All parts are gathered and added up in the same order everywhere: processes agree to the last bit.
    """
    for group in groups:
        own = values.to(device_type).contiguous()
        parts = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size(group))]
        torch.distributed.all_gather(parts, own, group=group)
        stacked = torch.stack(parts).to(values.device)
        values = torch.cat([vector_norm(stacked[:, :1], 2, 0), stacked[:, 1:].sum(0)])
    return values


@torch.no_grad()
def row_norms(weight: Tensor, axes: Axes) -> Tensor:
    """Return the norms of a weight's neurons in float64, or of those that this process's shard has a part of."""
    if not is_sharded(weight):
        return functional.row_norms(weight, axes)
    shard = Shard.of(weight, axes)
    norms = functional.row_norms(shard.part, shard.axes)
    if shard.blocks is not None:
        squares = norms.new_zeros(shard.neuron_shape).index_add_(0, shard.blocks, norms.square())
        norms = functional.roots(squares)
    return exchange(norms.flatten().unsqueeze(0), shard.groups, shard.device_type).view(shard.neuron_shape)


@torch.no_grad()
def row_dots(weight: Tensor, other: Tensor, axes: Axes) -> Tensor:
    """Return the inner products of a weight's neurons with those of a tensor that is sharded alike, in float64."""
    if not is_sharded(weight):
        return functional.row_dots(weight, other, axes)
    shard = Shard.of(weight, axes)
    dots = functional.row_dots(shard.part, local(other), shard.axes)
    if shard.blocks is not None:
        dots = dots.new_zeros(shard.neuron_shape).index_add_(0, shard.blocks, dots)
    values = torch.stack([torch.zeros_like(dots), dots]).flatten(1)
    return exchange(values, shard.groups, shard.device_type)[1].view(shard.neuron_shape)


def neuron_shape(weight: Tensor, axes: Axes) -> tuple[int, ...]:
    """Return the shape of one value per neuron of a weight, or of those that this process's shard has a part of."""
    return Shard.of(weight, axes).neuron_shape if is_sharded(weight) else axes.neuron_shape(tuple(weight.shape))


def local_gradient(weight: Tensor) -> Tensor | None:
    """Look up the part of a weight's gradient that this process holds, sharded like the weight."""
    assert is_sharded(weight)
    gradient: Any = weight.grad
    if gradient is None:
        return None
    if gradient.placements != weight.placements:
        gradient = weight.grad = gradient.redistribute(weight.device_mesh, weight.placements)
    part: Tensor = gradient.to_local()
    return part


def gather(values: Tensor, weight: Tensor, axes: Axes) -> Tensor:
    """Gather one value per neuron over all processes that share a weight; each of them has to call this."""
    if not is_sharded(weight):
        return values
    from torch.distributed.tensor import DTensor

    shape = torch.Size(axes.neuron_shape(tuple(weight.shape)))
    stride = torch.empty(shape, device="meta").stride()
    sharded = DTensor.from_local(values, weight.device_mesh, _placements(weight, axes), shape=shape, stride=stride)
    return sharded.full_tensor()


def scatter(values: Tensor, weight: Tensor, axes: Axes) -> Tensor:
    """Take this process's share of one value per neuron: the inverse of `gather`."""
    if not is_sharded(weight):
        return values
    from torch.distributed.tensor import distribute_tensor

    try:
        return distribute_tensor(values, weight.device_mesh, _placements(weight, axes)).to_local()
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"radii of a weight of shape {tuple(weight.shape)} cannot be sharded as {weight.placements}: make its rows "
            "divide evenly over the mesh"
        ) from error


def _placements(weight: DTensor, axes: Axes) -> list[Any]:
    """Return the placements of one value per neuron of a sharded weight."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as Cut

    def placed(placement: Any) -> Any:
        cut = getattr(placement, "dim", None)
        if cut not in axes.neurons:
            return Replicate()
        dim = axes.neurons.index(cut) + (axes.groups > 1)
        if dim == cut:
            return placement
        # FSDP2 over tensor parallelism cuts in another order, which it keeps in its own kind of Shard.
        factor = getattr(placement, "split_factor", None)
        return Cut(dim) if factor is None else type(placement)(dim, split_factor=factor)

    return [placed(placement) for placement in weight.placements]
