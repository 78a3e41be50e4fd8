"""`pbwn list`: the tables and figures, their progress and their estimated time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pbwn_repro.commands import CacheDir, Fallback, announce, folder_with, format_estimate, note

if TYPE_CHECKING:
    from pbwn_repro.planning import Status
    from pbwn_repro.runs.pools import Slots

DAY = 86_400


def list_artefacts(out: Fallback = None, cache_dir: CacheDir = None) -> None:
    """List the paper's tables and figures and our own experiments: runs done, runs needed, and their estimated time."""
    announce("Reading runs and estimating times ...")
    import torch

    from pbwn_repro.catalog import KNOWN, SCALES
    from pbwn_repro.planning import overview
    from pbwn_repro.runs.estimates import TERAFLOPS, Speeds
    from pbwn_repro.runs.pools import slots

    device = "cuda" if torch.cuda.is_available() else "cpu"
    available = slots(10**9, device=device)
    runs = out or Path("runs")
    speeds = Speeds(runs, cache_dir, device, report=note)
    found = overview(lambda name: out or folder_with(name), speeds)
    console = Console(highlight=False)
    console.print("Runs done / needed, and the time for all of them, at each scale\n")
    rows = [("", *SCALES)]
    rows += [(name, *(_cell(each, available) for each in by_scale.values())) for name, by_scale in found.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    full_width = sum(widths) + 2 * len(widths) + max(len(KNOWN[name].title) for name in found)
    separator = "  " if full_width <= console.width else "\n  "
    for name, *cells in rows:
        line = "  ".join(text.ljust(width) for text, width in zip((name, *cells), widths, strict=True))
        console.print(Text.assemble(line, *((separator, (KNOWN[name].title, "dim")) if name else ())))
    shipped = dict.fromkeys(str(folder_with(name)) for name in found if not out and folder_with(name) != runs)
    elsewhere = f" or, if there are none, the archived runs in {', '.join(shipped)}" if shipped else ""
    hardware = f"{available.count} GPUs" if device == "cuda" else f"{available.count} cores"
    console.print(
        f"\n'Done' counts the runs in {runs}{elsewhere}. Times are estimates for this machine's {hardware} or, if that "
        f"would take more than a day, for one GPU of {TERAFLOPS:g} TFLOP/s ('GPU h'). They are based on the runs in "
        f"{runs} or else on a short speed test; '-' means negligible. A run shared by several entries is done only "
        "once.\n"
        "`pbwn show NAME` describes an entry, `pbwn reproduce NAME --scale SCALE` runs it; add --dry-run to list its "
        "runs.",
        markup=False,
    )


def _cell(status: Status, available: Slots) -> str:
    """Format the runs of a scale and their time, or name the smaller scale that has the same runs."""
    from pbwn_repro.runs.pools import wall_seconds

    if status.same_as and not status.done:
        return f"as {status.same_as}"
    seconds = wall_seconds(status.seconds, status.longest, available)
    return f"{status.done}/{status.runs}  {_time(seconds, status.gpu_seconds)}"


def _time(seconds: float, gpu_seconds: float) -> str:
    """Format the time on this machine, or GPU hours if this machine would take more than a day.

    >>> _time(7.3, 1.0), _time(437.0, 60.0), _time(5_400.0, 60.0), _time(40_000_000.0, 455_000.0), _time(90_000, 0.0)
    ('7 s', '7 min', '1.5 h', '126 GPU h', '25 h')
    """
    if seconds >= DAY and gpu_seconds:
        return _rounded(gpu_seconds / 3_600, "GPU h")
    for size, unit in ((3_600, "h"), (60, "min")):
        if seconds >= size:
            return _rounded(seconds / size, unit)
    return format_estimate(seconds)


def _rounded(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 10 or unit == "min" else f"{value:.1f} {unit}"
