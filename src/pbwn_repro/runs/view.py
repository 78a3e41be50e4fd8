"""A sweep as people watch it: a live table on a terminal, lines elsewhere."""

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
_WORDS = {
    "there": "done before",
    "done": "done",
    "diverged": "diverged",
    "failed": "failed",
    "killed": "killed",
    "busy": "busy elsewhere",
    "stopped": "stopped, saved",
}


def view_for(console: Console, *, quiet: bool) -> View:
    """The view that suits where the words go."""
    return View() if quiet else LiveView(console) if console.is_terminal else LinesView(console)


class Pace:
    """How long the whole sweep will take, from the work that it has done since it began."""

    def __init__(self) -> None:
        """The clock starts with the first look."""
        self._started: float | None = None
        self._seen: dict[Path, Progress] = {}

    def seconds_left(self, sweep: Sweep, progress: dict[Path, Progress | None]) -> float | None:
        """The time that is left at the pace so far; None before there is one."""
        now = time.monotonic()
        if self._started is None:
            self._started = now
        passed = now - self._started
        mine = {path: found for path, found in progress.items() if found and found.seconds <= passed + 1}
        self._seen |= mine  # another process, or one that was killed, may have left word of longer ago
        made = sum(job.flops * self._made(job.path) for job in sweep.running)
        made += sum(job.flops * self._made(job.path, ending.kind) for job, ending in sweep.ended)
        shares = {job.path: found.share if (found := self._seen.get(job.path)) else 0.0 for job in sweep.running}
        left = sum(job.flops for job in sweep.waiting)
        left += sum(job.flops * (1 - shares[job.path]) for job in sweep.running)
        return left / made * passed if made > 0 else None

    def _made(self, path: Path, ending: str | None = None) -> float:
        """The share of a run that this sweep has made: not what was there before it went on."""
        if ending in ("there", "busy"):
            return 0.0
        seen = self._seen.get(path)
        if seen is None:
            return float(ending == "done")
        until = seen.total if ending == "done" else seen.step
        return (until - seen.first) / max(1, seen.total)


class LinesView(View):
    """A line when a run starts and ends, and one on the whole every half minute; why one failed, the summary says."""

    def __init__(self, console: Console) -> None:
        """Nothing is printed yet."""
        self._console, self._pace = console, Pace()
        self._seen: set[tuple[str, str]] = set()
        self._printed = time.monotonic()

    def show(self, sweep: Sweep) -> None:
        """Print what is new."""
        for job, ending in sweep.ended:
            if not ending.earlier:
                value = final_value(job.path) if ending.kind == "done" else None
                self._once(job.title, _WORDS[ending.kind] + (f", {value[0]} {value[1]}" if value else ""))
        for job in sweep.running:
            self._once(job.title, "started")
        left = self._pace.seconds_left(sweep, {job.path: read_progress(job.path) for job in sweep.running})
        if sweep.running and time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self._print(summary(sweep, left))

    def _once(self, title: str, words: str) -> None:
        if (title, words) not in self._seen:
            self._seen.add((title, words))
            self._print(f"{title}: {words}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveView(View):
    """A table that changes in place: what runs, what has just ended, and how much is left."""

    def __init__(self, console: Console) -> None:
        """Nothing is drawn yet."""
        self._pace = Pace()
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> None:
        """Begin to draw."""
        self._live.start()

    def __exit__(self, *error: object) -> None:
        """Leave the table as it stands."""
        self._live.stop()

    def show(self, sweep: Sweep) -> None:
        """Draw where the sweep stands."""
        self._live.update(drawing(sweep, self._pace, room=max(3, self._live.console.height - RECENT - 4)))


def drawing(sweep: Sweep, pace: Pace, room: int) -> Group:
    """The table of a sweep, and a line on the whole; of more runs than there is room for, the first."""
    progress = {job.path: read_progress(job.path) for job in sweep.running}
    table = Table("run", "", "left", "test", "", box=None, pad_edge=False, header_style="dim")
    table.columns[2].justify = table.columns[3].justify = "right"
    new = [(job, ending) for job, ending in sweep.ended if not ending.earlier]
    for job, ending in new[-RECENT:]:
        bar, (_, value) = ProgressBar(1, 1.0, width=12), final_value(job.path) or ("", "")
        table.add_row(Text(job.title), bar, "", value, Text(_WORDS[ending.kind]), style="dim")
    for job in sweep.running[:room]:
        table.add_row(Text(job.title), *_running(progress[job.path]))
    if len(sweep.running) > room:
        table.add_row(f"and {len(sweep.running) - room} more that run", "", "", "", "")
    return Group(table, Text(summary(sweep, pace.seconds_left(sweep, progress))))


def summary(sweep: Sweep, seconds_left: float | None) -> str:
    """The whole in one line."""
    total = len(sweep.waiting) + len(sweep.running) + len(sweep.ended)
    parts = [f"{len(sweep.having('there', 'done'))} of {total} done"]
    parts += [f"{len(sweep.running)} running", f"{len(sweep.waiting)} waiting"]
    counts = {kind: len(sweep.having(kind)) for kind in ("diverged", "failed", "killed", "busy")}
    parts += [f"{count} {_WORDS[kind]}" for kind, count in counts.items() if count]
    if seconds_left is not None and sweep.running:
        parts.append(f"about {duration(seconds_left)} left")
    if sweep.stopping and sweep.running:
        parts.append("stopping: runs save their state")
    return ", ".join(parts)


def final_value(path: Path) -> tuple[str, str] | None:
    """What a finished training run is judged by, in words, and its value; None for everything else."""
    try:
        folder = RunFolder(path)
        metric = metric_of(folder.read_config())
        return metric.words, metric.shown(folder.read_result()[metric.name])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def described(ending: Ending) -> str:
    """How a job ended, in a line; what to do about a divergence is left out."""
    if ending.kind == "diverged":
        if ending.earlier:
            return "diverged earlier, not run again (--retry runs it)"
        return f"diverged: {ending.message.partition('. ')[0]}"
    first, *more = ending.message.splitlines() or [""]
    return _WORDS[ending.kind] + (f": {first}" if first else "") + (" ..." if more else "")


def _running(found: Progress | None) -> tuple[ProgressBar, str, str, str]:
    if found is None:
        return ProgressBar(1, 0.0, width=12), "", "", "starting"
    left = "" if found.seconds_left is None else duration(found.seconds_left)
    return ProgressBar(1, found.share, width=12), left, found.shown, found.speed
