"""Time a training iteration of the Ladder, compared with a straightforward implementation.

    OMP_NUM_THREADS=1 python benchmarks/ladder.py [--iterations 40] [--compile]

The variants take turns on the same data; medians and ratios are printed.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pbwn_repro.models.ladder import Costs, Ladder


class PlainLadder(Ladder):
    """The Ladder as described: three passes one after the other, with every formula written out.

    The tests compare the fast implementation with this one.
    """

    def draw_noise(self, rows: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        return tuple(self.noise * torch.randn(rows, size, generator=generator) for size in self.sizes)

    def costs_given_noise(self, labeled: Tensor, labels: Tensor, unlabeled: Tensor, noise: Sequence[Tensor]) -> Costs:
        rows = len(unlabeled)
        with torch.no_grad():
            clean_z, statistics_of_layer, _ = self.encode(unlabeled, None)
        noisy_z, _, h = self.encode(unlabeled, [block[:rows] for block in noise])
        guess = functional.softmax(self.output_normalisation(self.classifier(h)), dim=1)
        denoising = []
        for number in range(len(self.decoder)):
            layer = len(self.sizes) - 1 - number
            decoder = self.decoder[number]
            u = decoder.normalisation(decoder.linear(guess))
            guess = self.combine(decoder.combinator, noisy_z[layer], u)
            reconstruction = guess
            if layer > 0:
                mean, std = statistics_of_layer[layer - 1]
                reconstruction = (guess - mean) * std if self.denoising == "authors" else (guess - mean) / std
            cost = functional.mse_loss(reconstruction, clean_z[layer])
            denoising.insert(0, self.denoising_weights[layer] * cost)
        _, _, h = self.encode(labeled, [block[rows:] for block in noise])
        scores = self.output_normalisation(self.classifier(h))
        return Costs(functional.cross_entropy(scores, labels), torch.stack(denoising))

    def encode(self, x: Tensor, noise: list[Tensor] | None) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]], Tensor]:
        """Return each layer's z (pixels first), each hidden layer's batch statistics, and the top activations."""
        h = x if noise is None else x + noise[0]
        all_z, statistics_of_layer = [h], []
        for number, layer in enumerate(self.encoder, start=1):
            pre = layer.linear(h)
            z = layer.normalisation(pre)
            if noise is None:
                std = (pre.var(0, unbiased=False) + layer.normalisation.eps).sqrt()
                statistics_of_layer.append((pre.mean(0), std))
            else:
                z = z + noise[number]
            all_z.append(z)
            h = functional.relu((z + layer.shift) * layer.scale)
        return all_z, statistics_of_layer, h

    @staticmethod
    def combine(combinator: torch.nn.Module, z: Tensor, u: Tensor) -> Tensor:
        first, second = combinator.direct, combinator.gate
        a1 = first.w * z + first.v * u + first.m * z * u + first.b
        a2 = second.w * z + second.v * u + second.m * z * u + second.b
        return a1 + combinator.c * torch.sigmoid(a2)


def training_step(ladder: Ladder, *, fused: bool, compiled: bool = False) -> Callable[[], Tensor]:
    """Return a function that does one iteration on a fixed batch of 100 labelled and 100 unlabelled images."""
    generator = torch.Generator().manual_seed(0)
    labeled, unlabeled = torch.rand(2, 100, 784, generator=generator)
    labels = torch.arange(100) % 10
    optimizer = torch.optim.Adam(ladder.parameters(), lr=0.001, weight_decay=1e-4, fused=fused)
    loss_of = torch.compile(ladder.loss) if compiled else ladder.loss

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(labeled, labels, unlabeled)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def median_times(steps: dict[str, Callable[[], Tensor]], iterations: int) -> dict[str, float]:
    """Return the median seconds of each step; the steps take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(3):
        for step in steps.values():
            step()
    for _ in range(iterations):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--compile", action="store_true", help="time the compiled loss too (about a minute to compile)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    steps = {
        "plain": training_step(PlainLadder(), fused=False),
        "ladder": training_step(Ladder(), fused=True),
    }
    if arguments.compile:
        steps["compiled"] = training_step(Ladder(), fused=True, compiled=True)
    medians = median_times(steps, arguments.iterations)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {platform.machine()}")
    for name, seconds in medians.items():
        print(f"{name:10} {1000 * seconds:7.1f} ms per iteration   {medians['plain'] / seconds:5.2f}x")


if __name__ == "__main__":
    main()
