"""What tests of the command `pbwn` start from."""

import sys

import pytest

from pbwn_repro import cli


@pytest.fixture
def here(monkeypatch, capsys):
    """The command in this process: its exit code and what it printed to both outputs."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["pbwn", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.run()
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run
