"""`pbwn list`: the tables and figures, what they cost here, and what is done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pbwn_repro.commands import CacheDir, Fallback, announce, estimated, folder_with, note

if TYPE_CHECKING:
    from pbwn_repro.planning import Status
    from pbwn_repro.runs.pools import Slots

DAY = 86_400


def list_artefacts(out: Fallback = None, cache_dir: CacheDir = None) -> None:
    """List the paper's tables and figures and our own experiments: runs done, runs needed, and their time here."""
    announce("Reading runs and estimating times ...")
    import torch

    from pbwn_repro.catalog import KNOWN, SCALES
    from pbwn_repro.planning import overview
    from pbwn_repro.runs.estimates import TERAFLOPS, Speeds
    from pbwn_repro.runs.pools import slots

    device = "cuda" if torch.cuda.is_available() else "cpu"
    places = slots(10**9, device=device)
    usual = out or Path("runs")
    speeds = Speeds(usual, cache_dir, device, tell=note)
    found = overview(lambda name: out or folder_with(name), speeds)
    console = Console(highlight=False)
    console.print("Runs done / needed, and the time that all of them take, at each scale\n")
    rows = [("", *SCALES)]
    rows += [(name, *(_cell(each, places) for each in by_scale.values())) for name, by_scale in found.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    titled = sum(widths) + 2 * len(widths) + max(len(KNOWN[name].title) for name in found)
    between = "  " if titled <= console.width else "\n  "
    for name, *cells in rows:
        line = "  ".join(text.ljust(width) for text, width in zip((name, *cells), widths, strict=True))
        console.print(Text.assemble(line, *((between, (KNOWN[name].title, "dim")) if name else ())))
    kept = dict.fromkeys(str(folder_with(name)) for name in found if not out and folder_with(name) != usual)
    elsewhere = f"; where there are none, the kept runs in {', '.join(kept)}" if kept else ""
    where = f"{places.count} GPUs" if device == "cuda" else f"{places.count} cores"
    console.print(
        f"\n'Done' counts the runs in {usual}{elsewhere}. Times are estimates for this machine's {where}, or, if those "
        f"would need more than a day, for one GPU of {TERAFLOPS:g} TFLOP/s ('GPU h'). They come from the runs in "
        f"{usual}, or else from a short speed test; '-' is next to nothing. A run that several entries share is done "
        "only once.\n"
        "`pbwn show NAME` describes one, `pbwn reproduce NAME --scale SCALE` runs it; add --dry-run to see its runs.",
        markup=False,
    )


def _cell(status: Status, places: Slots) -> str:
    """The runs of a scale and their time, or the smaller scale that it equals."""
    from pbwn_repro.runs.pools import wall_seconds

    if status.same_as and not status.done:
        return f"as {status.same_as}"
    seconds = wall_seconds(status.seconds, status.longest, places)
    return f"{status.done}/{status.runs}  {_time(seconds, status.gpu_seconds)}"


def _time(seconds: float, gpu_seconds: float) -> str:
    """A time in one unit: that of this machine, or GPU hours where this machine would take days.

    >>> _time(7.3, 1.0), _time(437.0, 60.0), _time(5_400.0, 60.0), _time(40_000_000.0, 455_000.0), _time(90_000, 0.0)
    ('7 s', '7 min', '1.5 h', '126 GPU h', '25 h')
    """
    if seconds >= DAY and gpu_seconds:
        return _rounded(gpu_seconds / 3_600, "GPU h")
    for size, unit in ((3_600, "h"), (60, "min")):
        if seconds >= size:
            return _rounded(seconds / size, unit)
    return estimated(seconds)


def _rounded(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 10 or unit == "min" else f"{value:.1f} {unit}"
