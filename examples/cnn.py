"""A convolutional network from scratch, with its weights on the unit sphere.

python examples/cnn.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import pbwn

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
y = torch.tensor(digits.target)
train, test = torch.arange(len(y)).split([1400, len(y) - 1400])

layers = []
for channels_in, channels_out, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 2)):
    layers += [nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)]
    layers += [nn.BatchNorm2d(channels_out), nn.ReLU()]  # the scale of a filter is the normalisation's to set
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
projection = pbwn.attach(model, optimizer)  # the added line
print(projection)

for _ in range(3):
    for rows in train[torch.randperm(len(train))].split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()

model.eval()
error = 100 * (model(x[test]).argmax(1) != y[test]).float().mean().item()
print(f"\n{error:.1f} % test error; {projection.check()}")
