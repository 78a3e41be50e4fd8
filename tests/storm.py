"""Run training in child processes that are killed for real, and start them again until they finish."""

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import torch

from pbwn_repro.engine.signals import Interrupted
from pbwn_repro.exit_codes import INTERRUPTED
from processes import start_server


def digits_config(source="digits", **fields):
    """A configuration on the embedded digits, or on other data that are always here, small enough for seconds."""
    from pbwn_repro.config import read_config
    from pbwn_repro.data import load

    dataset = load(source)
    data = {"name": dataset.name, "digest": dataset.digest, **fields.pop("data", {})}
    length = {} if "epochs" in fields else {"steps": 12}
    usual = {"batch_size": 32, "checkpoint_every": 3, "evaluate_every": 4, **length}
    return read_config({**usual, **fields, "data": data})


def run(config, folder, moment=None, number=signal.SIGKILL, twice=False, after=None):
    """Train in new processes; with a moment given, each sends itself a signal there. Returns the exit codes.

    With `after`, the processes are killed from outside when so many seconds have passed.

    A moment is ("step", n): at the first line of metrics after n steps; or ("stage", name, k): the k-th time that the
    checkpoint writer gets to this stage; or ("evaluation", k): after the k-th test. A run that stopped on request
    raises Interrupted here.
    """
    context = multiprocessing.get_context("forkserver")
    start_server()
    with tempfile.TemporaryDirectory() as meeting:
        children = [
            context.Process(
                target=_child,
                args=(config.document, str(folder), Killer(moment, number, twice), rank, config.processes, meeting),
            )
            for rank in range(config.processes)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join(after)
            if after is not None:
                child.kill()
                child.join()
    codes = [child.exitcode for child in children]
    if INTERRUPTED in codes:
        raise Interrupted
    return codes


def _child(document, path, killer, rank, count, meeting):
    from pbwn_repro.config import read_config
    from pbwn_repro.data import load
    from pbwn_repro.engine.processes import Processes
    from pbwn_repro.runs.execution import execute
    from pbwn_repro.runs.folder import RunFolder

    torch.set_num_threads(1)
    if count > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}/meeting", rank=rank, world_size=count
        )
    try:
        execute(
            read_config(document),
            load(document["data"]["name"]),
            RunFolder(Path(path)),
            Processes(rank, count),
            killer,
            monitor=3 if document["method"].startswith("pbwn") else None,
            on_stage=lambda stage: killer.at("stage", stage),
        )
    except Interrupted:
        os._exit(INTERRUPTED)
    if count > 1:
        torch.distributed.destroy_process_group()


class Killer:
    """A reporter that sends its process a signal when the moment has come, once or twice."""

    def __init__(self, moment, number, twice):
        self.moment, self.number, self.twice, self.seen = moment, number, twice, {}

    def at(self, kind, value=None):
        key = (kind, value) if kind == "stage" else kind
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.moment is None or self.moment[0] != kind:
            return
        if (kind == "step" and value >= self.moment[1]) or (
            kind != "step" and self.moment[1:] in ((value, self.seen[key]), (self.seen[key],))
        ):
            self.moment = None
            for _ in range(1 + self.twice):
                signal.raise_signal(self.number)

    def begin(self, name, step, total, unit="steps"):
        pass

    def step(self, step, loss, rate, speed):
        self.at("step", step)

    def evaluated(self, step, metric, value):
        self.at("evaluation")

    def message(self, text):
        pass

    def end(self):
        pass


def contents(folder):
    """Every byte that a run leaves behind, times and environment aside."""
    left_out = {"timing.jsonl", ".lock", ".holder", "environment.json"}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.name not in left_out
    }
