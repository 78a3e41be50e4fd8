"""The sub-commands of `pbwn`, one module each; heavy imports wait inside of the functions.

Here stands what several of them share: their options, and how they speak.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from pbwn_repro.commands.names import Completion, completing, data_sets, networks
from pbwn_repro.errors import UsageError, plain

# Options that have another name than the field of the configuration that they set.
_FIELDS = {
    "lr": "optimizer.lr",
    "rates": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "decays": "optimizer.weight_decay",
    "labels": "data.labels",
}


def _untyped(parameters: list[Any]) -> list[Any]:
    """Have help leave out Python's types: a flag takes no value, and the name of an argument says what it is."""
    for each in parameters:
        if each.param_type_name == "argument" or each.is_flag:
            each.display_type_rich = lambda ctx: None
    return parameters


class Command(TyperCommand):
    """A command whose help is for people, and wrapped by the terminal alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Join the lines of each paragraph of the docstring."""
        super().__init__(*args, **kwargs)
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as `_untyped` has them."""
        return _untyped(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; a value that an option cannot have is refused in plain words."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = plain(error.message)  # typer 0.29 takes pydantic's message as it is
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run it; an error that is about a field of the configuration names the option for it."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            raise type(error)(self._in_options(str(error), ctx)) from error

    def _in_options(self, message: str, ctx: Any) -> str:
        """The message with options for fields: for a field's value only if the option gave it, not a file or --set."""
        for each in self.params:
            name, flag = str(each.name), each.opts[0]
            if ctx.get_parameter_source(name).name == "COMMANDLINE":
                message = re.sub(rf"(^|; ){re.escape(_FIELDS.get(name, name))}(?=:| must)", rf"\1{flag}", message)
            if "_" in name:
                message = re.sub(rf"(?<![\w.=/'-]){name}(?![\w=])(?!:| must)", flag, message)
        return message


class Group(TyperGroup):
    """Commands under one name, whose help is for people."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as `_untyped` has them."""
        return _untyped(super().get_params(ctx))


def option(
    help_text: str,
    *names: str,
    metavar: str | None = None,
    completion: Completion | None = None,
    least: int | None = None,
    panel: str | None = None,
) -> Any:
    """An option whose default the help text names where there is one."""
    return typer.Option(
        *names,
        help=help_text,
        show_default=False,
        metavar=metavar,
        autocompletion=completion,
        min=least,
        rich_help_panel=panel,
    )


# The panels of help below the usual options.
SETTINGS = "More settings of a run"
PLACES = "Data and machine"

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
    typer.Option(
        metavar="FOLDER",
        help="A folder with files that you already have; nothing is downloaded then.",
        rich_help_panel=PLACES,
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        envvar="PBWN_CACHE",
        help="Where downloads and decoded sets are kept.",
        rich_help_panel=PLACES,
    ),
]
ConfigFile = Annotated[
    Path | None, option("JSON file with fields of the configuration.", metavar="FILE", panel=SETTINGS)
]
Fields = Annotated[
    list[str] | None,
    option(
        "Any other field, such as schedule.factor=0.5 or model_options.width=64; may be repeated.",
        "--set",
        metavar="FIELD=VALUE",
        panel=SETTINGS,
    ),
]
Fallback = Annotated[
    Path | None,
    option(
        "Where run folders are kept; if not given, runs, or else the results that the project ships.",
        metavar="FOLDER",
    ),
]
Out = Annotated[Path, option("Where run folders are kept (default runs).", metavar="FOLDER")]
# Of commands that make many runs.
Jobs = Annotated[int | None, option("Runs at a time; by default one for each core or GPU.", metavar="N", panel=PLACES)]
Devices = Annotated[
    str, option("cpu, cuda or cuda:1; by default all GPUs if there are any.", metavar="DEVICE", panel=PLACES)
]
Cluster = Annotated[
    str | None,
    option("Run on Ray: auto for the cluster that is running here, or its address.", metavar="ADDRESS", panel=PLACES),
]
Retry = Annotated[bool, option("Run again what has diverged before.", "--retry")]
SummaryOnly = Annotated[bool, option("Print only the summary.", "--quiet", "-q")]
Preview = Annotated[bool, option("Show the runs with their state, time and size; run nothing.", "--dry-run")]


def announce(words: str) -> None:
    """Say on a terminal what begins, before imports that take seconds; logs and pipes have the results alone."""
    if sys.stderr.isatty():
        print(words, file=sys.stderr, flush=True)


def note(words: str) -> None:
    """Say on standard error what takes seconds."""
    typer.echo(words, err=True)


def program() -> str:
    """How this command can be started from the current folder: pbwn itself may be in a folder that is not on PATH."""
    if shutil.which("pbwn"):
        return "pbwn"
    script = Path(sys.argv[0])
    return "python -m pbwn_repro" if script.name == "__main__.py" else os.path.relpath(script)


def folder_with(artefact: str) -> Path:
    """The folder `runs` if it holds anything of an artefact, else the results that a checkout of the project ships."""
    usual = Path("runs")
    shipped = (Path("results"), Path(__file__).parents[3] / "results")
    return next((folder for folder in (usual, *shipped) if (folder / artefact).is_dir()), usual)


def estimated(seconds: float) -> str:
    """A time that is an estimate; zero stands for work that is too little to be estimated."""
    from pbwn_repro.engine.reporting import duration

    if seconds < 1:
        return "< 1 s" if seconds else "-"
    return duration(seconds)


def say(console: Console, words: str) -> None:
    """Print words as they are, without colours; a terminal has lines that end between words, a file has whole ones."""
    console.print(words, markup=False, highlight=False, emoji=False, soft_wrap=not console.is_terminal)
