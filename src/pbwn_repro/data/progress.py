"""What a long wait tells the person in front of it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


class Quiet:
    """Tells nothing."""

    def say(self, text: str) -> None:
        """Pass over a sentence."""

    def bar(self, label: str) -> Any:
        """Return no bar, as pooch wants it."""
        return False


class Terminal(Quiet):
    """Tells on a terminal's standard error."""

    def __init__(self, console: Console) -> None:
        """Write to this console."""
        self.console = console

    def say(self, text: str) -> None:
        """Print a sentence."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def bar(self, label: str) -> Any:
        """Return a bar for one download."""
        return DownloadBar(label, self.console)


class DownloadBar:
    """The four members that pooch expects of a progress bar."""

    def __init__(self, label: str, console: Console) -> None:
        """Show nothing until the first bytes."""
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console)
        self.task = self.progress.add_task(label, total=None)
        self.total = 0

    def update(self, size: int) -> None:
        """Advance by a number of bytes."""
        self.progress.start()
        self.progress.update(self.task, total=self.total or None, advance=size)

    def reset(self) -> None:
        """Go back to the start."""
        self.progress.reset(self.task, start=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self.progress.live.is_started:
            self.progress.stop()
