"""The sub-commands of `pbwn`, one module each; heavy imports wait inside of the functions.

Here stands what several of them share: their options, and how they speak.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pbwn_repro.commands.names import Completion, completing, data_sets, networks


def option(
    help_text: str,
    *names: str,
    metavar: str | None = None,
    completion: Completion | None = None,
    least: int | None = None,
) -> Any:
    """An option whose default the help text names where there is one."""
    return typer.Option(
        *names, help=help_text, show_default=False, metavar=metavar, autocompletion=completion, min=least
    )


MODEL = option(
    "The model, such as resnet-20, or MODULE:CALLABLE for your own.",
    metavar="NAME",
    completion=completing(also=networks),
)
Data = Annotated[
    str | None,
    option(
        "The data set, or text:FILE; the recipe's own if not given.",
        metavar="SET",
        completion=completing(also=data_sets),
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="A folder with files that you already have; nothing is downloaded then."),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", envvar="PBWN_CACHE", help="Where downloads and decoded sets are kept."),
]
ConfigFile = Annotated[Path | None, option("JSON file with fields of the configuration.", metavar="FILE")]
Fields = Annotated[
    list[str] | None, option("Any other field, such as schedule.factor=0.5.", "--set", metavar="FIELD=VALUE")
]
Out = Annotated[Path, option("Where run folders are kept (default runs).", metavar="FOLDER")]
# Of commands that make many runs.
Jobs = Annotated[int | None, option("Runs at a time; by default one for each core or GPU.")]
Devices = Annotated[str, option("cpu, cuda or cuda:1; by default all GPUs if there are any.")]
Cluster = Annotated[
    str | None, option("Run on Ray: auto for the cluster that is running here, or its address.", metavar="ADDRESS")
]
Retry = Annotated[bool, option("Run again what has diverged before.", "--retry")]
SummaryOnly = Annotated[bool, option("Print only the summary.", "--quiet", "-q")]
Preview = Annotated[bool, option("Show the runs with their state, time and size; run nothing.", "--dry-run")]


def announce(words: str) -> None:
    """Say on a terminal what begins, before imports that take seconds; logs and pipes have the results alone."""
    if sys.stderr.isatty():
        print(words, file=sys.stderr, flush=True)


def say(console: Console, words: str) -> None:
    """Print words as they are: paths are neither coloured nor broken."""
    console.print(words, markup=False, highlight=False, soft_wrap=True)
