"""The state of a run: saving, loading, exporting and measuring its weights.

Weights are saved as safetensors, everything else as torch files that are loaded with `weights_only=True`.
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize
from torch.optim import Optimizer

import pbwn
from pbwn.functional import row_norms
from pbwn_repro.engine.processes import Processes
from pbwn_repro.models import Layers


def pack(
    model: nn.Module, optimizer: Optimizer, extra: Mapping[str, Mapping[str, Any]], progress: Mapping[str, Any]
) -> dict[str, bytes]:
    """Return the files of a checkpoint. With sharded weights, every process must call this."""
    optimizer_state = (
        _state_api().get_optimizer_state_dict(model, optimizer, options=_full_options())
        if is_sharded(model)
        else optimizer.state_dict()
    )
    return {
        "model.safetensors": pack_weights(full_state_dict(model)),
        "optimizer.pt": _pack(optimizer_state),
        **{f"{name}.pt": _pack(state) for name, state in extra.items()},
        "progress.json": json.dumps(progress, sort_keys=True).encode(),
    }


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The model's state dict, gathered if its weights are sharded."""
    if not is_sharded(model):
        return model.state_dict()
    gathered: dict[str, Tensor] = _state_api().get_model_state_dict(model, options=_full_options())
    return gathered


def pack_weights(weights: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Serialise tensors as safetensors; tied weights, which share memory, are written under each name."""
    tensors: dict[str, Tensor] = {}
    written = set()
    for name, tensor in weights.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if memory in written else tensor
        written.add(memory)
    return safetensors.torch.save(tensors, metadata)


def load_weights(model: nn.Module, content: bytes) -> None:
    """Copy saved weights into the model, which keeps its strides."""
    weights = safetensors.torch.load(content)
    if is_sharded(model):
        _state_api().set_model_state_dict(model, weights, options=_full_options())
    else:
        model.load_state_dict(weights)


def load_optimizer(model: nn.Module, optimizer: Optimizer, content: bytes) -> None:
    """Restore the saved state of an optimizer."""
    state = unpack(content)
    if is_sharded(model):
        _state_api().set_optimizer_state_dict(model, optimizer, state, options=_full_options())
    else:
        optimizer.load_state_dict(state)


def unpack(content: bytes) -> Any:
    """Load a torch file without executing any code in it."""
    return torch.load(io.BytesIO(content), weights_only=True)


def is_sharded(model: nn.Module) -> bool:
    """Whether the model's weights are sharded (FSDP2)."""
    return any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def _state_api() -> Any:
    """Torch's module for sharded states, imported only when needed because that is slow."""
    from torch.distributed.checkpoint import state_dict

    return state_dict


def _full_options() -> Any:
    return _state_api().StateDictOptions(full_state_dict=True, cpu_offload=True)


def _pack(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def export(model: nn.Module, projection: pbwn.NormProjection | None, identity: dict[str, Any]) -> bytes:
    """Return the model as a safetensors file. With sharded weights, every process must call this.

    All metadata is under a single key, since the order of several keys in the file is random.
    """
    certificate = {} if projection is None else {"largest_deviation": projection.check().largest_deviation}
    metadata = json.dumps({**identity, **certificate}, sort_keys=True)
    return pack_weights(plain_weights(model), {"pbwn": metadata})


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights under the names that `pbwn_repro.models.build` gives them, with parametrizations applied."""
    if not any(parametrize.is_parametrized(module) for module in model.modules()):
        return full_state_dict(model)
    plain = copy.deepcopy(model)
    for module in plain.modules():
        if parametrize.is_parametrized(module):
            assert isinstance(module.parametrizations, nn.ModuleDict)
            for name in list(module.parametrizations):
                parametrize.remove_parametrizations(module, name)
    return plain.state_dict()


class NormWatch:
    """Measures the norms of the weights that a constraint applies to.

    Create it before a method changes the network: weight normalisation replaces its weights by other parameters, and
    the norms of interest are those of the weights that the forward pass uses.
    """

    def __init__(self, model: nn.Module, layers: Layers) -> None:
        """Select the weights."""
        self._weights = pbwn.select(model, **layers).constrained

    @torch.no_grad()
    def quartiles(self) -> list[float]:
        """The minimum, the three quartiles and the maximum of the neurons' norms; empty without neurons.

        With sharded weights, every process must call this.
        """
        norms = []
        for weight in self._weights:
            tensor = getattr(weight.module, weight.attribute)
            tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            norms.append(row_norms(tensor.detach(), weight.axes).flatten().double().cpu())
        if not norms:
            return []
        ordered = torch.cat(norms).sort().values
        last = len(ordered) - 1
        return [ordered[round(last * part / 4)].item() for part in range(5)]


@torch.no_grad()
def estimate_statistics(model: nn.Module, inputs: Iterable[Tensor], processes: Processes) -> None:
    """Set the running statistics of all BN layers to their means over `inputs`, with the current weights."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average over all batches
    model.train()
    for batch in inputs:
        model(batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        for statistic in (layer.running_mean, layer.running_var):
            assert statistic is not None
            statistic.copy_(processes.sum(statistic.clone()) / processes.count)
