"""Display of a running sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pbwn_repro.engine.reporting import duration
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.runs.jobs import Ending, Progress, read_progress
from pbwn_repro.runs.sweep import Sweep, View
from pbwn_repro.tasks import metric_of

SECONDS_BETWEEN_LINES = 30.0
RECENT = 5
_LABELS = {
    "existing": "done before",
    "done": "done",
    "diverged": "diverged",
    "failed": "failed",
    "killed": "killed",
    "busy": "busy elsewhere",
    "stopped": "stopped, saved",
}


def view_for(console: Console, *, quiet: bool) -> View:
    """Return the view for a console: a live table on a terminal, else lines; none if quiet."""
    return View() if quiet else LiveView(console) if console.is_terminal else LinesView(console)


class Pace:
    """Estimates the remaining time of a sweep from the work that it has done since it began."""

    def __init__(self) -> None:
        """The clock starts with the first call of `seconds_left`."""
        self._started: float | None = None
        self._seen: dict[Path, Progress] = {}

    def seconds_left(self, sweep: Sweep, progress: dict[Path, Progress | None]) -> float | None:
        """Return the remaining time at the average pace so far; None before any work is done."""
        now = time.monotonic()
        if self._started is None:
            self._started = now
        elapsed = now - self._started
        # Progress that began before this sweep is that of another process, or was left by a killed one.
        self._seen |= {path: found for path, found in progress.items() if found and found.seconds <= elapsed + 1}
        done = sum(job.flops * self._share_done(job.path) for job in sweep.running)
        done += sum(job.flops * self._share_done(job.path, ending.kind) for job, ending in sweep.ended)
        shares = {job.path: found.share if (found := self._seen.get(job.path)) else 0.0 for job in sweep.running}
        remaining = sum(job.flops for job in sweep.waiting)
        remaining += sum(job.flops * (1 - shares[job.path]) for job in sweep.running)
        return remaining / done * elapsed if done > 0 else None

    def _share_done(self, path: Path, ending: str | None = None) -> float:
        """Return the fraction of a run that this sweep has done, without the part before the run was resumed."""
        if ending in ("existing", "busy"):
            return 0.0
        seen = self._seen.get(path)
        if seen is None:
            return float(ending == "done")
        until = seen.total if ending == "done" else seen.step
        return (until - seen.first) / max(1, seen.total)


class LinesView(View):
    """Prints a line when a run starts or ends, and a summary every half minute. Reasons of failures are not printed."""

    def __init__(self, console: Console) -> None:
        """Nothing is printed before `show`."""
        self._console, self._pace = console, Pace()
        self._messages: set[tuple[str, str]] = set()
        self._printed = time.monotonic()

    def show(self, sweep: Sweep) -> None:
        """Print what has changed."""
        for job, ending in sweep.ended:
            if not ending.earlier:
                value = final_value(job.path) if ending.kind == "done" else None
                self._once(job.title, _LABELS[ending.kind] + (f", {value[0]} {value[1]}" if value else ""))
        for job in sweep.running:
            self._once(job.title, "started")
        seconds_left = self._pace.seconds_left(sweep, {job.path: read_progress(job.path) for job in sweep.running})
        if sweep.running and time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self._print(summary(sweep, seconds_left))

    def _once(self, title: str, message: str) -> None:
        if (title, message) not in self._messages:
            self._messages.add((title, message))
            self._print(f"{title}: {message}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveView(View):
    """A table that is updated in place: the running jobs, those that ended last, and a summary."""

    def __init__(self, console: Console) -> None:
        """Nothing is drawn before the view is entered."""
        self._pace = Pace()
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> None:
        """Start drawing."""
        self._live.start()

    def __exit__(self, *error: object) -> None:
        """Stop drawing; the table stays on the screen."""
        self._live.stop()

    def show(self, sweep: Sweep) -> None:
        """Redraw the table."""
        self._live.update(render(sweep, self._pace, room=max(3, self._live.console.height - RECENT - 4)))


def render(sweep: Sweep, pace: Pace, room: int) -> Group:
    """Return the table of a sweep, with at most `room` running jobs, and a summary line."""
    progress = {job.path: read_progress(job.path) for job in sweep.running}
    table = Table("run", "", "left", "test", "", box=None, pad_edge=False, header_style="dim")
    table.columns[2].justify = table.columns[3].justify = "right"
    ended = [(job, ending) for job, ending in sweep.ended if not ending.earlier]
    for job, ending in ended[-RECENT:]:
        bar, (_, value) = ProgressBar(1, 1.0, width=12), final_value(job.path) or ("", "")
        table.add_row(Text(job.title), bar, "", value, Text(_LABELS[ending.kind]), style="dim")
    for job in sweep.running[:room]:
        table.add_row(Text(job.title), *_running(progress[job.path]))
    if len(sweep.running) > room:
        table.add_row(f"and {len(sweep.running) - room} more running", "", "", "", "")
    return Group(table, Text(summary(sweep, pace.seconds_left(sweep, progress))))


def summary(sweep: Sweep, seconds_left: float | None) -> str:
    """Return the state of the whole sweep in one line."""
    total = len(sweep.waiting) + len(sweep.running) + len(sweep.ended)
    parts = [f"{len(sweep.having('existing', 'done'))} of {total} done"]
    parts += [f"{len(sweep.running)} running", f"{len(sweep.waiting)} waiting"]
    counts = {kind: len(sweep.having(kind)) for kind in ("diverged", "failed", "killed", "busy")}
    parts += [f"{count} {_LABELS[kind]}" for kind, count in counts.items() if count]
    if seconds_left is not None and sweep.running:
        parts.append(f"about {duration(seconds_left)} left")
    if sweep.stopping and sweep.running:
        parts.append("stopping: runs are saving their state")
    return ", ".join(parts)


def final_value(path: Path) -> tuple[str, str] | None:
    """Return the title and the formatted value of a finished training run's main metric; None for other jobs."""
    try:
        folder = RunFolder(path)
        metric = metric_of(folder.read_config())
        return metric.words, metric.format(folder.read_result()[metric.name])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def described(ending: Ending) -> str:
    """Describe how a job ended in one line, without the advice that follows a divergence."""
    if ending.kind == "diverged":
        if ending.earlier:
            return "diverged earlier, not run again (use --retry to repeat it)"
        return f"diverged: {ending.message.partition('. ')[0]}"
    first, *more = ending.message.splitlines() or [""]
    return _LABELS[ending.kind] + (f": {first}" if first else "") + (" ..." if more else "")


def _running(progress: Progress | None) -> tuple[ProgressBar, str, str, str]:
    """Return the cells of a running job, after its title."""
    if progress is None:
        return ProgressBar(1, 0.0, width=12), "", "", "starting"
    time_left = "" if progress.seconds_left is None else duration(progress.seconds_left)
    return ProgressBar(1, progress.share, width=12), time_left, progress.shown, progress.speed
