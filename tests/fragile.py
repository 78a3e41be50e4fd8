"""Jobs that come to grief at a given step, once: killed, or asking the whole sweep to stop."""

import os
import signal
import threading
from dataclasses import dataclass

from pbwn_repro.engine.reporting import MultiReporter
from pbwn_repro.runs.jobs import TrainingJob
from storm import Killer, digits_config


def digits_job(path, title="digits", kind=TrainingJob, **fields):
    """A job on the embedded digits that takes a moment."""
    config = digits_config(**{"model": "mlp", "method": "pbwn", **fields})
    return kind(title=title, path=path, config=config, source="digits")


@dataclass(frozen=True, eq=False)
class KilledOnce(TrainingJob):
    """The first process that makes it is killed at its eighth step."""

    def run(self, device, reporter):
        flag = self.path.parent / f"{self.path.name}.killed"
        moment = None if flag.exists() else ("step", 8)
        flag.touch()
        super().run(device, MultiReporter(reporter, Killer(moment, signal.SIGKILL, False)))


@dataclass(frozen=True, eq=False)
class StopsTheSweep(TrainingJob):
    """At its fifth step somebody presses Ctrl-C where the sweep runs."""

    sweeper: int = os.getpid()
    waits: bool = True  # until the sweep has handed that on

    def run(self, device, reporter):
        super().run(device, MultiReporter(reporter, PressesCtrlC(self.sweeper, self.waits)))


class PressesCtrlC(Killer):
    def __init__(self, sweeper, waits):
        super().__init__(None, None, False)
        self.sweeper, self.waits = sweeper, waits

    def step(self, step, loss, rate, speed):
        if step != 5:
            return
        handed_on = threading.Event()
        if self.waits:  # for a signal that may come before the waiting has begun
            stop = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda *call: (stop(*call), handed_on.set()))
        os.kill(self.sweeper, signal.SIGINT)
        if self.waits:
            handed_on.wait()
