"""A loop like torchtitan's: a model created on the meta device and sharded, a list of optimizers, a checkpoint.

torchrun --nproc-per-node 2 examples/torchtitan.py
"""

import os
import tempfile
import time
from typing import Any

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pbwn

STEPS, WIDTH, CLASSES = 60, 64, 8
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
mesh = init_device_mesh(device, (world,))


class Transformer(nn.Module):
    """Named layers and an output layer, whose weights are initialised after sharding."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {str(i): nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for i in range(3)}
        )
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = x + layer(x)
        return self.output(self.norm(x))


class TrainState(Stateful):
    """The content of a checkpoint: the states of the model, the optimizers and the projection."""

    def __init__(self, model: nn.Module, optimizers: list[Any], projection: pbwn.NormProjection | None) -> None:
        self.model, self.optimizers, self.projection = model, optimizers, projection

    def state_dict(self) -> dict[str, Any]:
        model, optimizers = get_state_dict(self.model, self.optimizers)
        own = {} if self.projection is None else self.projection.state_dict()
        return {"model": model, "optimizers": optimizers, "projection": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizers"]
        )
        if self.projection is not None:
            self.projection.load_state_dict(state["projection"])


def build(**options: object) -> TrainState:
    """Create model and optimizers and, if options of `attach` are given, attach the constraint."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Transformer()
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    model.init_weights()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)]  # pipelines: one per stage
    projection = pbwn.attach(model, optimizers, **options) if options else None  # the added line: after init_weights
    return TrainState(model, optimizers, projection)


def train(state: TrainState, first: int, last: int) -> float:
    """Train from step `first` to step `last`; return the last loss."""
    loss = torch.zeros(())
    for step in range(first, last):
        torch.manual_seed(1000 * step + rank)  # different data in each step and process
        x = torch.randn(64, WIDTH, device=device)
        loss = nn.functional.cross_entropy(state.model(x), x[:, :CLASSES].argmax(1))
        loss.backward()
        nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)
        for optimizer in state.optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


baseline = train(build(), 0, STEPS)
settings = {"constraint": pbwn.UnitNorm(radius="initial"), "step": "tangent"}
with tempfile.TemporaryDirectory() as folder:
    folders = [folder]
    torch.distributed.broadcast_object_list(folders)  # the same folder for all processes
    state = build(**settings)
    train(state, 0, STEPS // 2)
    dcp.save({"train": state}, checkpoint_id=folders[0])
    straight = train(state, STEPS // 2, STEPS)
    resumed = build(**settings)
    dcp.load({"train": resumed}, checkpoint_id=folders[0])
    loss = train(resumed, STEPS // 2, STEPS)
    torch.distributed.barrier()
certificate = resumed.projection.check()
if rank == 0:
    print(f"{world} processes, {certificate}")
    print(f"loss: {baseline:.4f} with AdamW, {loss:.4f} with fixed norms; without the interruption {straight:.4f}")
torch.distributed.destroy_process_group()
time.sleep(0.1)  # lets gloo's threads free their tensors: freeing one while Python shuts down aborts the process
