"""The command line as a whole: its help is for newcomers, its names complete."""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import cli_surface
import pbwn
import pbwn_repro
from pbwn_repro import catalog, cli, exit_codes, methods, models
from pbwn_repro.cli import EPILOG, app
from pbwn_repro.commands import names, print_plain
from pbwn_repro.config import ConfigError
from pbwn_repro.data import DataError, UnknownSetError
from pbwn_repro.data.loading import FORMS, NAMES
from pbwn_repro.data.published import KNOWN_SETS
from pbwn_repro.data.text import KNOWN_TEXTS
from pbwn_repro.errors import UsageError

REPRODUCE = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()


def pbwn_command(*words, columns="100"):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": columns, "TERM": "dumb"})


def test_the_help_groups_the_commands_by_what_they_are_for():
    printed = pbwn_command("--help").output
    panels = ["The paper's tables and figures", "Your own models", "Runs and data", "This machine"]
    places = [printed.index(panel) for panel in panels]
    assert places == sorted(places)
    for command in cli_surface.surface():
        if command.count(" ") == 1:
            assert f" {command.removeprefix('pbwn ')} " in printed


@pytest.mark.parametrize("command", [name for name in cli_surface.surface() if name != "pbwn"])
def test_every_command_and_every_option_says_what_it_does(command):
    printed = pbwn_command(*command.split()[1:], "--help", columns="200").output
    options = [line for line in printed.splitlines() if re.match(r"\s*│?\s*\*?\s*--\w", line)]
    assert options
    for line in options:
        assert re.search(r"[a-z]{2,}.*[.)\]]", line.partition("--")[2]), f"{command}: {line}"


@pytest.mark.parametrize("command", cli_surface.surface())
def test_help_has_no_python_types_and_no_broken_lines(command):
    words = command.split()[1:]
    printed = pbwn_command(*words, "--help", columns="200").output
    assert not re.findall(r"<(?:bool|int|float|str|path|list)\b", printed)
    if words and words != ["data"]:  # a group has its examples one below the other
        description = printed.partition("[OPTIONS]")[2].partition("╭")[0]
        paragraphs = [part.splitlines() for part in description.split("\n" + " " * 200 + "\n")[1:]]
        assert all(len(line.rstrip()) > 140 for lines in paragraphs for line in lines[:-1])


def test_the_exit_codes_are_the_same_in_help_docs_and_code():
    codes = [exit_codes.DONE, exit_codes.FAILED, exit_codes.USAGE, exit_codes.NON_FINITE, exit_codes.INTERRUPTED]
    for text in (EPILOG, REPRODUCE, exit_codes.__doc__):
        assert all(re.search(rf"\b{code}\b", text.partition("xit code")[2]) for code in codes)
    assert "Exit codes: 0 done" in pbwn_command("--help").output


def test_the_version_is_that_of_the_library():
    assert pbwn_command("--version").output == f"pbwn {pbwn.__version__}\n"


def test_an_unknown_command_suggests_the_nearest_one():
    done = pbwn_command("reprodcue")
    assert done.exit_code == exit_codes.USAGE
    assert "No such command 'reprodcue'. Did you mean 'reproduce'?" in done.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("--jobs 0: must be at least 1"), exit_codes.USAGE),
        (ConfigError("batch_size: found 0"), exit_codes.USAGE),
        (UnknownSetError("no such set"), exit_codes.USAGE),
        (DataError("damaged"), exit_codes.FAILED),
        (OSError("full"), exit_codes.FAILED),
        (ValueError("not enough values to unpack"), None),
        (KeyError("sgd"), None),
    ],
)
def test_a_mistake_is_a_message_and_a_bug_is_a_traceback(error, code, monkeypatch, capsys):
    def fails():
        raise error

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(type(error) if code is None else SystemExit) as end:
        cli.run()
    if code is not None:
        assert (end.value.code, capsys.readouterr().err) == (code, f"pbwn: {error}\n")


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (("show", "table-9"), "table-"),
        (("reproduce", "tabel-3"), "table-"),
        (("train", "--model", "mlp", "--data", "digit"), "digits"),
        (("sweep", "--model", "mlp", "--data", "digit"), "digits"),
    ],
)
def test_a_mistyped_name_does_not_wait_for_torch(words, nearest):
    program = (
        f"import sys; sys.argv = ['pbwn', *{words}]; from pbwn_repro import cli\n"
        "try: cli.run()\nfinally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (exit_codes.USAGE, "False\n")
    assert f"did you mean '{nearest}" in done.stderr


def test_a_value_that_is_no_choice_is_refused_in_words():
    done = CliRunner().invoke(cli.app, ["reproduce", "figure-2a", "--scale", "papre"], env={"COLUMNS": "200"})
    assert done.exit_code == exit_codes.USAGE
    assert "Invalid value for '--scale': 'papre' is not one of 'smoke', 'short', 'paper'" in done.output


def test_an_error_is_wrapped_between_words_on_a_terminal_only(monkeypatch):
    error = UsageError("a long word " * 20 + "/a/path:smile:")
    for is_terminal, lines in ((True, 5), (False, 1)):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=is_terminal, width=60, color_system=None)
        print_plain(console, str(error))
        assert len(stream.getvalue().splitlines()) == lines
        assert stream.getvalue().endswith("/a/path:smile:\n")


def test_an_error_of_the_system_s_names_the_file_and_no_number(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "app", tmp_path.read_text)
    with pytest.raises(SystemExit):
        cli.run()
    assert capsys.readouterr().err == f"pbwn: {tmp_path}: Is a directory\n"


def test_the_names_that_complete_are_the_names_that_there_are():
    assert (*catalog.ARTEFACTS, *catalog.EXPERIMENTS) == names.artefacts()
    assert methods.names() == names.methods()
    assert models.names() == names.networks()
    assert (*KNOWN_SETS, *KNOWN_TEXTS) == names.sets()
    for name in (*NAMES, *FORMS, "synthetic-mnist"):
        names.check_data_set(name)


A_METHOD = """
from pbwn_repro.methods.method import Method

METHODS = {"mine": Method("Mine")}
"""
A_MODEL = """
from torch import nn
from pbwn_repro.models.family import Family

FAMILIES = (Family(pattern="mine", members=("mine",), constructor=nn.Identity, recipe={}),)
"""


def test_a_new_file_is_all_that_it_takes(tmp_path):
    suite = Path(pbwn_repro.__file__).parent
    shutil.copytree(suite, tmp_path / suite.name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / suite.name / "methods" / "mine.py").write_text(A_METHOD)
    (tmp_path / suite.name / "models" / "mine.py").write_text(A_MODEL)
    found = (
        "from pbwn_repro import methods, models; from pbwn_repro.commands import names\n"
        "print('mine' in methods.names(), 'mine' in models.names())\n"
        "print(methods.names() == names.methods(), models.names() == names.networks())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(suite.parent)))}
    done = subprocess.run([sys.executable, "-c", found], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "True True\n" * 2, done.stderr


COMPLETIONS = {
    ("reproduce", "table-"): names.artefacts()[5:13],
    ("show", "figure-3"): ("figure-3a", "figure-3b"),
    ("train", "--method", "pbwn-r"): ("pbwn-riem", "pbwn-riem-nxn"),
    ("train", "--model", "vgg"): ("vgg-e",),
    ("inspect", "wrn"): ("wrn-16-4",),
    ("data", "get", "cifar"): ("cifar10", "cifar100"),
    ("train", "--data", "s"): ("sentences", "svhn", "shakespeare"),
    ("docto",): ("doctor",),
}


@pytest.mark.parametrize("words", COMPLETIONS, ids=" ".join)
def test_a_shell_completes_commands_and_names(words):
    environment = {
        **os.environ,
        "_PBWN_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("pbwn", *words)),
        "COMP_CWORD": str(len(words)),
    }
    program = "import sys; sys.argv[0] = 'pbwn'; from pbwn_repro.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == list(COMPLETIONS[words]), done.stderr


def test_completion_does_not_wait_for_torch():
    program = "import sys, pbwn_repro.cli; assert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
