"""Register which dimensions of a custom layer's weight index its neurons.

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


def build() -> nn.Module:
    """Return the model, with the same initial weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 8), nn.LayerNorm(8), Experts(4, 8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2)
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Train on whether the sum of the inputs is positive; return the test error in percent."""
    for _ in range(50):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x.sum(dim=1) > 0).long()).backward()
        optimizer.step()
    x = torch.randn(1000, 8)
    return 100 * (model(x).argmax(dim=1) != (x.sum(dim=1) > 0)).float().mean().item()


plain = build()
baseline = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))

model = build()
print(pbwn.select(model))  # the weight of an unknown layer is not constrained: axes are never guessed

pbwn.register(Experts, weight=(0, 1))  # a neuron is an (expert, out) pair: its weights run over the last dimension
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
projection = pbwn.attach(model, optimizer)
# For a single model, or a weight outside of a layer class, name the weight instead of registering a class:
#   pbwn.attach(model, optimizer, axes={"2.weight": (0, 1)})
error = train(model, optimizer)
print(f"\n{projection}\n\n{projection.check()}")
print("\nof 1000 test inputs, one seed each: differences under about 2 points are noise")
print(f"test error: {baseline:.1f} % without the constraint, {error:.1f} % with it")
