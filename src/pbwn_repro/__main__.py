"""The door of the command `pbwn`; it opens without the extra `repro` too, to say how to get it."""

from __future__ import annotations

import os
import sys

INSTALL_LINE = "pip install 'pbwn[repro]'"


def wait_passively() -> None:
    """Have OpenMP's threads sleep while they wait where several processes share the machine.

    Spinning, they take the cores from each other, and steps get many times slower. It has to be said before torch is
    loaded; what the user has set stays.
    """
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def main() -> None:
    """Run the command line, or print the install line and exit with code 2."""
    wait_passively()
    try:
        from pbwn_repro.cli import run

        run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("pbwn", "pbwn_repro"):
            raise
        print(f"pbwn: the package {error.name!r} is not installed; {INSTALL_LINE}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
