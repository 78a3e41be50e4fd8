"""A sweep runs what is missing, skips what is done, resumes what was interrupted, and one failure stops no other."""

import json
import signal
from dataclasses import replace

import pytest

from fragile import KilledOnce, StopsTheSweep, digits_job
from pbwn_repro.config import SGD
from pbwn_repro.exit_codes import DONE, FAILED, INTERRUPTED, NON_FINITE, sweep_code
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.runs.pools import LocalPool, Slots
from pbwn_repro.runs.sweep import sweep
from storm import contents


def run(*jobs, slots=2, **options):
    return sweep(jobs, LocalPool(Slots(("cpu",) * slots, 1)), **options)


def kinds(result):
    return {job.title: ending.kind for job, ending in result.ended}


def diverging(path, title="diverging"):
    return digits_job(path, title, method="normal", optimizer=SGD(lr=1e18).model_dump())


def test_what_is_missing_is_made_and_what_is_done_is_skipped(tmp_path):
    jobs = [digits_job(tmp_path / str(seed), f"seed {seed}", seed=seed) for seed in (1, 2, 3)]
    first = run(*jobs[:2])
    assert kinds(first) == {"seed 1": "done", "seed 2": "done"}
    before = contents(tmp_path / "1")
    second = run(*jobs)
    assert kinds(second) == {"seed 1": "existing", "seed 2": "existing", "seed 3": "done"}
    assert contents(tmp_path / "1") == before
    assert sweep_code(second) == DONE
    assert {path.name for path in (tmp_path / "3").iterdir()}.isdisjoint({"progress.json", "log.txt", "diverged.json"})


def test_a_killed_process_is_reported_and_its_run_goes_on_to_the_same_bytes(tmp_path):
    whole, cut = digits_job(tmp_path / "whole", "whole"), digits_job(tmp_path / "cut", "cut", KilledOnce)
    first = run(whole, cut)
    assert kinds(first) == {"whole": "done", "cut": "killed"}
    [(_, ending)] = first.having("killed")
    assert "SIGKILL" in ending.message
    assert "the same command resumes" in ending.message
    assert sweep_code(first) == FAILED
    assert kinds(run(whole, cut)) == {"whole": "existing", "cut": "done"}
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_failing_run_leaves_its_traceback_and_stops_no_other(tmp_path):
    broken = digits_job(tmp_path / "broken", "broken")
    broken = replace(broken, source="synthetic:digits")
    result = run(broken, digits_job(tmp_path / "sound", "sound"), slots=1)
    assert kinds(result) == {"broken": "failed", "sound": "done"}
    [(_, ending)] = result.having("failed")
    assert "UsageError: the configuration names the data digits" in ending.message
    assert "Traceback" in (tmp_path / "broken" / "log.txt").read_text()
    assert sweep_code(result) == FAILED


def test_a_run_that_diverges_is_an_end_and_is_tried_again_only_if_asked_to(tmp_path):
    job = diverging(tmp_path / "run")
    first = run(job)
    assert kinds(first) == {"diverging": "diverged"}
    assert sweep_code(first) == NON_FINITE
    note = json.loads((tmp_path / "run" / "diverged.json").read_text())
    assert note["step"] >= 1
    assert "not finite" in note["message"] or "the loss is" in note["message"]
    assert job.state == "diverged"
    (tmp_path / "run" / "log.txt").unlink()
    second = run(job)
    assert second.ended[0][1].message == note["message"]
    assert not (tmp_path / "run" / "log.txt").exists()
    assert kinds(run(job, retry=True)) == {"diverging": "diverged"}
    assert (tmp_path / "run" / "log.txt").exists()


def test_a_run_that_diverged_resumes_once_when_such_steps_are_to_be_skipped(tmp_path):
    job = diverging(tmp_path / "run")
    assert kinds(run(job)) == {"diverging": "diverged"}
    skipping = replace(job, config=job.config.model_copy(update={"on_nonfinite": "skip"}))
    assert kinds(run(skipping)) == {"diverging": "done"}
    assert json.loads((tmp_path / "run" / "result.json").read_text())["skipped_steps"] > 0
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "diverged.json").write_text('{"message": "the end is not finite"}')
    assert kinds(run(skipping)) == {"diverging": "diverged"}  # it has been tried


def test_a_damaged_note_of_a_divergence_is_named_and_stops_no_other(tmp_path):
    job = diverging(tmp_path / "run")
    job.path.mkdir()
    (job.path / "diverged.json").write_text('{"message": "the lo')
    result = run(job, digits_job(tmp_path / "other", "other"))
    assert kinds(result) == {"diverging": "failed", "other": "done"}
    assert "diverged.json is damaged: remove it" in result.having("failed")[0][1].message


def test_other_failures_weigh_more_than_a_divergence(tmp_path):
    broken = replace(digits_job(tmp_path / "broken", "broken"), source="synthetic:digits")
    assert sweep_code(run(diverging(tmp_path / "run"), broken)) == FAILED


def test_a_run_in_the_works_elsewhere_is_left_to_the_other(tmp_path):
    with RunFolder(tmp_path / "busy").locked():
        result = run(digits_job(tmp_path / "busy", "busy"), digits_job(tmp_path / "free", "free"))
    assert kinds(result) == {"busy": "busy", "free": "done"}
    assert sweep_code(result) == FAILED
    assert "in use by another process" in result.having("busy")[0][1].message


def test_a_stopped_sweep_has_its_runs_save_and_goes_on_to_the_same_bytes(tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    length = {"steps": 40, "checkpoint_every": None}
    cut = digits_job(tmp_path / "cut", "cut", StopsTheSweep, **length)
    waiting = digits_job(tmp_path / "waiting", "waiting", **length)
    stopped = run(cut, waiting, slots=1)
    assert kinds(stopped) == {"cut": "stopped"}
    assert [job.title for job in stopped.waiting] == ["waiting"]
    assert sweep_code(stopped) == INTERRUPTED
    assert list((tmp_path / "cut" / "checkpoints").glob("step-*"))
    assert not (tmp_path / "waiting").exists()
    assert signal.getsignal(signal.SIGINT) == handler
    again, whole = digits_job(tmp_path / "cut", "cut", **length), digits_job(tmp_path / "whole", "whole", **length)
    assert kinds(run(again, whole)) == {"cut": "done", "whole": "done"}
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


class Watch:
    """A view that notes how many jobs run at once, and whether one ran alone."""

    def __init__(self):
        self.seen = []

    def __enter__(self):
        pass

    def __exit__(self, *error):
        pass

    def show(self, sweep):
        self.seen.append({job.title for job in sweep.running})


def test_what_has_to_run_alone_runs_last_and_alone(tmp_path):
    jobs = [digits_job(tmp_path / name, name) for name in ("alone", "one", "two")]
    watch = Watch()
    result = run(replace(jobs[0], alone=True), *jobs[1:], view=watch)
    assert list(kinds(result).values()) == ["done"] * 3
    assert result.ended[-1][0].title == "alone"
    assert {"one", "two"} in watch.seen
    assert all(running == {"alone"} for running in watch.seen if "alone" in running)


@pytest.mark.parametrize("number", [1, 2])
def test_no_more_runs_at_once_than_there_are_slots(tmp_path, number):
    watch = Watch()
    run(*(digits_job(tmp_path / str(seed), str(seed), seed=seed) for seed in (1, 2, 3)), slots=number, view=watch)
    assert max(map(len, watch.seen)) == number
