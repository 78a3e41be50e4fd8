"""A run's state as files: weights as safetensors, the rest as torch files that are safe to load."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_BROADCAST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=False)


def pack(
    model: nn.Module, optimizer: Optimizer, extra: Mapping[str, Mapping[str, Any]], progress: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files of a checkpoint. Where weights are sharded, every process has to call this."""
    sharded = is_sharded(model)
    weights = get_model_state_dict(model, options=_WHOLE) if sharded else model.state_dict()
    moments = get_optimizer_state_dict(model, optimizer, options=_WHOLE) if sharded else optimizer.state_dict()
    return {
        "model.safetensors": pack_weights(weights),
        "optimizer.pt": _pack(moments),
        **{f"{name}.pt": _pack(state) for name, state in extra.items()},
        "progress.json": json.dumps(progress, sort_keys=True).encode(),
    }


def pack_weights(weights: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    return safetensors.torch.save(plain, metadata)


def load_weights(model: nn.Module, content: bytes) -> None:
    """Copy saved weights into the model; their strides stay the model's."""
    weights = safetensors.torch.load(content)
    if is_sharded(model):
        set_model_state_dict(model, weights, options=_BROADCAST)
    else:
        model.load_state_dict(weights)


def load_optimizer(model: nn.Module, optimizer: Optimizer, content: bytes) -> None:
    """Give an optimizer its saved state."""
    state = unpack(content)
    if is_sharded(model):
        set_optimizer_state_dict(model, optimizer, state, options=_BROADCAST)
    else:
        optimizer.load_state_dict(state)


def unpack(content: bytes) -> Any:
    """Load a torch file; nothing in it can run code."""
    return torch.load(io.BytesIO(content), weights_only=True)


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 spreads the model's weights."""
    return any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def _pack(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()
