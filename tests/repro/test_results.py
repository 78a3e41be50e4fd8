"""What is published is what the kept runs say."""

from pathlib import Path

import pytest

from pbwn_repro.report.collecting.folders import collect
from pbwn_repro.report.writing.markdown import whole

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report():
    return collect(ROOT / "results")


def test_the_published_results_are_those_of_the_kept_runs(report):
    assert (ROOT / "RESULTS.md").read_text() == whole(report), "run `make results`"


def test_no_kept_run_is_damaged(report):
    assert not report.left_out


def test_the_kept_runs_are_small_and_hold_no_weights():
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl")]
    assert files
    assert sum(path.stat().st_size for path in files) < 10e6
    assert not list((ROOT / "results").rglob("*.safetensors"))
