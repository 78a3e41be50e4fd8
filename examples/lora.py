"""LoRA adapters whose directions have norm 1: the rows of A are kept on the sphere, B stays free.

With peft it is the same line, since its adapters have these names: first `get_peft_model(...)`, then the optimizer,
then `attach`.

python examples/lora.py
"""

import copy

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import pbwn

digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 8 - 1
y = torch.tensor(digits.target)
train_rows, test_rows = torch.arange(len(y)).split([1400, len(y) - 1400])


class Adapted(nn.Module):
    """A frozen linear layer plus B A x, where B starts at zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, features: Tensor) -> Tensor:
        return self.base(features) + self.lora_B(self.lora_A(features))


def train(model: nn.Module, inputs: Tensor, optimizer: torch.optim.Optimizer, epochs: int) -> float:
    """Train, and return the test error in percent."""
    for _ in range(epochs):
        for rows in train_rows[torch.randperm(len(train_rows))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), y[rows]).backward()
            optimizer.step()
    return 100 * (model(inputs[test_rows]).argmax(1) != y[test_rows]).float().mean().item()


torch.manual_seed(0)
pretrained = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
train(pretrained, x, torch.optim.AdamW(pretrained.parameters(), lr=2e-3), epochs=4)
turned = x.unflatten(1, (8, 8)).transpose(1, 2).flatten(1)  # the new task: digits that lie on their side


def report(projection: pbwn.NormProjection | None) -> str:
    """What is constrained, and whether it holds."""
    return "" if projection is None else f"{projection}\n\n{projection.check()}"


def adapt(**options: object) -> tuple[float, str]:
    """Adapt the pretrained model, with the constraint where options of `attach` are given."""
    torch.manual_seed(1)
    model = copy.deepcopy(pretrained)
    for index in (0, 2):
        model[index] = Adapted(model[index], rank=8)
    model[4].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    projection = pbwn.attach(model, optimizer, **options) if options else None  # the added line
    return train(model, turned, optimizer, epochs=6), report(projection)


baseline, _ = adapt()
error, told = adapt(only=["*.lora_A"])
print(told)
print(f"\ntest error: {baseline:.1f} % with plain LoRA, {error:.1f} % with A on the sphere")
