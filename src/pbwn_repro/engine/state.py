"""A run's state as files: weights as safetensors, the rest as torch files that are safe to load."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def pack(
    model: nn.Module, optimizer: Optimizer, extra: Mapping[str, Mapping[str, Any]], progress: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files of a checkpoint. Where weights are sharded, every process has to call this."""
    moments = _sharded().get_optimizer_state_dict(model, optimizer, options=_whole()) if is_sharded(model) else None
    return {
        "model.safetensors": pack_weights(whole_weights(model)),
        "optimizer.pt": _pack(moments or optimizer.state_dict()),
        **{f"{name}.pt": _pack(state) for name, state in extra.items()},
        "progress.json": json.dumps(progress, sort_keys=True).encode(),
    }


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's state, put together from its shards where it has any."""
    return _sharded().get_model_state_dict(model, options=_whole()) if is_sharded(model) else model.state_dict()


def pack_weights(weights: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    return safetensors.torch.save(plain, metadata)


def load_weights(model: nn.Module, content: bytes) -> None:
    """Copy saved weights into the model; their strides stay the model's."""
    weights = safetensors.torch.load(content)
    if is_sharded(model):
        _sharded().set_model_state_dict(model, weights, options=_whole())
    else:
        model.load_state_dict(weights)


def load_optimizer(model: nn.Module, optimizer: Optimizer, content: bytes) -> None:
    """Give an optimizer its saved state."""
    state = unpack(content)
    if is_sharded(model):
        _sharded().set_optimizer_state_dict(model, optimizer, state, options=_whole())
    else:
        optimizer.load_state_dict(state)


def unpack(content: bytes) -> Any:
    """Load a torch file; nothing in it can run code."""
    return torch.load(io.BytesIO(content), weights_only=True)


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 spreads the model's weights."""
    return any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def _sharded() -> Any:
    """Torch's module for sharded states, which takes long to import and is seldom needed."""
    from torch.distributed.checkpoint import state_dict

    return state_dict


def _whole() -> Any:
    return _sharded().StateDictOptions(full_state_dict=True, cpu_offload=True)


def _pack(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()
