"""Weights that are all zero from the start, which are left alone unless they are named."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pbwn.layout import is_plain
from pbwn.paths import dtensor
from pbwn.selection.rules import ALL_ZERO
from pbwn.selection.weights import Selection


def without_zeros(selection: Selection, *, exchange: bool = True, known: Collection[str] = ()) -> Selection:
    """Leave alone the weights that are zero from the start and not named; those in `known` were zero at the start.

    To see whether a sharded weight is zero takes an exchange among all processes that hold a part of it.
    """
    is_named = selection.choice.includes
    unnamed = [weight for weight in selection.constrained if not is_named((weight.name, *weight.others))]
    readable = [
        weight for weight in unnamed if is_plain(weight.tensor) or (exchange and dtensor.is_sharded(weight.tensor))
    ]
    are_zero = dict(zip(readable, _are_zero([weight.tensor for weight in readable]), strict=True))
    zero = [weight for weight in unnamed if weight.name in known or are_zero.get(weight)]
    return selection.without(dict.fromkeys(zero, ALL_ZERO))


def with_zeros(selection: Selection) -> Selection:
    """Constrain the weights after all that are left alone because they are zero."""
    zero = {other: other.weight for other in selection.left_alone if other.weight and other.reason is ALL_ZERO}
    return replace(
        selection,
        constrained=(*selection.constrained, *zero.values()),
        left_alone=tuple(other for other in selection.left_alone if other not in zero),
    )


def _are_zero(tensors: Sequence[Tensor]) -> list[bool]:
    """Return whether each tensor is all zero. Where all are on one device, it is waited for once."""
    flags = [_any(tensor.detach()) for tensor in tensors]
    return [not flag for flag in torch.stack([flag.to(flags[0].device) for flag in flags]).tolist()] if flags else []


def _any(tensor: Tensor) -> Tensor:
    if dtensor.is_sharded(tensor):
        from torch.distributed.tensor import DTensor, Partial

        mesh = tensor.device_mesh
        own = tensor.to_local().any().to(mesh.device_type, torch.int32)
        flag: Tensor = DTensor.from_local(own, mesh, [Partial("max")] * mesh.ndim, run_check=False).full_tensor().bool()
        return flag
    if tensor.device.type == "cpu" and tensor[(0,) * tensor.ndim] != 0:  # nearly always enough, and free on the CPU
        return torch.tensor(True)
    return tensor.any()
