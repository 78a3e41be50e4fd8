"""`pbwn migrate`: run folders of the first format become what the present version would have written."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pbwn_repro.data import load
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.reporting import Quiet
from pbwn_repro.exit_codes import FAILED, USAGE
from pbwn_repro.runs import migration
from pbwn_repro.runs.execution import execute
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.runs.migration import migrate
from storm import contents, digits_config, run
from version_1 import as_version_1, copy_as_version_1

LADDER = {
    "model": "ladder",
    "model_options": {"hidden_sizes": [8], "denoising_weights": [10.0, 0.1]},
    "data": {"labels": 20},
    "optimizer": {"kind": "adam", "weight_decay": 1e-4},
    "schedule": {"kind": "linear-tail", "constant_steps": 6},
    "batch_size": 50,
}


def make(out, method="pbwn", **fields):
    """Make a small run in the present format; its folder."""
    config = digits_config(**LADDER, method=method, **fields)
    folder = RunFolder.of(config, out)
    execute(config, load("digits"), folder, Processes(), Quiet())
    return folder.path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run in the present format; not to be changed."""
    return make(tmp_path_factory.mktemp("finished"))


def kinds(root, **options):
    return [outcome.kind for outcome in migrate(root, **options)]


def tree(root):
    return {str(path.relative_to(root)): path.is_file() and path.read_bytes() for path in root.rglob("*")}


def test_a_folder_that_version_1_wrote_is_read_for_good(tmp_path):
    [kept] = (Path(__file__).parent / "version_1").iterdir()
    shutil.copytree(kept, tmp_path / kept.name)
    [outcome] = migrate(tmp_path)
    assert (outcome.kind, outcome.path.name) == ("migrated", "ladder-pbwn-seed1-b4799164")
    folder = RunFolder(tmp_path / outcome.detail)
    config = folder.read_config()
    assert (folder.path.name, folder.read_result()["run"]) == (config.run_name, config.hash)
    before = json.loads((kept / "config.json").read_text())
    written = json.loads(folder.config.read_text())
    assert written == {"schema": 2, **before, "data": written["data"]}
    assert before["data"].items() <= written["data"].items()  # fields that came later have their defaults
    for path in folder.path.rglob("*"):
        if path.is_file() and path.suffix != ".jsonl":
            assert b"b4799164" not in path.read_bytes()


@pytest.mark.parametrize("method", ["pbwn", "normal"])
def test_a_migrated_folder_is_what_the_present_version_writes(method, tmp_path):
    now = make(tmp_path / "now", method)
    before = copy_as_version_1(now, tmp_path)
    [outcome] = migrate(tmp_path / before.name)
    assert outcome.detail == now.name
    assert contents(tmp_path / now.name) == contents(now)
    assert not before.exists()


def test_an_unfinished_run_ends_after_migration_like_one_that_was_never_cut_off(tmp_path):
    config = digits_config(**LADDER, method="pbwn")
    assert run(config, tmp_path / "whole") == [0]
    path = RunFolder.of(config, tmp_path / "runs").path
    assert run(config, path, ("step", 8)) == [-signal.SIGKILL]
    assert [each.name for each in sorted((path / "checkpoints").iterdir())] == ["step-000000003", "step-000000006"]
    as_version_1(path)
    assert kinds(tmp_path / "runs") == ["migrated"]
    assert run(config, path, ("stage", "folder made", 1)) == [-signal.SIGKILL]  # when it saves for the first time
    assert b'"step": 9' in (path / "metrics.jsonl").read_bytes()  # so it has resumed, and not begun again
    assert run(config, path) == [0]
    assert contents(path) == contents(tmp_path / "whole")


def test_damaged_checkpoints_stay_damaged(finished, tmp_path):
    before = copy_as_version_1(finished, tmp_path)
    [manifest] = before.glob("checkpoints/*/manifest.json")
    damaged = manifest.read_bytes().replace(b'step\\": 12', b'step\\": 13')
    manifest.write_bytes(damaged)
    assert kinds(tmp_path) == ["migrated"]
    [manifest] = tmp_path.glob("*/checkpoints/*/manifest.json")
    assert manifest.read_bytes() == damaged


def test_runs_at_any_depth_are_migrated_once_and_others_are_left_alone(here, finished, tmp_path):
    for place in ("train", "table-8/short"):
        copy_as_version_1(finished, tmp_path / place)
    shutil.copytree(finished, tmp_path / "kept" / finished.name)
    for name, fields in {"time-cost-12345678": {"measurement": "time-cost", "options": {}}, "else": {"a": 1}}.items():
        (tmp_path / "table-5" / name).mkdir(parents=True)
        (tmp_path / "table-5" / name / "config.json").write_text(json.dumps(fields))
    others = tree(tmp_path / "table-5"), tree(tmp_path / "kept")
    code, said, _ = here("migrate", tmp_path)
    assert (code, said.splitlines()[-1]) == (0, "2 migrated, 1 in the current format, 2 of other kinds, unchanged")
    assert f"-> {finished.name}" in said
    for place in ("train", "table-8/short"):
        assert [path.name for path in (tmp_path / place).iterdir()] == [finished.name]
    assert others == (tree(tmp_path / "table-5"), tree(tmp_path / "kept"))
    after = tree(tmp_path)
    code, said, _ = here("migrate", tmp_path / "train", tmp_path / "table-8")
    assert (code, said) == (0, "2 in the current format\n")
    assert tree(tmp_path) == after


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(here, finished, tmp_path):
    path = copy_as_version_1(finished, tmp_path)
    (path / ".lock").unlink()
    before = tree(tmp_path)
    code, said, _ = here("migrate", tmp_path, "--dry-run")
    assert code == 0
    assert said == f"{path} -> {finished.name}\n1 migrated. Nothing was written\n"
    assert tree(tmp_path) == before


def test_a_folder_is_never_overwritten_and_stops_no_other(here, finished, tmp_path):
    first = copy_as_version_1(finished, tmp_path / "a")
    shutil.copytree(finished, tmp_path / "a" / finished.name)
    (tmp_path / "a" / finished.name / "metrics.jsonl").write_text("another\n")
    copy_as_version_1(finished, tmp_path / "b")
    before = tree(tmp_path / "a")
    code, said, _ = here("migrate", tmp_path)
    assert code == FAILED
    assert f"not migrated: {first}: {tmp_path / 'a' / finished.name} exists with other content" in said
    assert said.splitlines()[-1] == "1 migrated, 1 in the current format, 1 not migrated"
    assert tree(tmp_path / "a") == before
    assert [path.name for path in (tmp_path / "b").iterdir()] == [finished.name]


def test_a_copy_of_what_is_there_already_goes(here, finished, tmp_path):
    copy_as_version_1(finished, tmp_path)
    shutil.copytree(finished, tmp_path / finished.name)
    code, said, _ = here("migrate", tmp_path)
    assert (code, said.splitlines()[-1]) == (0, "1 already migrated, 1 in the current format")
    assert [path.name for path in tmp_path.iterdir()] == [finished.name]


HOLDER = """
import sys
from pathlib import Path
from pbwn_repro.runs.folder import RunFolder

with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_that_a_process_works_on_is_left_alone(finished, tmp_path):
    path = copy_as_version_1(finished, tmp_path)
    words = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        before = tree(tmp_path)
        for dry_run in (True, False):
            [outcome] = migrate(tmp_path, dry_run=dry_run)
            assert (outcome.kind, "in use by another process" in outcome.detail) == ("skipped", True)
        assert tree(tmp_path) == before
        holder.stdin.close()
    assert kinds(tmp_path) == ["migrated"]


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda run: (run / "config.json").write_text("[]"), "config.json holds no JSON object"),
        (lambda run: edit(run / "config.json", seed=2), "not belong to this folder: its run would be called ladder-"),
        (lambda run: edit(run / "config.json", method="pbnw"), "unknown method 'pbnw'"),
        (lambda run: edit(run / "config.json", batches=2), "batches: unknown field"),
        (lambda run: edit(run / "config.json", schema=3), "has schema 3, not 2: use a newer pbwn"),
        (lambda run: edit(run / "result.json", run="f" * 64), "result.json belongs to the run ffffffff"),
        (lambda run: (run / "result.json").write_text("{"), "result.json is damaged"),
    ],
)
def test_what_cannot_be_trusted_is_named_and_left_as_it_is(damage, words, finished, tmp_path):
    path = copy_as_version_1(finished, tmp_path)
    (path / ".lock").unlink()
    damage(path)
    before = tree(tmp_path)
    [outcome] = migrate(tmp_path)
    assert outcome.kind == "skipped"
    assert words in outcome.detail
    assert tree(tmp_path) == before


class KilledError(BaseException):
    """The process ends here."""


# What changes something on the disk, with the calls of it at which a migration is interrupted.
CALLS = {
    (migration.os, "link"): (1, 3),
    (migration, "write_atomically"): (1, 2, 3, 4),
    (Path, "rename"): (1,),
    (migration.shutil, "rmtree"): (2, 3, 4),
    (Path, "unlink"): (1, 2, 4),
}


@pytest.mark.parametrize(("call", "number"), [(call, number) for call in CALLS for number in CALLS[call]])
def test_cut_off_anywhere_the_old_run_or_the_new_one_is_whole_and_the_same_command_finishes(
    call, number, finished, tmp_path, monkeypatch
):
    path, new = copy_as_version_1(finished, tmp_path), tmp_path / finished.name
    before, calls = contents(path), []

    def dying(place, real):
        def call_or_die(*arguments, **options):
            calls.append(place)
            if calls.count(call) >= number:  # and nothing that comes later, such as cleaning up, happens
                raise KilledError
            return real(*arguments, **options)

        return call_or_die

    with monkeypatch.context() as patch:
        for place in CALLS:
            patch.setattr(*place, dying(place, getattr(*place)))
        with pytest.raises(KilledError):
            list(migrate(tmp_path))
    assert (path.exists() and contents(path) == before) or contents(new) == contents(finished)
    assert kinds(tmp_path)[0] in ("migrated", "existing")
    assert [each.name for each in tmp_path.iterdir()] == [finished.name]
    assert contents(new) == contents(finished)


def test_where_files_cannot_be_linked_they_are_copied(finished, tmp_path, monkeypatch):
    copy_as_version_1(finished, tmp_path)

    def refuse(*arguments):
        raise OSError("no links here")

    monkeypatch.setattr(migration.os, "link", refuse)
    assert kinds(tmp_path) == ["migrated"]
    assert contents(tmp_path / finished.name) == contents(finished)


def test_a_folder_that_is_not_there_is_named(here, tmp_path):
    code, _, told = here("migrate", tmp_path / "nowhere")
    assert (code, "nowhere: no such folder" in told) == (FAILED, True)
    assert here("migrate", tmp_path)[:2] == (0, "no run folders found\n")


QUICK = ("--model", "mlp", "--data", "digits", "--steps", "2", "--batch-size", "32", "--threads", "1")


@pytest.mark.parametrize("words", [(), ("--log-every", "1"), ("--dry-run",)])
def test_training_says_how_to_migrate_a_run_instead_of_making_it_twice(here, words, tmp_path):
    assert here("train", *QUICK, "--out", tmp_path)[0] == 0
    [path] = (tmp_path / "train").iterdir()
    now = path.name
    as_version_1(path)
    before = tree(tmp_path)
    code, _, told = here("train", *QUICK, *words, "--out", tmp_path)
    assert (code, f"run `pbwn migrate {tmp_path / 'train'}`" in told) == (USAGE, True)
    assert tree(tmp_path) == before
    assert here("train", *QUICK, "--seed", "2", "--out", tmp_path)[0] == 0  # which is another run
    assert here("migrate", tmp_path / "train")[0] == 0
    assert here("train", *QUICK, *words, "--out", tmp_path)[0] == 0
    assert len([*(tmp_path / "train").glob("*seed1*")]) == 1
    assert (tmp_path / "train" / now).exists()


def test_reproducing_and_reporting_say_how_to_migrate(here, tmp_path, monkeypatch):
    monkeypatch.setenv("PBWN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
    out = tmp_path / "runs"
    words = ("reproduce", "figure-2a", "--only", "method=pbwn,lr=0.3,seed=1", "--out", out)
    assert here(*words)[0] == 0
    place = out / "figure-2a" / "smoke"
    [path] = place.iterdir()
    now = path.name
    path = as_version_1(path)
    advice = f"run `pbwn migrate {place}`"
    code, _, told = here(*words)
    assert (code, advice in told) == (USAGE, True)
    code, _, told = here("report", out)
    assert (code, f"{path.relative_to(out)}: written by an earlier version: {advice}" in told) == (USAGE, True)
    assert advice in here("show", "figure-2a", "--out", out)[1]
    assert here("migrate", place)[0] == 0
    code, said, _ = here("report", out)
    assert (code, "left out" in said, "figure-2a-smoke: 1 run" in said) == (0, False, True)
    assert "1 of 1 run done" in here(*words)[1]
    assert [each.name for each in place.iterdir()] == [now]
