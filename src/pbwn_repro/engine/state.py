"""A run's weights and state: as files, as the exported model, and what is measured of them.

Weights are kept as safetensors, the rest as torch files that are safe to load.
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
    """Tensors as a safetensors file. Those that share memory, as tied weights do, are written under each name."""
    plain: dict[str, Tensor] = {}
    written = set()
    for name, tensor in weights.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if memory in written else tensor
        written.add(memory)
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


def export(model: nn.Module, projection: pbwn.NormProjection | None, identity: dict[str, Any]) -> bytes:
    """The model as a safetensors file. Where weights are sharded, every process has to call this.

    One metadata key holds everything: with several, the file's bytes would depend on chance.
    """
    certificate = {} if projection is None else {"largest_deviation": projection.check().largest_deviation}
    metadata = json.dumps({**identity, **certificate}, sort_keys=True)
    return pack_weights(plain_weights(model), {"pbwn": metadata})


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of the network as `pbwn_repro.models.build` makes it: parametrizations are worked in."""
    if not any(parametrize.is_parametrized(module) for module in model.modules()):
        return whole_weights(model)
    plain = copy.deepcopy(model)
    for module in plain.modules():
        if parametrize.is_parametrized(module):
            assert isinstance(module.parametrizations, nn.ModuleDict)
            for name in list(module.parametrizations):
                parametrize.remove_parametrizations(module, name)
    return plain.state_dict()


class NormWatch:
    """Watches the weights that a constraint would touch.

    Make it before the network is changed: weight normalization hides its weights under new names, and what the forward
    pass multiplies with is what counts.
    """

    def __init__(self, model: nn.Module, layers: Layers) -> None:
        """Find the weights."""
        self._weights = pbwn.select(model, **layers).constrained

    @torch.no_grad()
    def quartiles(self) -> list[float]:
        """The smallest norm of a neuron, the three quartiles and the largest norm; nothing where there are no neurons.

        Every process has to ask.
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
def estimate_statistics(model: nn.Module, inputs: Iterable[Tensor], place: Processes) -> None:
    """Set every BN's running statistics to the mean over one pass: they belong to the weights as they are now."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean over all batches
    model.train()
    for batch in inputs:
        model(batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        for statistic in (layer.running_mean, layer.running_var):
            assert statistic is not None
            statistic.copy_(place.sum(statistic.clone()) / place.count)
