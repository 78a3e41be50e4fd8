"""`pbwn list`: the tables and figures, what they cost here, and what is done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table

from pbwn_repro.commands.data import CacheDir
from pbwn_repro.commands.train import option


def list_artefacts(
    out: Annotated[Path, option("Where run folders are kept (default runs).", metavar="FOLDER")] = Path("runs"),
    cache_dir: CacheDir = None,
) -> None:
    """Show the paper's tables and figures, then experiments of ours: runs done of those needed, and their time here."""
    import torch

    from pbwn_repro.catalog import KNOWN, SCALES
    from pbwn_repro.planning import overview
    from pbwn_repro.runs.estimates import Speeds
    from pbwn_repro.runs.packing import slots, wall_seconds
    from pbwn_repro.runs.view import duration

    device = "cuda" if torch.cuda.is_available() else "cpu"
    places = slots(10**9, device=device)
    table = Table("", "", box=None, pad_edge=False)
    for scale in SCALES:
        table.add_column(scale, no_wrap=True)
    for name, standings in overview(out, Speeds(out, cache_dir, device)).items():
        cells = []
        for found in standings.values():
            seconds = wall_seconds(found.seconds, found.longest, places)
            cells.append(f"{found.done}/{found.runs}  {duration(seconds)}")
        table.add_row(name, KNOWN[name].title, *cells)
    console = Console()
    console.print("Runs done / needed, and the time that all of them take here, at each scale\n", highlight=False)
    console.print(table)
    where = f"{places.count} GPUs" if device == "cuda" else f"{places.count} cores"
    console.print(
        f"\nDone is what is in {out}. Times are for {where} of this machine, from those of runs in that folder where "
        "there are any, else from a short test of its speed. A run that two of them show is made once.\n"
        "`pbwn reproduce NAME --scale SCALE` makes one; add --dry-run to see its runs.",
        markup=False,
        highlight=False,
    )
