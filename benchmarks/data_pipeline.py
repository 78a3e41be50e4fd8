"""The cost of data: time to make an augmented batch, as a share of a ResNet-20 training step, and load times.

    python benchmarks/data_pipeline.py [--batch-size 128] [--rounds 15] [--threads 1] [--set NAME ...]

Batch and step are timed alternately in one run, on synthetic CIFAR-10 images on the CPU, and medians are compared.
Load times are those of sets that are decoded in the cache (`pbwn data get NAME`), including the check of digests.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from pbwn_repro.data import Batch, Batches, DataError, MemorySplit, augmentations, load
from pbwn_repro.models import build

LIMIT = 3.0
PICTURES = 50_000
RECIPES = {
    "as the authors (reflection, one offset per batch, half flipped)": augmentations.cifar_training(),
    "as He et al. (zeros, one offset per image, random flips)": augmentations.cifar_training(
        fill="zero", offset="image", flip="random"
    ),
}


def seconds(work: Callable[[], object]) -> float:
    """Return the time that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def training_step() -> Callable[[Batch], None]:
    """Return a function that takes one training step of ResNet-20, as in the paper."""
    model = build("resnet-20").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        cross_entropy(model(batch.images), batch.labels).backward()
        optimizer.step()

    return step


def share_of_step(recipe: augmentations.Augmentation, batch_size: int, rounds: int) -> tuple[float, float]:
    """Return the median seconds of a batch and of a step, which alternate; the first two rounds do not count."""
    numbers = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (PICTURES, 3, 32, 32), generator=numbers, dtype=torch.uint8)
    split = MemorySplit(images, torch.arange(PICTURES) % 10)
    batches, step = Batches(split, recipe, batch_size=batch_size), training_step()
    times: list[tuple[float, float]] = []
    for iteration in range(rounds + 2):
        made: list[Batch] = []
        of_batch = seconds(lambda iteration=iteration, made=made: made.append(batches.at(iteration)))
        times.append((of_batch, seconds(lambda made=made: step(made[0]))))
    of_batches, of_steps = zip(*times[2:], strict=True)
    return statistics.median(of_batches), statistics.median(of_steps)


def main() -> None:
    """Print both measurements; exit with 1 if a batch costs more than the limit."""
    parser = argparse.ArgumentParser(description="The cost of data.")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", dest="sets", action="append", help="also time the loading of this set (repeatable)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shares = []
    print(f"batch {options.batch_size}, {options.threads} thread(s), medians of {options.rounds} rounds")
    for name, recipe in RECIPES.items():
        batch, step = share_of_step(recipe, options.batch_size, options.rounds)
        shares.append(100 * batch / step)
        print(f"  {name}: {1e3 * batch:.2f} ms, {shares[-1]:.2f} % of a step of {1e3 * step:.0f} ms")
    for name in options.sets or ("digits", "mnist"):
        try:
            load(name)
            print(f"  load {name}: {statistics.median(seconds(lambda name=name: load(name)) for _ in range(5)):.3f} s")
        except DataError as error:
            print(f"  load {name}: skipped ({str(error).splitlines()[0]})")
    if max(shares) > LIMIT:
        sys.exit(f"a batch costs more than {LIMIT} % of a step")


if __name__ == "__main__":
    main()
