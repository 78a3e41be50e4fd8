"""The smoke scale of every table and figure runs, without a download, and is then found to be done."""

from contextlib import ExitStack

import pytest
from filelock import FileLock

from pbwn_repro.catalog import ARTEFACTS, EXPERIMENTS, KNOWN, TrainedArtefact
from pbwn_repro.planning import Request, plan_jobs, status
from pbwn_repro.report.cells import best_settings, labelled
from pbwn_repro.report.runs import read_runs
from pbwn_repro.runs.estimates import Speeds
from pbwn_repro.runs.pools import LocalPool, slots
from pbwn_repro.runs.resolution import Sources
from pbwn_repro.runs.sweep import sweep


@pytest.fixture(scope="session")
def out(tmp_path_factory, worker_id):
    """One folder for all of them, and for all workers: a run that two artefacts show is made once."""
    own = tmp_path_factory.getbasetemp()
    return (own if worker_id == "master" else own.parent) / "smoke"


def make(jobs, out):
    """Make the runs; another worker that needs some of them too waits."""
    out.mkdir(exist_ok=True)
    with ExitStack() as held:
        for home in sorted({job.path.relative_to(out).parts[0] for job in jobs}):
            held.enter_context(FileLock(out / f"{home}.lock"))
        result = sweep(jobs, LocalPool(slots(1, jobs=1, device="cpu")))
    assert [(job.title, ending) for job, ending in result.ended if ending.kind not in ("done", "existing")] == []


def two_methods_and_one_seed(artefact):
    """Of what is searched, and of columns, the first value."""
    if not isinstance(artefact, TrainedArtefact):
        return {}
    chosen = {"seed": {"1"}}
    for axis in artefact.axes("smoke"):
        usual = [value for value in ("normal", "pbwn") if value in axis.values]
        values = (usual if len(usual) == 2 else axis.values[:2]) if axis.role == "row" else axis.values[:1]
        chosen[axis.name] = set(map(str, values))
    return chosen


# Table 5 times all its methods, conditioning takes the spectrum of two networks: both have tests of their own. Figure
# 3b trains figure 3a's Inception on other images. The whole smoke scale below has all three.
@pytest.mark.parametrize(
    "name", [name for name in (*ARTEFACTS, *EXPERIMENTS) if name not in ("table-5", "conditioning", "figure-3b")]
)
def test_two_methods_of_the_smoke_scale_run(name, out, tmp_path):
    artefact = KNOWN[name]
    request = Request([artefact], "smoke", only=two_methods_and_one_seed(artefact))
    jobs = plan_jobs(request, out, Sources(cache_dir=tmp_path))
    assert len(jobs) == 2 if isinstance(artefact, TrainedArtefact) else 1
    make(jobs, out)
    assert {job.state for job in jobs} == {"done"}


@pytest.mark.long
@pytest.mark.parametrize("name", [*ARTEFACTS, *EXPERIMENTS])
def test_the_whole_smoke_scale_runs(name, out, tmp_path):
    artefact, sources = KNOWN[name], Sources(cache_dir=tmp_path)
    jobs = plan_jobs(Request([artefact], "smoke"), out, sources)
    make(jobs, out)
    if getattr(artefact, "seeds_at_best", {}):
        best = best_settings(artefact, "smoke", labelled(artefact, "smoke", read_runs(out)[0])[0])
        jobs = plan_jobs(Request([artefact], "smoke", best={name: best}), out, sources)
        make(jobs, out)
    found = status(artefact, "smoke", out, Speeds(out, tmp_path), {})
    assert found.done == found.runs == len(jobs)
