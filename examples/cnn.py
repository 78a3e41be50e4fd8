"""A convolutional network from scratch, with its weights on the unit sphere.

python examples/cnn.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import pbwn

digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
y = torch.tensor(digits.target)
train_rows, test_rows = torch.arange(len(y)).split([1400, len(y) - 1400])


def train(*, constrained: bool) -> float:
    """Train with or without the constraint; return the test error in percent."""
    torch.manual_seed(0)
    layers = []
    for channels_in, channels_out, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 2)):
        layers += [nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(channels_out), nn.ReLU()]  # BN cancels the norm of a filter
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    projection = pbwn.attach(model, optimizer) if constrained else None  # the added line
    for _ in range(3):
        for rows in train_rows[torch.randperm(len(train_rows))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    if projection is not None:
        print(projection, projection.check(), sep="\n\n")
    model.eval()
    return 100 * (model(x[test_rows]).argmax(1) != y[test_rows]).float().mean().item()


baseline, error = train(constrained=False), train(constrained=True)
print("\nof 397 test images, one seed each: differences under about 3 points are noise")
print(f"test error: {baseline:.1f} % without the constraint, {error:.1f} % with it")
