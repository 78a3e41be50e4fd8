"""How far a run is, told through its folder: whoever can see the disk can look, on this machine or another."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

from pbwn_repro.metrics import Metric

SECONDS_BETWEEN_WRITES = 1.0


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    first: the step that it started from, or went on from; `seconds` have passed since then.
    """

    step: int
    total: int
    first: int
    seconds: float
    loss: float | None = None
    shown: str = ""  # the metric that is shown of it, as people read it
    speed: str = ""

    @property
    def share(self) -> float:
        """How much of the run is done, from 0 to 1."""
        return self.step / max(1, self.total)

    @property
    def seconds_left(self) -> float | None:
        """How long it will take at the speed so far; None before there is one."""
        taken = self.step - self.first
        return self.seconds / taken * (self.total - self.step) if taken else None


class DiskReporter:
    """Writes `progress.json` into a run's folder, at most once a second; messages go to standard error."""

    def __init__(self, folder: Path) -> None:
        """Nothing is written before the run begins."""
        self._path = folder / "progress.json"
        self._written = float("-inf")

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Say where the run starts."""
        self._started, self._first, self._total, self._unit = time.monotonic(), step, total, unit
        self._shown = ""
        self._write(step)

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Say where the run is, if that was not just said."""
        if time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            self._write(step, loss if isfinite(loss) else None, f"{speed:,.0f} {self._unit}/s")

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Tell the value from now on."""
        self._shown = metric.shown(value)

    def message(self, text: str) -> None:
        """Print it: a sweep keeps what its processes print in the run's log."""
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave nothing behind."""
        self._path.unlink(missing_ok=True)

    def _write(self, step: int, loss: float | None = None, speed: str = "") -> None:
        self._written = time.monotonic()
        seconds = self._written - self._started
        progress = Progress(step, self._total, self._first, seconds, loss, self._shown, speed)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{self._path.name}.writing")
        temporary.write_text(json.dumps(asdict(progress)))
        temporary.replace(self._path)


def read_progress(folder: Path) -> Progress | None:
    """What a run has last said of itself; None if it says nothing."""
    try:
        return Progress(**json.loads((folder / "progress.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
