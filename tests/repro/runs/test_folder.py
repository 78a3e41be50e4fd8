"""One run, one folder: what a command finds there, and what becomes of what it asks for."""

import json
import signal

import pytest

from pbwn_repro.config import ConfigError
from pbwn_repro.data import load
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.reporting import Quiet
from pbwn_repro.runs.execution import execute
from pbwn_repro.runs.folder import OutdatedError, RunFolder, to_json
from storm import contents, digits_config, run


class Listener(Quiet):
    def __init__(self):
        self.said = []

    def message(self, text):
        self.said.append(text)


def configured(**fields):
    usual = {"log_every": 2, "evaluate_every": 4, "checkpoint_every": 3}
    return digits_config(**{"model": "resnet-8", "method": "pbwn", **usual, **fields})


def resume(config, path):
    """Start or resume in this process; what was said."""
    listener = Listener()
    execute(config, load("digits"), RunFolder(path), Processes(), listener, monitor=3)
    return listener.said


@pytest.fixture
def cut_off(tmp_path):
    """A run that was killed after step 8 of 12, with a checkpoint of step 6."""
    path = RunFolder.of(configured(), tmp_path).path
    assert run(configured(), path, ("step", 8)) == [-signal.SIGKILL]
    return path


def test_a_resumed_run_is_logged_and_evaluated_as_it_was_started_whatever_the_command_says(cut_off, tmp_path):
    other = configured(log_every=5, evaluate_every=None)
    assert RunFolder.of(other, tmp_path).path == cut_off
    said = resume(other, cut_off)
    assert said == [
        "evaluate_every stays at 4 steps, as when this run was started, instead of each epoch: to change it, choose "
        "another folder with --out",
        "log_every stays at 2 steps, as when this run was started, instead of 5 steps: to change it, choose "
        "another folder with --out",
    ]
    assert run(configured(), tmp_path / "whole") == [0]
    assert contents(cut_off) == contents(tmp_path / "whole")


def test_checkpoints_are_saved_as_often_as_the_command_says(cut_off, tmp_path):
    often = configured(checkpoint_every=1)
    assert run(often, cut_off, ("step", 10)) == [-signal.SIGKILL]
    assert (cut_off / "checkpoints" / "step-000000009").exists()
    assert json.loads((cut_off / "config.json").read_text())["checkpoint_every"] == 1
    assert resume(configured(), cut_off) == []
    assert run(configured(), tmp_path / "whole") == [0]
    assert contents(cut_off) == contents(tmp_path / "whole")


def test_a_finished_run_says_how_it_was_observed(tmp_path):
    path = RunFolder.of(configured(steps=4), tmp_path).path
    assert resume(configured(steps=4), path) == []
    before = contents(path)
    assert resume(configured(steps=4, checkpoint_every=1), path) == []
    [said] = resume(configured(steps=4, log_every=1), path)
    assert said.startswith("log_every stays at 2 steps")
    assert contents(path) == before


def change(**fields):
    return lambda document: to_json({**document, **fields}).decode()


def without(name):
    return lambda document: to_json({key: value for key, value in document.items() if key != name}).decode()


@pytest.mark.parametrize(
    ("written", "error", "words"),
    [
        (change(seed=2), ConfigError, "holds another configuration"),
        (change(label_smoothing=0.1), ConfigError, "label_smoothing: unknown field.*If a newer pbwn wrote it"),
        (change(schema=3), ConfigError, "found 3: use a newer pbwn"),
        (without("schema"), OutdatedError, "was written by an earlier version: run `pbwn migrate .*`"),
        (lambda document: "{", ConfigError, "cannot be read"),
        (lambda document: "[]", ConfigError, "holds no JSON object"),
    ],
)
@pytest.mark.parametrize("state", ["unfinished", "done"])
def test_a_folder_that_holds_something_else_is_refused(state, written, error, words, tmp_path):
    config = configured(steps=2)
    folder = RunFolder.of(config, tmp_path)
    resume(config, folder.path)
    if state == "unfinished":
        folder.result.unlink()
    folder.config.write_text(written(config.document))
    before = contents(folder.path)
    with pytest.raises(error, match=words):
        resume(config, folder.path)
    assert contents(folder.path) == before


def test_a_folder_from_before_an_optional_field_existed_is_the_same_run(tmp_path):
    config = configured(steps=2)
    folder = RunFolder.of(config, tmp_path)
    resume(config, folder.path)
    folder.config.write_text(without("shard")(config.document))
    assert folder.read_config() == config
    assert resume(config, folder.path) == []
