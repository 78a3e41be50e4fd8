"""What a sweep looks like while it runs."""

import json
from collections import deque

import pytest
from rich.console import Console

from fragile import digits_job
from pbwn_repro.engine.reporting import duration
from pbwn_repro.metrics import TEST_ERROR
from pbwn_repro.runs import view
from pbwn_repro.runs.jobs import DiskReporter, Ending, Progress, read_progress
from pbwn_repro.runs.sweep import Sweep, View
from pbwn_repro.runs.view import LinesView, LiveView, Pace, described, render, view_for


@pytest.fixture
def sweep(tmp_path):
    jobs = [digits_job(tmp_path / str(number), f"job {number}") for number in range(6)]
    reporter = DiskReporter(jobs[2].path)
    reporter.begin("", 10, 40, "images")
    reporter.evaluated(20, TEST_ERROR, 12.5)
    reporter._written = float("-inf")
    reporter.step(20, 0.5, 0.1, 1234.0)
    ended = [(jobs[0], Ending("done")), (jobs[1], Ending("failed", "ValueError: no"))]
    return Sweep(waiting=deque(jobs[4:]), running=jobs[2:4], ended=ended)


def drawn(sweep, **options):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(render(sweep, Pace(), **options))
    return console.export_text()


def test_the_table_has_a_row_for_each_run_and_a_line_on_the_whole(sweep):
    text = drawn(sweep, room=10)
    assert "12.50 %" in text
    assert "1,234 images/s" in text
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("job")] == [
        ["job", str(number)] for number in range(4)
    ]
    assert "starting" in text
    assert "1 of 6 done, 2 running, 2 waiting, 1 failed" in text


def test_more_runs_than_rows_are_counted(sweep):
    assert "and 1 more running" in drawn(sweep, room=1)


def test_lines_say_each_thing_once(sweep, capsys):
    console = Console(width=100)
    view = LinesView(console)
    view.show(sweep)
    view.show(sweep)
    printed = capsys.readouterr().out.splitlines()
    expected = ["job 0: done", "job 1: failed", "job 2: started", "job 3: started"]
    assert printed == expected


def test_an_ending_is_told_in_one_line():
    assert described(Ending("failed", "RuntimeError: no\nmore of it")) == "failed: RuntimeError: no ..."
    assert described(Ending("busy", "in use")) == "busy elsewhere: in use"
    told = "step 2: the loss is nan. Nothing is saved. Lower the rate."
    assert described(Ending("diverged", told)) == "diverged: step 2: the loss is nan"


def test_what_was_done_before_a_run_went_on_is_not_counted_as_this_sweep_s_pace(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(view.time, "monotonic", lambda: clock[0])
    jobs = [digits_job(tmp_path / str(number), f"job {number}") for number in range(10)]
    sweep = Sweep(waiting=deque(jobs[1:]), running=jobs[:1], ended=[])
    pace = Pace()
    assert pace.seconds_left(sweep, {jobs[0].path: None}) is None
    clock[0] += 36  # a hundredth of a run that takes an hour
    left = pace.seconds_left(sweep, {jobs[0].path: Progress(910, 1000, 900, 36.0)})
    assert left == pytest.approx(3600 * 9.09)
    sweep.running, sweep.ended = [], [(jobs[0], Ending("done"))]
    clock[0] += 324
    assert pace.seconds_left(sweep, {}) == pytest.approx(3600 * 9)
    sweep.ended = [(jobs[0], Ending("busy"))]
    assert pace.seconds_left(sweep, {}) is None
    old = Progress(910, 1000, 0, 5000.0)  # left by a process that was killed
    sweep.running, sweep.ended = jobs[:1], []
    assert Pace().seconds_left(sweep, {jobs[0].path: old}) is None


def test_the_view_suits_where_the_words_go():
    assert isinstance(view_for(Console(force_terminal=True), quiet=False), LiveView)
    assert isinstance(view_for(Console(force_terminal=False), quiet=False), LinesView)
    assert type(view_for(Console(force_terminal=True), quiet=True)) is View


def test_progress_is_written_at_most_once_a_second_and_leaves_nothing(tmp_path):
    reporter = DiskReporter(tmp_path)
    reporter.begin("", 0, 100)
    reporter.step(1, 0.5, 0.1, 10.0)
    assert read_progress(tmp_path).step == 0
    (tmp_path / "progress.json").write_text(json.dumps({"step": 3})[:-2])
    assert read_progress(tmp_path) is None
    reporter.end()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3_600, "1 h"), (90_000, "1 d 1 h"), (1e8, "1,157 d 10 h")],
)
def test_time_spans_as_people_say_them(seconds, words):
    assert duration(seconds) == words
