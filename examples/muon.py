"""Muon for the hidden matrices, AdamW for the rest, and fixed norms for one of Muon's parameter groups.

`torch.optim.Muon` needs torch 2.9 or newer.

python examples/muon.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import pbwn

digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 8 - 1
y = torch.tensor(digits.target)
train_rows, test_rows = torch.arange(len(y)).split([1400, len(y) - 1400])


def report(projection: pbwn.NormProjection | None) -> str:
    """Return what is constrained, and whether it is on the sphere."""
    return "" if projection is None else f"{projection}\n\n{projection.check()}"


def train(**options: object) -> tuple[float, str]:
    """Train, constrained if options of `attach` are given; return the test error in percent and a report."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for index, (inputs, outputs) in enumerate([(64, 128), (128, 128), (128, 128)]):
        model.add_module(f"linear{index}", nn.Linear(inputs, outputs, bias=False))
        model.add_module(f"norm{index}", nn.LayerNorm(outputs))
        model.add_module(f"relu{index}", nn.ReLU())
    model.add_module("classifier", nn.Linear(128, 10))
    first, deep = [model.linear0.weight], [model.linear1.weight, model.linear2.weight]
    hidden = {id(weight) for weight in (*first, *deep)}
    muon = torch.optim.Muon(
        [{"params": first, "weight_decay": 0.1}, {"params": deep, "weight_decay": 0.0}], lr=0.02, weight_decay=0.0
    )
    adamw = torch.optim.AdamW([p for p in model.parameters() if id(p) not in hidden], lr=1e-3)
    # The added line. `only` names the parameter group; AdamW's weights are not constrained in any case.
    projection = pbwn.attach(model, muon, only=["linear1", "linear2"], **options) if options else None
    for _ in range(3):
        for rows in train_rows[torch.randperm(len(train_rows))].split(64):
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            for optimizer in (muon, adamw):
                optimizer.step()
                optimizer.zero_grad()
    error = 100 * (model(x[test_rows]).argmax(1) != y[test_rows]).float().mean().item()
    return error, report(projection)


baseline, _ = train()
error, summary = train(per="matrix", step="angle", constraint=pbwn.UnitNorm(radius="initial"))
print(summary)
print("\nof 397 test images, one seed each: differences under about 4 points are noise")
print(f"test error: {baseline:.1f} % with Muon and AdamW, {error:.1f} % with fixed norms")
