"""Compare short runs in parallel, one thread each, with the same runs one after the other, on all cores.

Each round makes the same runs in both ways, in an order that changes: side by side with one thread each, as `pbwn
reproduce` does by default, and one by one on all cores. Nothing else should be running.

    python benchmarks/sweep.py [--runs 4] [--rounds 3] [--networks resnet-20 mlp]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from pbwn_repro.config import read_config
from pbwn_repro.data import load
from pbwn_repro.models import recipe
from pbwn_repro.runs.jobs import TrainingJob
from pbwn_repro.runs.pools import LocalPool, Slots, cores
from pbwn_repro.runs.sweep import sweep

SOURCES = {"mlp": "synthetic:mnist"}
STEPS = {"mlp": 300, "resnet-20": 12}


def jobs(network, count, folder):
    """Return runs of a network, with different seeds."""
    source = SOURCES.get(network, "synthetic:cifar10")
    dataset = load(source)
    fields = {name: value for name, value in recipe(network).items() if name not in ("epochs", "schedule")}
    data = {**fields["data"], "name": dataset.name, "digest": dataset.digest}
    shared = {**fields, "data": data, "method": "pbwn", "steps": STEPS.get(network, 5)}
    return [
        TrainingJob(
            title=str(seed), path=folder / str(seed), config=read_config({**shared, "seed": seed}), source=source
        )
        for seed in range(1, count + 1)
    ]


def seconds(network, count, slots):
    """Return the time that the runs take in the slots."""
    with tempfile.TemporaryDirectory() as folder:
        made = jobs(network, count, Path(folder))
        started = time.perf_counter()
        result = sweep(made, LocalPool(slots))
        taken = time.perf_counter() - started
    if len(result.having("done")) < count:
        raise SystemExit(f"stopped: {len(result.having('done'))} of {count} runs were finished")
    return taken


def main():
    """Measure; print runs per hour and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2 * cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", default=["resnet-20", "mlp"])
    options = parser.parse_args()
    ways = {"side by side": Slots(("cpu",) * cores(), 1), "one by one": Slots(("cpu",), cores())}
    seconds("mlp", 1, ways["one by one"])  # the first run starts the server that processes are forked from
    for network in options.networks:
        taken = {way: [] for way in ways}
        for count in range(options.rounds):
            for way in sorted(ways, reverse=bool(count % 2)):
                taken[way].append(seconds(network, options.runs, ways[way]))
        for way, values in taken.items():
            shown = ", ".join(f"{value:.1f}" for value in values)
            rate = 3_600 * options.runs / statistics.median(values)
            print(f"{network:10s} {way:13s} {rate:8.0f} runs/h   ({options.runs} runs in {shown} s)")
        ratio = statistics.median(taken["one by one"]) / statistics.median(taken["side by side"])
        print(f"{network:10s} side by side gives {ratio:.2f} times as many runs, {cores()} cores")


if __name__ == "__main__":
    main()
