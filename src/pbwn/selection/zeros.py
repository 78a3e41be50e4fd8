"""Weights that are zero from the start, which are left alone unless they are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from pbwn import sharded
from pbwn.layout import is_plain
from pbwn.selection.rules import Reason
from pbwn.selection.weights import Selection

_ALL_ZERO = Reason(
    "all zero (such as LoRA's B, or a residual branch that starts at zero): a step away from zero would be blown up to "
    "the sphere (also= constrains it)"
)


def without_zeros(selection: Selection, *, sharded_only: bool, exchange: bool = True) -> Selection:
    """Leave weights alone that are zero from the start, unless they are named.

    Whether a sharded weight is zero takes an exchange of all processes that hold a part of it.
    """
    unnamed = [weight for weight in selection.constrained if not weight.is_named]
    spread = [weight for weight in unnamed if sharded.is_sharded(weight.tensor)] if exchange else []
    plain = [] if sharded_only else [weight for weight in unnamed if is_plain(weight.tensor)]
    zero = {id(weight) for weight, is_zero in zip(plain, _are_zero([w.tensor for w in plain]), strict=True) if is_zero}
    zero |= {
        id(w) for w, is_zero in zip(spread, _are_zero_everywhere([w.tensor for w in spread]), strict=True) if is_zero
    }
    if not zero:
        return selection
    return replace(
        selection,
        constrained=tuple(weight for weight in selection.constrained if id(weight) not in zero),
        left_alone=(
            *selection.left_alone,
            *(weight.left_alone(_ALL_ZERO) for weight in selection.constrained if id(weight) in zero),
        ),
    )


def _are_zero(tensors: Sequence[Tensor]) -> list[bool]:
    """Whether tensors are zero, each as a whole; the values of each device are waited for once."""
    found = [False] * len(tensors)
    by_device: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor.device.type != "cpu":
            by_device.setdefault(tensor.device, []).append(index)
        elif not tensor[(0,) * tensor.ndim].item():  # nearly always enough, and free on the CPU
            found[index] = not tensor.detach().any().item()
    for indices in by_device.values():
        flags = torch.stack([tensors[index].detach().any() for index in indices])
        for index, is_any in zip(indices, flags.tolist(), strict=True):
            found[index] = not is_any
    return found


def _are_zero_everywhere(tensors: Sequence[Tensor]) -> list[bool]:
    """The same for sharded tensors, each over all its parts."""
    found = [False] * len(tensors)
    by_mesh: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        assert sharded.is_sharded(tensor)
        by_mesh.setdefault(tensor.device_mesh, []).append(index)
    for mesh, indices in by_mesh.items():
        from torch.distributed.tensor import DTensor, Partial

        parts = [cast(Any, tensors[index]).to_local().any().to(mesh.device_type) for index in indices]
        own = torch.stack(parts).to(torch.int32)
        flags = DTensor.from_local(own, mesh, [Partial("max")] * mesh.ndim, run_check=False).full_tensor()
        for index, is_any in zip(indices, flags.tolist(), strict=True):
            found[index] = not is_any
    return found
