"""The words of the command line as plain data; `python tests/cli_surface.py` renews those that are stored."""

import json
import typing
from pathlib import Path

import typer

from pbwn_repro.cli import app

STORED = Path(__file__).with_name("cli_surface.json")


def surface():
    """Every command with its arguments and options: names, kind of value, how often."""
    return dict(sorted(_commands("pbwn", typer.main.get_command(app))))


def _commands(name, command):
    hints = typing.get_type_hints(command.callback) if command.callback else {}
    own = [each for each in command.params if each.name in hints]
    yield name, [_parameter(each, hints[each.name]) for each in own]
    for word, inner in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {word}", inner)


def _parameter(found, hint):
    names = " ".join([*found.opts, *found.secondary_opts]) if found.param_type_name == "option" else f"<{found.name}>"
    often = " repeated" if getattr(found, "multiple", False) or found.nargs != 1 else ""
    return f"{names} {_kind(hint)}{often}{' required' if found.required else ''}"


def _kind(hint):
    """The choices of a literal, or the name of a type; `| None` and lists are looked through."""
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(typing.get_args(hint))
    inner = [each for each in typing.get_args(hint) if each is not type(None)]
    return _kind(inner[0]) if inner else hint.__name__.lower()


if __name__ == "__main__":
    STORED.write_text(json.dumps(surface(), indent=1) + "\n")
    print(f"{STORED} written")
