"""Telling people how a run is doing: a bar on a terminal, lines elsewhere, TensorBoard on request."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class Reporter(Protocol):
    """Who wants to know how a run is doing."""

    def begin(self, name: str, step: int, total: int) -> None:
        """A run starts, or goes on, after `step` steps."""

    def step(self, step: int, loss: float, rate: float, pictures_per_second: float) -> None:
        """Steps are done."""

    def evaluated(self, step: int, error: float) -> None:
        """The model was tested."""

    def message(self, text: str) -> None:
        """Something that a person should know."""

    def end(self) -> None:
        """The run is over, or stops."""


class Quiet:
    """Nobody does, but messages are printed."""

    def begin(self, name: str, step: int, total: int) -> None:
        """Say nothing."""

    def step(self, step: int, loss: float, rate: float, pictures_per_second: float) -> None:
        """Say nothing."""

    def evaluated(self, step: int, error: float) -> None:
        """Say nothing."""

    def message(self, text: str) -> None:
        """Print it to standard error."""
        Console(stderr=True, soft_wrap=True).print(text, markup=False, highlight=False)

    def end(self) -> None:
        """Say nothing."""


class Lines(Quiet):
    """A line every few seconds, for logs."""

    def begin(self, name: str, step: int, total: int) -> None:
        """Name the run and where it stands."""
        self._total, self._first, self._started, self._printed, self._error = total, step, time.monotonic(), 0.0, ""
        self.message(f"{name}: {f'going on at step {step:,} of' if step else 'starting,'} {total:,} steps")

    def step(self, step: int, loss: float, rate: float, pictures_per_second: float) -> None:
        """Print, if the last line is old enough."""
        now = time.monotonic()
        if now - self._printed < SECONDS_BETWEEN_LINES:
            return
        self._printed = now
        left = (now - self._started) / max(1, step - self._first) * (self._total - step)
        self.message(
            f"step {step:,}/{self._total:,}  loss {loss:.4f}{self._error}  "
            f"{pictures_per_second:,.0f} images/s  {_duration(left)} left"
        )

    def evaluated(self, step: int, error: float) -> None:
        """Print the error."""
        self._error = f"  test error {error:.2f} %"
        self.message(f"step {step:,}/{self._total:,}{self._error}")


class Bar(Quiet):
    """A progress bar with everything in one row."""

    def begin(self, name: str, step: int, total: int) -> None:
        """Draw the bar."""
        self._error = ""
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

    def step(self, step: int, loss: float, rate: float, pictures_per_second: float) -> None:
        """Move the bar."""
        state = f"loss {loss:.3f}{self._error} {pictures_per_second:,.0f} img/s"
        self._progress.update(self._task, completed=step, state=state)

    def evaluated(self, step: int, error: float) -> None:
        """Show the error from now on."""
        self._error = f" err {error:.2f}%"

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
            raise ValueError("--tensorboard needs the package tensorboard: pip install 'pbwn[tensorboard]'") from None
        self._writer = SummaryWriter(str(folder))

    def step(self, step: int, loss: float, rate: float, pictures_per_second: float) -> None:
        """Add loss, rate and speed."""
        for tag, value in (("loss", loss), ("learning rate", rate), ("images per second", pictures_per_second)):
            self._writer.add_scalar(f"training/{tag}", value, step)

    def evaluated(self, step: int, error: float) -> None:
        """Add the error."""
        self._writer.add_scalar("test/error", error, step)

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


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
