"""The command `pbwn`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from pbwn_repro.commands import (
    Command,
    Group,
    archive,
    bench,
    data,
    demo,
    doctor,
    inspect,
    list,
    migrate,
    print_plain,
    report,
    reproduce,
    show,
    sweep,
    train,
)
from pbwn_repro.exit_codes import exit_code

PAPER = "The paper's tables and figures"
OWN = "Your own models"
RUNS = "Runs and data"
MACHINE = "This machine"
HELP = """Projection Based Weight Normalization: every table and figure of the paper is one command.

Start with the first of these. For details of a command: pbwn COMMAND --help

pbwn demo                              train with and without PBWN (a minute)
pbwn reproduce table-3 --scale smoke   run a table at toy scale (seconds)
pbwn report runs                       write a report of these runs
pbwn inspect MODULE:CALLABLE           show what PBWN constrains in your model
pbwn sweep --model MODULE:CALLABLE --data SET --epochs 5 --rates 0.1,0.3,1

The last command compares normal training with PBWN on your model.
In your own training script, PBWN is one line: pbwn.attach(model, optimizer)
"""
EPILOG = (
    "Exit codes: 0 done; 1 external failure, such as a missing file or a full disk; 2 incorrect usage; "
    "3 a loss or gradient was not finite; 75 stopped on request: run the same command to resume."
)

app = typer.Typer(name="pbwn", cls=Group, no_args_is_help=True, pretty_exceptions_enable=False)
app.command(cls=Command, rich_help_panel=PAPER)(demo.demo)
app.command("list", cls=Command, rich_help_panel=PAPER)(list.list_artefacts)
app.command(cls=Command, rich_help_panel=PAPER)(show.show)
app.command(cls=Command, rich_help_panel=PAPER)(reproduce.reproduce)
app.command(cls=Command, rich_help_panel=PAPER)(report.report)
app.command(cls=Command, rich_help_panel=OWN)(inspect.inspect)
app.command(cls=Command, rich_help_panel=OWN)(train.train)
app.command(cls=Command, rich_help_panel=OWN)(sweep.sweep)
app.command(cls=Command, rich_help_panel=RUNS)(archive.archive)
app.command(cls=Command, rich_help_panel=RUNS)(migrate.migrate)
app.add_typer(data.app, name="data", rich_help_panel=RUNS)
app.command(cls=Command, rich_help_panel=MACHINE)(doctor.doctor)
app.command(cls=Command, rich_help_panel=MACHINE)(bench.bench)


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"pbwn {version('pbwn')}")
        raise typer.Exit


@app.callback(help=HELP, epilog=EPILOG)
def pbwn(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handle the options of the command itself."""


def _message(error: Exception) -> str:
    """Return an error's message; a system error names the file and the reason, without the error number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def run() -> None:
    """Run the command line; a user's mistake ends with a message and an exit code, not a traceback."""
    try:
        app()
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        print_plain(Console(stderr=True), f"pbwn: {_message(error)}")
        sys.exit(code)
