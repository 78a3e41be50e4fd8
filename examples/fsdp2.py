"""Train a model whose weights are sharded over several processes.

torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import os
import time

import torch
import torch.distributed
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pbwn

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()

torch.manual_seed(0)  # the same weights in each process
model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
model.to(device)
mesh = init_device_mesh(device, (world,))
for layer in (model[0], model[3], model):
    fully_shard(layer, mesh=mesh)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
projection = pbwn.attach(model, optimizer)  # the added line, after sharding

torch.manual_seed(1 + rank)  # different data in each process
for _ in range(20):
    x = torch.randn(32, 16, device=device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    optimizer.step()

# Every process has to make these calls, because they gather whole rows; one prints.
certificate = projection.check()
weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if rank == 0:
    plain = nn.Sequential(
        nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    plain.load_state_dict(weights)
    print(f"{world} processes, {certificate}")
    print(
        f"norms in the plain model: {plain[0].weight.norm(dim=1).min():.6f} to {plain[0].weight.norm(dim=1).max():.6f}"
    )
torch.distributed.destroy_process_group()
time.sleep(0.1)  # lets gloo's threads free their tensors: freeing one while Python shuts down aborts the process
