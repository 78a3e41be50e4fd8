"""The finished model: plain, on the sphere where that was promised, with its certificate."""

from __future__ import annotations

import copy
import json
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

import pbwn
from pbwn_repro.engine.state import pack_weights, whole_weights


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
