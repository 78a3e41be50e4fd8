"""The smoke scale of every table and figure runs, without a download, and is then found to be done."""

import pytest

from pbwn_repro.catalog import ARTEFACTS, BESIDE, KNOWN
from pbwn_repro.planning import Sources, plan_jobs
from pbwn_repro.planning.overview import standing
from pbwn_repro.runs.local import LocalPool
from pbwn_repro.runs.packing import slots
from pbwn_repro.runs.speed import Speeds
from pbwn_repro.runs.sweep import sweep


@pytest.fixture(scope="session")
def out(tmp_path_factory):
    """One folder for all of them: a run that two artefacts show is made once."""
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.parametrize("name", [*ARTEFACTS, *BESIDE])
def test_the_smoke_scale_runs(name, out, tmp_path):
    jobs = plan_jobs([KNOWN[name]], "smoke", out, Sources(cache_dir=tmp_path))
    result = sweep(jobs, LocalPool(slots(len(jobs), device="cpu")))
    assert [(job.title, ending) for job, ending in result.ended if ending.kind not in ("done", "there")] == []
    found = standing(KNOWN[name], "smoke", out, Speeds(out, tmp_path), {})
    assert found.done == found.runs == len(jobs)
