"""The same sweep on a real Ray cluster: a run whose process is killed resumes in another."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fragile import KilledOnce, StopsTheSweep, digits_job
from pbwn_repro.runs.pools import RayPool
from pbwn_repro.runs.sweep import sweep
from storm import contents

pytest.importorskip("ray")

pytestmark = [
    # Ray's own: sockets and log files that it leaves to the garbage collector, and settings that it means to change.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Tip. In future versions of Ray:FutureWarning"),
]


@pytest.fixture(scope="module")
def address():
    """A cluster of one machine with two cores, whose processes can import what the tests can."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        size = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 * 2**20}
        cluster = Cluster(initialize_head=True, head_node_args=size)
        started = {info.process.pid for infos in cluster.head_node.all_processes.values() for info in infos}
        try:
            yield cluster.address
        finally:
            cluster.shutdown()
    assert not [pid for pid in started if Path(f"/proc/{pid}/cmdline").exists()], "Ray has left processes behind"


@pytest.mark.long
def test_a_killed_run_goes_on_elsewhere_to_the_same_bytes_and_a_failing_one_stops_no_other(address, tmp_path):
    whole, cut = digits_job(tmp_path / "whole", "whole"), digits_job(tmp_path / "cut", "cut", KilledOnce)
    broken = replace(digits_job(tmp_path / "broken", "broken"), source="synthetic:digits")
    result = sweep([cut, whole, broken], RayPool(address))
    found = {job.title: ending.kind for job, ending in result.ended}
    assert found == {"whole": "done", "cut": "done", "broken": "failed"}
    assert (tmp_path / "cut.killed").exists()
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert "Traceback" in (tmp_path / "broken" / "log.txt").read_text()


@pytest.mark.long
def test_a_stopped_sweep_has_the_cluster_s_runs_save(address, tmp_path):
    job = digits_job(tmp_path / "run", kind=StopsTheSweep, steps=10**6, checkpoint_every=10**6)
    result = sweep([replace(job, sweeper=os.getpid(), waits=False)], RayPool(address))
    assert [ending.kind for _, ending in result.ended] == ["stopped"]
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_a_cluster_that_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(ConnectionError, match="ray start --head"):
        sweep([digits_job(tmp_path / "run")], RayPool("127.0.0.1:1"))
    assert not (tmp_path / "run").exists()


def test_without_ray_the_install_line_is_printed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'pbwn\[cluster\]'"):
        RayPool("auto")
