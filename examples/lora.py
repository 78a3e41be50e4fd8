"""LoRA adapters with directions of norm 1: the rows of A are kept on the sphere, B is not constrained.

pip install peft scikit-learn
python examples/lora.py
"""

import copy

import torch
from peft import LoraConfig, get_peft_model
from sklearn.datasets import load_digits
from torch import Tensor, nn

import pbwn

digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 8 - 1
y = torch.tensor(digits.target)
train_rows, test_rows = torch.arange(len(y)).split([1400, len(y) - 1400])


def train(model: nn.Module, inputs: Tensor, optimizer: torch.optim.Optimizer, epochs: int) -> float:
    """Train; return the test error in percent."""
    for _ in range(epochs):
        for rows in train_rows[torch.randperm(len(train_rows))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), y[rows]).backward()
            optimizer.step()
    return 100 * (model(inputs[test_rows]).argmax(1) != y[test_rows]).float().mean().item()


torch.manual_seed(0)
pretrained = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
train(pretrained, x, torch.optim.AdamW(pretrained.parameters(), lr=2e-3), epochs=4)
turned = x.unflatten(1, (8, 8)).transpose(1, 2).flatten(1)  # the new task: transposed digits


def adapt(**options: object) -> float:
    """Adapt the pretrained model, constrained if options of `attach` are given; return the test error in percent."""
    torch.manual_seed(1)
    model = get_peft_model(copy.deepcopy(pretrained), LoraConfig(r=8, target_modules=["0", "2"]))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    projection = pbwn.attach(model, optimizer, **options) if options else None  # the added line
    error = train(model, turned, optimizer, epochs=6)
    if projection is not None:
        print(projection, projection.check(), sep="\n\n")
    return error


baseline = adapt()
error = adapt(only=["*.lora_A"])
print("\nof 397 test images, one seed each: differences under about 5 points are noise")
print(f"test error: {baseline:.1f} % with plain LoRA, {error:.1f} % with A on the sphere")
