"""The figures of the documentation, drawn from the mathematics that they show: `python docs/_extensions/pictures.py`.

They are kept in docs/figures, so that the pages have them on a code host too.
"""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

import pbwn
from pbwn_repro.models import build

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#8a8f98"
SCALES = ("each neuron free", "layer as a whole", "passes on", "has meaning")


def draw(folder: Path) -> None:
    """Draw all of them into a folder."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "pbwn", "font.size": 11, "axes.titlesize": 10}
    style |= dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY)
    style |= {"legend.framealpha": 0}  # the page may be dark: a white box would hide grey text
    with plt.rc_context(style):
        pictures = {"step": _step, "valley": _valley, "norms": _norms}
        pictures |= {"invariance": _invariance, "monitor": _monitor, "statistics": _statistics}
        for name, make in pictures.items():
            picture = make()
            picture.savefig(folder / f"{name}.svg", transparent=True, bbox_inches="tight", metadata={"Date": None})
            plt.close(picture)


def _step() -> plt.Figure:
    """One step of one neuron: along the gradient off the sphere, and straight back."""
    figure, axes = plt.subplots(figsize=(4.6, 3.6))
    angles = np.linspace(-0.15, 1.75, 100)
    axes.plot(np.cos(angles), np.sin(angles), color=GREY)
    start = np.array([math.cos(0.35), math.sin(0.35)])
    tilde = start + np.array([-0.22, 0.78])
    end = tilde / np.linalg.norm(tilde)
    arrow = {"arrowstyle": "-|>", "linewidth": 2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", start, (0, 0), arrowprops={**arrow, "color": GREY, "linewidth": 1})
    axes.annotate("", tilde, start, arrowprops={**arrow, "color": BLUE})
    axes.annotate("", end, tilde, arrowprops={**arrow, "color": ORANGE})
    axes.text(start[0] + 0.04, start[1] - 0.02, "w")
    axes.text((start + tilde)[0] / 2 + 0.05, (start + tilde)[1] / 2, "the optimizer's step", color=BLUE)
    axes.text(tilde[0] + 0.03, tilde[1] + 0.03, "w̃")
    axes.text(end[0] - 0.05, end[1] - 0.06, "w̃ / ‖w̃‖", color=ORANGE, ha="right", va="top")
    axes.set(aspect="equal", xlim=(-0.2, 1.55), ylim=(-0.2, 1.3))
    axes.axis("off")
    return figure


def _valley() -> plt.Figure:
    """The error of y = w2 w1 x around two equal models, drawn to the same scale."""
    figure, both = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
    offsets = np.linspace(-0.6, 0.6, 200)
    for axes, alpha in zip(both, (1.0, 4.0), strict=True):
        first, second = np.meshgrid(alpha + offsets, 1 / alpha + offsets)
        axes.contour(first, second, (first * second - 1) ** 2, levels=[0.01, 0.05, 0.2, 0.5, 1, 2, 4], colors=BLUE)
        axes.plot(alpha, 1 / alpha, "o", color=ORANGE)
        steepest = 2 * (alpha**2 + alpha**-2)
        axes.set(xlabel="w₁", ylabel="w₂", title=f"w₁ = {alpha:g}, w₂ = {1 / alpha:g}: curvature up to {steepest:.3g}")
    return figure


def _norms() -> plt.Figure:
    """Norms of the neurons of a small network with batch normalisation while it trains, with and without projection."""
    figure, axes = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
    for constrained, colour in ((False, BLUE), (True, ORANGE)):
        torch.manual_seed(0)
        x, y = torch.randn(2048, 20), torch.randint(0, 4, (2048,))
        hidden = torch.nn.Linear(20, 32, bias=False)
        model = torch.nn.Sequential(hidden, torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
        if constrained:
            pbwn.attach(model, optimizer)
        norms = []
        for _ in range(200):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            norms.append(hidden.weight.detach().norm(dim=1).numpy().copy())
        axes.plot(np.array(norms), color=colour, linewidth=0.6, alpha=0.7)
        axes.text(203, float(norms[-1].max()), "projected" if constrained else "free", color=colour, va="center")
    axes.set(xlabel="step", xlim=(0, 245), ylabel="norm of a neuron's weights")
    return figure


def _invariance() -> plt.Figure:
    """What the scale of each weight means: a residual network, and a character-level GPT with one block."""
    torch.manual_seed(0)
    models = {
        "ResNet-8 (batch normalisation)": (build("resnet-8"), torch.randn(8, 3, 16, 16)),
        "GPT (layer normalisation)": (
            build("char-gpt", width=16, depth=1, heads=2, context=8, num_classes=20),
            torch.randint(0, 20, (8, 8)),
        ),
    }
    figure, both = plt.subplots(1, 2, figsize=(8.6, 3.4), layout="constrained")
    for axes, (title, (model, inputs)) in zip(both, models.items(), strict=True):
        weights = pbwn.invariance(model, inputs).weights
        for place, weight in enumerate(reversed(weights)):
            colour = BLUE if weight.scale == SCALES[0] else ORANGE
            axes.plot(SCALES.index(weight.scale), place, "o", color=colour)
        names = [weight.name.removesuffix(".weight") for weight in reversed(weights)]
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set_xticks(range(len(SCALES)), [scale.replace(" ", "\n", 1) for scale in SCALES], fontsize=8)
        axes.set(title=title, xlim=(-0.5, 3.5))
    return figure


def _task(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of four classes, each with a pattern of its own in noise."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(4, 3, 16, 16, generator=generator)
    labels = torch.randint(0, 4, (count,), generator=generator)
    return 0.4 * patterns[labels] + torch.randn(count, 3, 16, 16, generator=generator), labels


def _monitor() -> plt.Figure:
    """A residual network with PBWN: what happens to three of its weights."""
    torch.manual_seed(0)
    model, (x, y) = build("resnet-8", num_classes=4), _task(1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    only = ["conv", "blocks.1.conv1", "classifier"]
    monitor = pbwn.attach(model, optimizer, only=only).monitor(every=2)
    for step in range(60):
        part = slice(32 * step % 1024, 32 * step % 1024 + 32)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    figure = monitor.plot()
    for axes in figure.axes:
        if axes.get_ylim()[0] == 0:  # what the projection holds constant: below the edge, where it can be seen
            axes.set_ylim(top=1.25 * max(axes.get_ylim()[1], max(line.get_ydata().max() for line in axes.lines)))
    return figure


def _statistics() -> plt.Figure:
    """The loss in evaluation mode of a residual network, before and after each manual projection."""
    figure, axes = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
    for follow, colour in ((None, ORANGE), ("auto", BLUE)):
        torch.manual_seed(0)
        model, (x, y) = build("resnet-8", num_classes=4), _task(1024)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        projection = pbwn.attach(model, optimizer, every=None, initial=False, follow=follow)

        def loss(model: torch.nn.Module = model, x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(model.eval()(x[:128]), y[:128])

        monitor = projection.monitor(loss=loss)
        for step in range(80):
            part = slice(32 * step % 1024, 32 * step % 1024 + 32)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
            if step % 10 == 9:
                projection.project()
        steps = [each["step"] for each in monitor.losses]
        rise = [each["after"] / each["before"] for each in monitor.losses]
        axes.plot(steps, rise, "o-", color=colour, label="statistics follow" if follow else "follow=None")
    axes.set(xlabel="step", ylabel="loss after / before a projection")
    axes.legend()
    return figure


if __name__ == "__main__":
    draw(Path(__file__).parents[1] / "figures")
