"""The sub-commands of `pbwn`, one module each, and the options and output functions that they share.

Heavy imports are inside functions, so that help, completion and wrong usage do not wait for them.
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
from pbwn_repro.errors import UsageError, plain_message

# Options whose name differs from that of the configuration field they set.
_FIELDS = {
    "lr": "optimizer.lr",
    "rates": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "decays": "optimizer.weight_decay",
    "labels": "data.labels",
}


def _untyped(parameters: list[Any]) -> list[Any]:
    """Hide Python's types in the help of flags, which take no value, and of arguments, whose names are enough."""
    for parameter in parameters:
        if parameter.param_type_name == "argument" or parameter.is_flag:
            parameter.display_type_rich = lambda ctx: None
    return parameters


class Command(TyperCommand):
    """A command whose help has no Python types or fixed line breaks, and whose errors name options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Join the lines of each paragraph of the help text."""
        super().__init__(*args, **kwargs)
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, without Python's types in their help."""
        return _untyped(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; the error for an invalid value is in plain words."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = plain_message(error.message)  # typer 0.29 passes pydantic's message on unchanged
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about a field of the configuration names the option that sets it."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            raise type(error)(self._in_options(str(error), ctx)) from error

    def _in_options(self, message: str, ctx: Any) -> str:
        """Name options instead of fields; for a field's value, only if it came from the option, not a file or --set."""
        for parameter in self.params:
            name, flag = str(parameter.name), parameter.opts[0]
            if ctx.get_parameter_source(name).name == "COMMANDLINE":
                message = re.sub(rf"(^|; ){re.escape(_FIELDS.get(name, name))}(?=:| must)", rf"\1{flag}", message)
            if "_" in name:
                message = re.sub(rf"(?<![\w.=/'-]){name}(?![\w=])(?!:| must)", flag, message)
        return message


class Group(TyperGroup):
    """A group of commands, whose help has no Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, without Python's types in their help."""
        return _untyped(super().get_params(ctx))


def option(
    help_text: str,
    *names: str,
    metavar: str | None = None,
    completion: Completion | None = None,
    minimum: int | None = None,
    panel: str | None = None,
) -> Any:
    """Declare an option whose help text states the default, if there is one."""
    return typer.Option(
        *names,
        help=help_text,
        show_default=False,
        metavar=metavar,
        autocompletion=completion,
        min=minimum,
        rich_help_panel=panel,
    )


# Titles of the help panels below the main options.
SETTINGS = "More settings of a run"
RESOURCES = "Data and hardware"

MODEL = option(
    "The model, such as resnet-20, or MODULE:CALLABLE for your own.",
    metavar="NAME",
    completion=completing(also=networks),
)
Data = Annotated[
    str | None,
    option(
        "The data set, or text:FILE (default: that of the recipe).",
        metavar="SET",
        completion=completing(also=data_sets),
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder with files that you already have; nothing is downloaded.",
        rich_help_panel=RESOURCES,
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        envvar="PBWN_CACHE",
        help="Cache folder for downloads and decoded data sets.",
        rich_help_panel=RESOURCES,
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
        "Folder with the run folders (default: runs, or else the results shipped with the project).",
        metavar="FOLDER",
    ),
]
Out = Annotated[Path, option("Folder for the run folders (default: runs).", metavar="FOLDER")]
# Options of commands that do many runs.
Jobs = Annotated[
    int | None, option("Number of parallel runs (default: one per core or GPU).", metavar="N", panel=RESOURCES)
]
Devices = Annotated[
    str, option("cpu, cuda or cuda:1 (default: all GPUs, if there are any).", metavar="DEVICE", panel=RESOURCES)
]
Cluster = Annotated[
    str | None,
    option("Run on Ray: auto for the cluster running here, or an address.", metavar="ADDRESS", panel=RESOURCES),
]
Retry = Annotated[bool, option("Repeat runs that have diverged.", "--retry")]
SummaryOnly = Annotated[bool, option("Print only the summary.", "--quiet", "-q")]
Preview = Annotated[bool, option("Show the runs with their state, time and size, without running them.", "--dry-run")]


def announce(message: str) -> None:
    """Print on a terminal what is starting, before imports that take seconds; keep logs and pipes free of it."""
    if sys.stderr.isatty():
        print(message, file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Print a message about slow work to standard error."""
    typer.echo(message, err=True)


def program() -> str:
    """Return how to start this command from the current folder: `pbwn` may not be on PATH."""
    if shutil.which("pbwn"):
        return "pbwn"
    script = Path(sys.argv[0])
    return "python -m pbwn_repro" if script.name == "__main__.py" else os.path.relpath(script)


def folder_with(artefact: str) -> Path:
    """Return the folder `runs` if it has runs of the artefact, otherwise the results in a checkout of the project."""
    default = Path("runs")
    shipped = (Path("results"), Path(__file__).parents[3] / "results")
    return next((folder for folder in (default, *shipped) if (folder / artefact).is_dir()), default)


def format_estimate(seconds: float) -> str:
    """Format an estimated time; zero stands for work too small to estimate."""
    from pbwn_repro.engine.reporting import duration

    if seconds < 1:
        return "< 1 s" if seconds else "-"
    return duration(seconds)


def print_plain(console: Console, text: str) -> None:
    """Print text verbatim, without markup or colours; lines are wrapped only on a terminal."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=not console.is_terminal)
