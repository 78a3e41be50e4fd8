"""Telling people how a run is doing: a bar on a terminal, lines elsewhere, TensorBoard on request."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pbwn_repro.errors import UsageError
from pbwn_repro.metrics import Metric

SECONDS_BETWEEN_LINES = 10.0


class Reporter(Protocol):
    """Who wants to know how a run is doing."""

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """A run starts, or resumes, after `step` steps; `unit` is what its speeds are told in."""

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Steps are done."""

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """The model was evaluated: the metric that is shown, and its value."""

    def message(self, text: str) -> None:
        """Something that a person should know."""

    def end(self) -> None:
        """The run is over, or stops."""


class Quiet:
    """Nobody does, but messages are printed."""

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Say nothing."""

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Say nothing."""

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Say nothing."""

    def message(self, text: str) -> None:
        """Print it to standard error."""
        Console(stderr=True, soft_wrap=True).print(text, markup=False, highlight=False)

    def end(self) -> None:
        """Say nothing."""


class Lines(Quiet):
    """A line every few seconds, for logs."""

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Name the run and where it stands."""
        self._total, self._first, self._started, self._printed = total, step, time.monotonic(), 0.0
        self._unit, self._value = unit, ""
        self.message(f"{name}: {f'resuming at step {step:,} of' if step else 'starting,'} {total:,} steps")

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Print, if the last line is old enough."""
        now = time.monotonic()
        if now - self._printed < SECONDS_BETWEEN_LINES:
            return
        self._printed = now
        left = (now - self._started) / max(1, step - self._first) * (self._total - step)
        self.message(
            f"step {step:,}/{self._total:,}  loss {loss:.4f}{self._value}  {speed:,.0f} {self._unit}/s  "
            f"{duration(left)} left"
        )

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Show the value in the lines to come."""
        self._value = f"  {metric.words} {metric.shown(value)}"


class Bar(Quiet):
    """A progress bar with everything in one row."""

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Draw the bar."""
        self._value, self._unit = "", unit
        # All of it fits into 80 columns.
        self._progress = Progress(
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(name, total=total, completed=step, state="")
        self._progress.start()
        self.message(name)

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Move the bar."""
        state = f"loss {loss:.3f}{self._value} {speed:,.0f} {self._unit}/s"
        self._progress.update(self._task, completed=step, state=state)

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Show the value from now on."""
        self._value = f" {metric.shown(value)}"

    def message(self, text: str) -> None:
        """Print above the bar."""
        if hasattr(self, "_progress"):
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            super().message(text)

    def end(self) -> None:
        """Leave the bar as it stands."""
        if hasattr(self, "_progress"):
            self._progress.stop()


class TensorBoard(Quiet):
    """Scalars for TensorBoard (extra `tensorboard`)."""

    def __init__(self, folder: Path) -> None:
        """Write event files into a folder."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise UsageError("--tensorboard needs the package tensorboard: pip install 'pbwn[tensorboard]'") from None
        self._writer, self._unit = SummaryWriter(str(folder)), "steps"

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Remember what speeds are told in."""
        self._unit = unit

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Add loss, rate and speed."""
        for tag, value in (("loss", loss), ("learning rate", rate), (f"{self._unit} per second", speed)):
            self._writer.add_scalar(f"training/{tag}", value, step)

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Add the value."""
        self._writer.add_scalar(metric.name, value, step)

    def message(self, text: str) -> None:
        """Others print it."""

    def end(self) -> None:
        """Bring everything to the disk."""
        self._writer.close()


class Everyone:
    """Tells several, in this order."""

    def __init__(self, *reporters: Reporter) -> None:
        """Name them."""
        self._reporters = reporters

    def __getattr__(self, event: str) -> Callable[..., None]:
        def tell(*details: object) -> None:
            for reporter in self._reporters:
                getattr(reporter, event)(*details)

        return tell


def duration(seconds: float) -> str:
    """A time span as people say it, in one or two units."""
    for size, unit, small, smaller in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            whole, rest = divmod(round(seconds / small), size // small)
            return f"{whole:,} {unit} {rest} {smaller}" if rest else f"{whole:,} {unit}"
    return f"{seconds:.0f} s"
