"""Images per second of the engine and of a plain PyTorch loop, measured in one run.

The plain loop is that of a tutorial: an eager network with contiguous weights, per-image transforms in DataLoader
workers, SGD. Both train ResNet-20 at batch size 128 on images of CIFAR-10's shape, each in its own process; blocks of
their steps alternate.

    python benchmarks/throughput.py [--rounds 8] [--block 5] [--threads 2] [--workers 2]
"""

import argparse
import multiprocessing
import random
import statistics
import time

import torch
from torch.utils.data import DataLoader, Dataset

from pbwn_repro import models
from pbwn_repro.config import read_config
from pbwn_repro.data import augmentations, load
from pbwn_repro.engine.processes import Processes, keep_freed_memory
from pbwn_repro.engine.training import Training
from pbwn_repro.models import recipe

BATCH = 128


class Pictures(Dataset):
    """Images, one at a time: converted to float, normalised, padded and cropped, flipped."""

    def __init__(self, split):
        self.images, self.labels = split.images, split.labels
        self.mean, self.std = (
            torch.tensor(values).view(3, 1, 1) for values in (augmentations.CIFAR_MEAN, augmentations.CIFAR_STD)
        )

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = (self.images[index].float() - self.mean) / self.std
        padded = torch.nn.functional.pad(image, [4] * 4)
        top, left = random.randrange(9), random.randrange(9)
        image = padded[:, top : top + 32, left : left + 32]
        return (image.flip(2) if random.random() < 0.5 else image), self.labels[index]


def plain_steps(split, workers):
    """Take a step of the plain loop at each `next`."""
    torch.manual_seed(1)
    model = models.build("resnet-20")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(
        Pictures(split), BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
    )
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            yield


def engine_steps(dataset):
    """Take a step of the engine at each `next`."""
    fields = recipe("resnet-20")
    data = {**fields["data"], "name": dataset.name, "digest": dataset.digest}
    training = Training(read_config({**fields, "data": data, "method": "pbwn"}), dataset, Processes())
    training._begin(None)
    while True:
        training._step()
        yield


def work(side, options, connection):
    """Run one side in its own process: time a block of steps at each request."""
    torch.set_num_threads(options.threads)
    dataset = load("synthetic:cifar10")
    if side == "engine":
        keep_freed_memory()  # as `pbwn train` does
        steps = engine_steps(dataset)
    else:
        steps = plain_steps(dataset.train, options.workers)
    while connection.recv():
        started = time.perf_counter()
        for _ in range(options.block):
            next(steps)
        connection.send((time.perf_counter() - started) / options.block)


def main():
    """Measure; print images per second and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--block", type=int, default=5, help="steps per block; workers prefetch a few batches")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    connections, seconds = {}, {"plain loop": [], "engine": []}
    for side in seconds:
        connections[side], theirs = context.Pipe()
        context.Process(target=work, args=(side, options, theirs)).start()
    for count in range(options.rounds + 1):
        for side, connection in connections.items():
            connection.send(True)
            taken = connection.recv()
            if count > 0:
                seconds[side].append(taken)
    for connection in connections.values():
        connection.send(False)
    for name, taken in seconds.items():
        spread = ", ".join(f"{BATCH / quantile:.0f}" for quantile in statistics.quantiles(taken, n=4)[::-1])
        print(f"{name:12s} {BATCH / statistics.median(taken):7.0f} images/s   (quartiles {spread})")
    ratio = statistics.median(seconds["plain loop"]) / statistics.median(seconds["engine"])
    print(f"the engine is {ratio:.2f} times as fast, {options.threads} threads, pbwn, {options.rounds} rounds")


if __name__ == "__main__":
    main()
