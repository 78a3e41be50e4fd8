"""Progress reports of a run: a bar on a terminal, lines elsewhere, TensorBoard on request."""

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
    """Receives the events of a run."""

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """A run starts, or resumes after `step` steps; speeds are given in `unit` per second."""

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Steps were completed."""

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """The model was evaluated; `value` is that of the run's main metric."""

    def message(self, text: str) -> None:
        """There is a message for the user."""

    def end(self) -> None:
        """The run has ended or stopped."""


class Quiet:
    """Prints messages only."""

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Do nothing."""

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Do nothing."""

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Do nothing."""

    def message(self, text: str) -> None:
        """Print the message to standard error."""
        Console(stderr=True, soft_wrap=True).print(text, markup=False, highlight=False)

    def end(self) -> None:
        """Do nothing."""


class Lines(Quiet):
    """Prints a line every few seconds, for log files."""

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Print the name and the progress of the run."""
        self._total, self._first_step, self._started, self._printed = total, step, time.monotonic(), 0.0
        self._unit, self._value = unit, ""
        self.message(f"{name}: {f'resuming at step {step:,} of' if step else 'starting,'} {total:,} steps")

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Print a line if the last one is old enough."""
        now = time.monotonic()
        if now - self._printed < SECONDS_BETWEEN_LINES:
            return
        self._printed = now
        remaining = (now - self._started) / max(1, step - self._first_step) * (self._total - step)
        self.message(
            f"step {step:,}/{self._total:,}  loss {loss:.4f}{self._value}  {speed:,.0f} {self._unit}/s  "
            f"{duration(remaining)} left"
        )

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Include the value in further lines."""
        self._value = f"  {metric.words} {metric.format(value)}"


class Bar(Quiet):
    """A progress bar in a single row."""

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Start the bar."""
        self._value, self._unit = "", unit
        # Fits into 80 columns.
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
        """Advance the bar."""
        state = f"loss {loss:.3f}{self._value} {speed:,.0f} {self._unit}/s"
        self._progress.update(self._task, completed=step, state=state)

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Show the value in the bar."""
        self._value = f" {metric.format(value)}"

    def message(self, text: str) -> None:
        """Print above the bar."""
        if hasattr(self, "_progress"):
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            super().message(text)

    def end(self) -> None:
        """Stop the bar."""
        if hasattr(self, "_progress"):
            self._progress.stop()


class TensorBoard(Quiet):
    """Writes scalars for TensorBoard (extra `tensorboard`)."""

    def __init__(self, folder: Path) -> None:
        """Create the writer; event files go into `folder`."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise UsageError("--tensorboard needs the package tensorboard: pip install 'pbwn[tensorboard]'") from None
        self._writer, self._unit = SummaryWriter(str(folder)), "steps"

    def begin(self, name: str, step: int, total: int, unit: str = "steps") -> None:
        """Remember the unit of speeds."""
        self._unit = unit

    def step(self, step: int, loss: float, rate: float, speed: float) -> None:
        """Write loss, rate and speed."""
        for tag, value in (("loss", loss), ("learning rate", rate), (f"{self._unit} per second", speed)):
            self._writer.add_scalar(f"training/{tag}", value, step)

    def evaluated(self, step: int, metric: Metric, value: float) -> None:
        """Write the value."""
        self._writer.add_scalar(metric.name, value, step)

    def message(self, text: str) -> None:
        """Do nothing: another reporter prints messages."""

    def end(self) -> None:
        """Flush and close the event files."""
        self._writer.close()


class MultiReporter:
    """Forwards every event to several reporters, in order."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def __getattr__(self, event: str) -> Callable[..., None]:
        def forward(*details: object) -> None:
            for reporter in self._reporters:
                getattr(reporter, event)(*details)

        return forward


def duration(seconds: float) -> str:
    """Format a time span in one or two units."""
    for size, unit, small, smaller in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            whole, rest = divmod(round(seconds / small), size // small)
            return f"{whole:,} {unit} {rest} {smaller}" if rest else f"{whole:,} {unit}"
    return f"{seconds:.0f} s"
