"""`pbwn list`: the tables and figures, what they cost here, and what is done."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from pbwn_repro.commands import CacheDir, Out

DAY = 86_400
WIDE = 110  # columns of a terminal from which titles fit beside the times


def list_artefacts(out: Out = Path("runs"), cache_dir: CacheDir = None) -> None:
    """List the paper's tables and figures and our own experiments: runs done, runs needed, and their time here."""
    console = Console(highlight=False)
    console.print("Runs done / needed, and the time that all of them take, at each scale\n")
    import torch

    from pbwn_repro.catalog import KNOWN, SCALES
    from pbwn_repro.planning import overview
    from pbwn_repro.runs.estimates import TERAFLOPS, Speeds
    from pbwn_repro.runs.pools import slots, wall_seconds

    device = "cuda" if torch.cuda.is_available() else "cpu"
    places = slots(10**9, device=device)
    titled = console.width >= WIDE
    table = Table("", *([""] if titled else []), box=None, pad_edge=False)
    for scale in SCALES:
        table.add_column(scale, no_wrap=True)
    for name, standings in overview(out, Speeds(out, cache_dir, device)).items():
        cells = []
        for found in standings.values():
            seconds = wall_seconds(found.seconds, found.longest, places)
            cells.append(f"{found.done}/{found.runs}  {_time(seconds, found.gpu_seconds)}")
        table.add_row(name, *([KNOWN[name].title] if titled else []), *cells)
    console.print(table)
    where = f"{places.count} GPUs" if device == "cuda" else f"{places.count} cores"
    console.print(
        f"\n'Done' counts the runs in the folder {out}. Times are estimates for {where} of this machine, from the runs "
        "in that folder or else from a short speed test. Where this machine would need days, GPU hours are given, "
        f"for one current GPU ({TERAFLOPS:g} TFLOP/s). Runs that entries share are done only once.\n"
        "`pbwn show NAME` describes one, `pbwn reproduce NAME --scale SCALE` runs it; add --dry-run to see its runs.",
        markup=False,
    )


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
    return f"{seconds:.0f} s"


def _rounded(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 10 or unit == "min" else f"{value:.1f} {unit}"
