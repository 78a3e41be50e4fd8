"""`pbwn reproduce` and `pbwn list`: what they say and leave behind, as words and as real processes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pbwn_repro
from pbwn_repro.exit_codes import FAILED, INTERRUPTED, USAGE

ONE_RUN = ("figure-2a", "--only", "method=pbwn,lr=0.3,seed=1")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache folder without data; what was found out for estimates is kept there."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def here(here, monkeypatch, cache):
    """The command in this process: its exit code and what it printed to both outputs."""
    monkeypatch.setenv("PBWN_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "160")
    return here


def results(out):
    return sorted(out.rglob("result.json"))


def test_the_same_command_makes_a_run_once(here, tmp_path):
    out = tmp_path / "runs"
    code, said, told = here("reproduce", *ONE_RUN, "--out", out)
    assert (code, "1 of 1 run done" in said) == (0, True)
    assert "figure-2a pbwn lr 0.3 seed 1: done" in told
    [result] = results(out)
    assert result.parent.parent == out / "figure-2a" / "smoke"
    before = result.stat().st_mtime_ns
    code, said, told = here("reproduce", *ONE_RUN, "--out", out)
    assert (code, said, told) == (0, f"1 of 1 run done (1 from before), in {out}\n", "")
    assert result.stat().st_mtime_ns == before


def test_one_command_makes_the_search_and_then_further_seeds_of_its_best_setting(here, tmp_path):
    command = ("reproduce", "step-rules-gpt", "--only", "method=pbwn", "--out", tmp_path)
    code, said, told = here(*command)
    assert (code, "3 of 3 runs done" in said) == (0, True)
    ends = [line.partition(":")[0] for line in told.splitlines() if ": done" in line]
    assert ends[2] in (f"{end.removesuffix('seed 1')}seed 2" for end in ends[:2])
    code, said, told = here(*command, "--dry-run")
    assert "0 of 3 runs left to do" in said
    code, said, _ = here("reproduce", "step-rules-gpt", "--only", "method=normal", "--seeds", 1, "--out", tmp_path)
    assert "2 of 2 runs done" in said


def test_a_folder_that_cannot_be_made_is_a_failure_that_says_why(here, tmp_path):
    (tmp_path / "file").write_text("")
    code, said, told = here("reproduce", *ONE_RUN, "--out", tmp_path / "file")
    assert code == FAILED
    assert "cannot be created: Not a directory" in said
    assert "Not a directory" not in told  # the summary says it, once


def test_figures_use_the_runs_of_others(here, tmp_path):
    assert here("reproduce", *ONE_RUN, "--out", tmp_path / "runs")[0] == 0
    code, said, _ = here(
        "reproduce", "figure-2b", "--only", "interval=1,seed=1", "--dry-run", "--out", tmp_path / "runs"
    )
    assert code == 0
    assert "done" in said
    assert "0 of 1 runs left to do" in said


def test_a_dry_run_names_every_run_and_writes_nothing(here, tmp_path):
    code, said, warned = here(
        "reproduce", "table-3", "figure-1", "--only", "depth=20", "--dry-run", "--out", tmp_path / "runs"
    )
    assert code == 0
    assert said.count("table-3") == 10
    assert "10 of 10 runs left to do at the scale smoke" in said
    assert "MB on disk" in said
    assert "figure-1 is skipped: none of its runs has depth=20" in warned
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_needs_no_data(here, tmp_path):
    code, said, _ = here("reproduce", "table-4", "--scale", "paper", "--only", "depth=110,seed=1", "--dry-run")
    assert code == 0
    assert said.count("no data") == 5
    assert not (tmp_path / "runs").exists()


def test_data_that_cannot_be_had_say_how_to_get_them(here, tmp_path):
    (tmp_path / "empty").mkdir()
    words = ("table-4", "--scale", "short", "--data-dir", tmp_path / "empty", "--out", tmp_path / "runs")
    code, _, told = here("reproduce", *words)
    assert code == 1
    assert "pbwn data get cifar100" in told
    assert "--data cifar100=SOURCE" in told
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table-9",), "did you mean 'table-"),
        (("table-3", "--only", "deepth=20"), "did you mean 'depth'? Choose from method, depth, init, seed"),
        (
            ("table-3", "--only", "method=pbnw"),
            "did you mean 'pbwn'? Choose from normal, wn, pbwn-riem, pbwn,",
        ),
        (("table-3", "--only", "pbwn"), "write NAME=VALUE"),
        (("table-3", "--only", "seed=3"), "choose from 1, 2"),
        (("figure-1", "--only", "method=pbwn"), "nothing to choose from"),
        (("table-3", "--seeds", "0"), "--seeds 0: must be at least 1"),
        (("table-3", "--jobs", "0"), "--jobs 0: must be at least 1"),
        (("table-3", "--device", "cuda:7"), "torch finds "),
        (("table-3", "--data", "cifar10=digits"), "the runs need synthetic:tiny10"),
        (("table-1", "--data", "digits"), "for which set? Write NAME=SOURCE"),
        (("table-3", "--scale", "short", "--data", "digits", "--dry-run"), "that is digits, not a copy of cifar10"),
    ],
)
def test_bad_words_say_what_to_change_and_write_nothing(here, words, message, tmp_path):
    code, _, told = here("reproduce", *words, "--out", tmp_path / "runs")
    assert code == USAGE
    assert message in told
    assert not (tmp_path / "runs").exists()


def test_several_values_are_alternatives_and_several_names_hold_together(here, tmp_path):
    only = ("--only", "method=pbwn,method=wn", "--only", "depth=32")
    _, said, _ = here("reproduce", "table-3", *only, "--seeds", "1", "--dry-run", "--out", tmp_path / "runs")
    assert "table-3 wn depth 32 seed 1" in said
    assert "table-3 pbwn depth 32 seed 1" in said
    assert said.count("table-3") == 2


def test_list_shows_every_artefact_and_what_is_done(here, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert here("reproduce", *ONE_RUN, "--out", tmp_path / "runs")[0] == 0
    code, said, _ = here("list", "--out", tmp_path / "runs")
    assert code == 0
    lines = {line.split()[0]: line for line in said.splitlines() if line.startswith(("figure-", "table-"))}
    assert len(lines) == 13
    assert "1/12" in lines["figure-2a"]
    assert "1/6" in lines["figure-2b"]
    assert "0/540" in lines["table-8"]
    assert "GPU h" in lines["table-7"]
    assert re.search(
        r"^figure-1 +0/1  - +0/1  - +as short *\n  Scaling-based weight space symmetry$", said, re.MULTILINE
    )
    assert max(map(len, said.splitlines())) <= 80


def test_list_counts_the_results_that_the_project_ships_where_there_are_no_own_runs(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "table-3").mkdir(parents=True)
    _, said, _ = here("list")
    done = {line.split()[0]: line for line in said.splitlines() if line.startswith(("figure-", "table-"))}
    assert "1/1" in done["figure-1"]
    assert "0/75" in done["table-3"]
    folders = said.partition("'Done' counts the runs in ")[2].partition(". Times")[0]
    shipped = Path(pbwn_repro.__file__).parents[2] / "results"
    assert "".join(folders.split()) == f"runsor,iftherearenone,thearchivedrunsin{shipped}"


def test_a_command_that_is_asked_to_stop_says_so_and_resumes(here, tmp_path):
    words = ("reproduce", "table-3", "--only", "method=normal,depth=20", "--jobs", "1", "--out", str(tmp_path))
    command = [sys.executable, "-m", "pbwn_repro", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(command, **pipes, start_new_session=True) as child:
        while ": started" not in child.stderr.readline():
            pass
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does: everyone in the group gets it
        said = child.stdout.read()
    assert child.returncode == INTERRUPTED
    assert "run the same command to resume" in said
    assert len(results(tmp_path)) == 0
    assert here(*words)[0] == 0
    assert len(results(tmp_path)) == 2
    for result in results(tmp_path):
        assert json.loads(result.read_text())["steps"] == 10
