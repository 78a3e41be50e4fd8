"""Teach pbwn which dimensions of your own layer's weight index its neurons.

python examples/custom_layer.py
"""

import torch
from torch import nn

import pbwn


class Experts(nn.Module):
    """Several linear layers in one weight, stored (expert, out, in); every input goes to all of them."""

    def __init__(self, experts: int, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, fan_out, fan_in) / fan_in**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bi,eoi->beo", x, self.weight).mean(dim=1)


torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(8, 8), nn.LayerNorm(8), Experts(4, 8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2)
)
print(pbwn.select(model))  # the weight of an unknown layer is left alone: nothing is guessed

pbwn.register(Experts, weight=(0, 1))  # a neuron is an (expert, out) pair: its weights run over the last dimension
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
projection = pbwn.attach(model, optimizer)
print(f"\n{projection}")

for _ in range(20):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), (x.sum(dim=1) > 0).long()).backward()
    optimizer.step()
print(f"\n{projection.check()}")

# For one model alone, or where the weight belongs to no layer of its own, name it instead of registering its type:
#   pbwn.attach(model, optimizer, axes={"2.weight": (0, 1)})
