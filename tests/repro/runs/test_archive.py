"""Keeping the numbers of finished runs, without checkpoints and weights."""

import json

import pytest

from pbwn_repro.runs.folder import archive


@pytest.fixture
def runs(tmp_path):
    for name, files in {
        "table-3/short/done": ("config.json", "environment.json", "metrics.jsonl", "timing.jsonl", "result.json"),
        "table-3/short/diverged": ("config.json", "environment.json", "metrics.jsonl", "diverged.json"),
        "table-3/short/started": ("config.json", "environment.json"),
    }.items():
        folder = tmp_path / "runs" / name
        (folder / "checkpoints" / "step-1").mkdir(parents=True)
        (folder / "checkpoints" / "step-1" / "model.safetensors").write_bytes(bytes(1000))
        (folder / "model.safetensors").write_bytes(bytes(1000))
        for file in files:
            (folder / file).write_text(json.dumps({"file": file}))
    return tmp_path / "runs"


def test_finished_runs_are_kept_without_checkpoints_and_weights(runs, tmp_path):
    done = archive(runs, tmp_path / "results")
    assert (done.new, done.existing, done.unfinished) == (2, 0, 1)
    kept = {path.relative_to(tmp_path / "results").as_posix() for path in (tmp_path / "results").rglob("*.*")}
    assert kept == {
        *(f"table-3/short/done/{name}.json" for name in ("config", "environment", "result")),
        *(f"table-3/short/done/{name}.jsonl" for name in ("metrics", "timing")),
        *(f"table-3/short/diverged/{name}.json" for name in ("config", "environment", "diverged")),
        "table-3/short/diverged/metrics.jsonl",
    }
    assert 0 < done.bytes < 1000
    (tmp_path / "results" / "report.html").write_bytes(bytes(1000))
    assert archive(runs, tmp_path / "results").bytes == done.bytes


def test_keeping_again_adds_what_is_new(runs, tmp_path):
    archive(runs, tmp_path / "results")
    (runs / "table-3/short/started/result.json").write_text("{}")
    done = archive(runs, tmp_path / "results")
    assert (done.new, done.existing, done.unfinished) == (1, 2, 0)


def test_a_target_among_the_runs_is_not_archived_itself(runs):
    for new, existing in ((2, 0), (0, 2)):
        done = archive(runs, runs / "kept")
        assert (done.new, done.existing, done.unfinished) == (new, existing, 1)


def test_a_target_above_the_runs_is_one_like_any_other(runs, tmp_path):
    assert archive(runs, tmp_path).new == 2
    assert (tmp_path / "table-3/short/done/result.json").exists()


def test_another_result_of_the_same_run_is_refused(runs, tmp_path):
    archive(runs, tmp_path / "results")
    (runs / "table-3/short/done/result.json").write_text("{}")
    with pytest.raises(ValueError, match=r"result\.json differs from"):
        archive(runs, tmp_path / "results")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        archive(tmp_path / "nowhere", tmp_path / "results")
