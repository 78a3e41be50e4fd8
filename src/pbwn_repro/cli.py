"""The command `pbwn`."""

from __future__ import annotations

import sys

import typer

from pbwn_repro.commands import bench, data, reproduce, train
from pbwn_repro.exit_codes import exit_code

app = typer.Typer(
    name="pbwn",
    help="Projection Based Weight Normalization: every table and figure of the paper.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.command()(reproduce.reproduce)
app.command()(train.train)
app.command()(bench.bench)


@app.callback()
def pbwn() -> None:
    """Projection Based Weight Normalization: every table and figure of the paper."""


def run() -> None:
    """Run the command line; what a user can mend is one message and an exit code, not a traceback."""
    try:
        app()
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        print(f"pbwn: {error}", file=sys.stderr)
        sys.exit(code)
