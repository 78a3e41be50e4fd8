"""Train a small network on scikit-learn's handwritten digits, with and without the constraint, and compare.

make demo
"""

import statistics
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn

import pbwn

# What each method adds to a training script: the arguments of `pbwn.attach`, or nothing.
METHODS = {
    "Normal": None,
    "PBWN": {},
    "PBWN-Riem": {"gradient": "riemannian"},
    "PBWN-T20": {"every": 20},
}
SEEDS, EPOCHS, BATCH = 3, 30, 64


def load():
    """The 1,797 pictures of 8x8 pixels, standardised; every fifth is for the test."""
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    x = (x - x.mean()) / x.std()
    y = torch.tensor(digits.target)
    is_test = torch.arange(len(y)) % 5 == 0
    return x[~is_test], y[~is_test], x[is_test], y[is_test]


def network():
    """Two hidden layers with batch normalisation behind each."""
    layers = []
    for fan_in, fan_out in ((64, 128), (128, 128)):
        layers += [nn.Linear(fan_in, fan_out, bias=False), nn.BatchNorm1d(fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def train(options, seed, data):
    """One run: its last epoch's training loss, its test error in percent, its largest deviation, and its seconds."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    projection = None if options is None else pbwn.attach(model, optimizer, **options)
    start = time.perf_counter()
    for _ in range(EPOCHS):
        losses = []
        for rows in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    seconds = time.perf_counter() - start
    model.eval()
    with torch.no_grad():
        error = 100 * (model(x_test).argmax(1) != y_test).float().mean().item()
        norms = torch.cat([model[index].weight.norm(dim=1) for index in (0, 3)])
    if projection is not None:
        projection.project()
        assert projection.check().ok
    return statistics.mean(losses), error, (norms - 1).abs().max().item(), seconds


def main():
    """Run every method with every seed and print one table."""
    torch.set_num_threads(1)
    data, console = load(), Console()
    runs = [(method, seed) for method in METHODS for seed in range(SEEDS)]
    results = {method: [] for method in METHODS}
    for method, seed in track(runs, description="Training", console=console, transient=True):
        results[method].append(train(METHODS[method], seed, data))

    table = Table(title=f"Digits, batch-normalised MLP, {EPOCHS} epochs, mean ± std over {SEEDS} seeds")
    table.add_column("method")
    for column in ("training loss", "test error (%)", "off the sphere by", "seconds a run"):
        table.add_column(column, justify="right")
    for method, found in results.items():
        losses, errors, deviations, seconds = zip(*found, strict=True)
        table.add_row(
            method,
            f"{statistics.mean(losses):.4f}",
            f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f}",
            f"{max(deviations):.0e}",
            f"{statistics.mean(seconds):.2f}",
        )
    console.print(table)
    console.print("PBWN-T20 leaves the sphere between projections: call projection.project() before saving.")


if __name__ == "__main__":
    main()
