"""Entry point of the command `pbwn`; without the extra `repro` it explains how to install it."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

_OURS = ("pbwn", "pbwn_repro")
INSTALL_LINE = "pip install 'pbwn[repro]'"
WITHOUT_EXTRA = f"""\
Usage: pbwn COMMAND

pbwn: Projection Based Weight Normalization. The library works without this command:

    import pbwn
    projection = pbwn.attach(model, optimizer)

The commands (demo, list, show, reproduce, report, train, sweep, inspect, data, doctor, bench, archive, migrate) need
the extra packages of the reproduction suite:

    {INSTALL_LINE}
"""


def wait_passively() -> None:
    """Let waiting OpenMP threads sleep if several processes share the machine.

    Spinning threads take cores away from the other processes and make steps many times slower. The variable must be set
    before torch is imported; a value set by the user is kept.
    """
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def main() -> None:
    """Run the command line, or explain how to install what it needs."""
    wait_passively()
    try:
        from pbwn_repro.cli import run

        run()
    except ModuleNotFoundError as error:
        if error.name is None or not _is_needed_by_suite(error):
            raise
        _without_extra(str(error.name), sys.argv[1:])


def _is_needed_by_suite(error: ModuleNotFoundError) -> bool:
    """Whether the suite itself imports the missing package, and not a user's model or method."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    importing = [name for name in frames if "importlib" not in name][-1]
    return Path(__file__).parent in Path(importing).parents and str(error.name).partition(".")[0] not in _OURS


def _without_extra(package: str, arguments: list[str]) -> None:
    """Answer `--version` and `--help`; otherwise name the missing package and exit with code 2."""
    if arguments[:1] == ["--version"]:
        from importlib.metadata import version

        print(f"pbwn {version('pbwn')}")
    elif arguments[:1] in ([], ["--help"]):
        print(WITHOUT_EXTRA, end="")
    else:
        print(
            f"pbwn: this command needs the package {package!r}, which is not installed: {INSTALL_LINE}. "
            "The library itself (import pbwn) works without it.",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
