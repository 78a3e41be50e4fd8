"""The words of the command line are a promise: they change only on purpose."""

import json

import cli_surface


def test_commands_and_options_are_those_that_were_written_down():
    stored = json.loads(cli_surface.STORED.read_text())
    found = cli_surface.surface()
    assert found == stored, "the words of `pbwn` have changed; if you meant it: python tests/cli_surface.py"
