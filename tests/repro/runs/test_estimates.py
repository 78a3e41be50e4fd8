"""What a run is estimated to be, beside what it turns out to be."""

import json

import pytest

from fragile import digits_job
from pbwn_repro import catalog
from pbwn_repro.engine.reporting import Quiet
from pbwn_repro.runs import estimates
from pbwn_repro.runs.estimates import LAYER_SECONDS, Effort, Speeds, effort, network_cost
from pbwn_repro.runs.pools import Slots, wall_seconds


def plan(name, scale, **labels):
    found = catalog.find(name).plans(scale, only={key: {str(value)} for key, value in labels.items()})
    return found[0].config


@pytest.mark.parametrize(
    ("name", "labels", "steps"),
    [
        ("table-3", {"depth": 20}, 160 * (50_000 // 128)),
        ("table-1", {}, 120 * (50_000 // 64)),
        ("table-6", {}, 160 * ((73_257 + 531_131) // 128)),
        ("table-7", {}, 50 * (1_281_167 // 64)),
        ("table-8", {}, 75_000),
    ],
)
def test_steps_at_the_paper_s_scale_are_those_of_its_protocol(name, labels, steps):
    assert effort(plan(name, "paper", **labels)).steps == steps


def test_a_step_of_the_mlp_costs_six_flops_per_weight_and_image():
    cost = network_cost(plan("figure-2a", "paper"))
    weights = 1024 * 750 + 750 * 250 + 250 * 250 + 250 * 10
    assert cost.step_flops == 6 * 256 * weights
    assert cost.example_flops == 2 * weights


def test_the_ladder_s_step_is_more_than_a_classifier_s():
    cost = network_cost(plan("table-8", "paper", labels=20))
    assert cost.step_flops > 3 * 120 * cost.example_flops


def test_the_bytes_of_a_run_are_those_that_it_leaves(tmp_path):
    import torch

    job = digits_job(tmp_path / "run", method="normal", optimizer={"kind": "adam"})
    job.run(torch.device("cpu"), Quiet())
    found = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert effort(job.config).bytes == pytest.approx(found, rel=0.05)


def test_runs_that_were_made_tell_the_speed(tmp_path):
    job = digits_job(tmp_path / "runs" / "table" / "run")
    speeds = Speeds(tmp_path / "runs", tmp_path / "cache")
    speeds._cached("speeds", "unused", lambda: 1.0)
    job.path.mkdir(parents=True)
    (job.path / "config.json").write_text(json.dumps(job.config.document))
    (job.path / "environment.json").write_text(json.dumps({"device": "cpu", "threads": 2}))
    lines = [{"step": step, "seconds": 0.5} for step in range(1, 9)]
    (job.path / "timing.jsonl").write_text("\n".join(map(json.dumps, lines)))
    work = speeds.effort(job.config)
    tests = work.flops / work.step_flops
    assert speeds.estimate(job.config).seconds == pytest.approx(1.0 + tests * 0.5 * 2)


def test_what_was_found_out_is_kept(tmp_path):
    config = digits_job(tmp_path).config
    messages = []
    first = Speeds(tmp_path, tmp_path / "cache", report=messages.append).estimate(config)
    kept = sorted(path.name for path in (tmp_path / "cache" / "estimates").iterdir())
    assert [name.partition("-")[0] for name in kept] == ["costs", "speeds"]
    assert Speeds(tmp_path, tmp_path / "cache", report=messages.append).estimate(config) == first
    assert messages == ["measuring this machine's speed with linear layers (once) ..."]


@pytest.mark.parametrize(
    ("name", "work"), [("table-3", "convolutional"), ("figure-2a", "linear"), ("table-8", "linear")]
)
def test_a_model_s_file_says_which_speed_of_the_machine_counts_for_it(name, work, tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "_probe", lambda kind, device: {"convolutional": 1e9, "linear": 1e10}[kind])
    config = plan(name, "smoke")
    speeds, speed = Speeds(tmp_path, tmp_path / "cache"), {"convolutional": 1e9, "linear": 1e10}[work]
    assert speeds.estimate(config).seconds == pytest.approx(1.0 + speeds.effort(config).flops / speed)


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    speeds = Speeds(tmp_path, tmp_path / "cache")
    assert [speeds._cached("speeds", "this", lambda: 2.0) for _ in range(2)] == [2.0, 2.0]


def test_a_gpu_takes_its_flops_or_the_time_that_its_host_needs():
    work = Effort(steps=1_000, flops=3.6e18, step_flops=3.6e15, layers=20, bytes=0)
    assert work.gpu_seconds(1e13) == pytest.approx(3.6e5)
    assert work.gpu_seconds(1e25) == pytest.approx(1_000 * 20 * LAYER_SECONDS)


def test_layers_are_those_with_weights():
    assert network_cost(plan("figure-2a", "paper")).layers == 4
    assert network_cost(plan("table-3", "paper", depth=20)).layers == 20


@pytest.mark.parametrize(
    ("places", "seconds"),
    [
        (Slots(("cpu",) * 4, threads=1), 250.0),
        (Slots(("cpu",), threads=4), 250.0),
        (Slots(("cuda:0",), threads=16), 1_000.0),
        (Slots(("cuda:0", "cuda:1"), threads=8), 500.0),
        (Slots(("cuda:0",) * 4, threads=4), 1_000.0),
    ],
)
def test_threads_make_runs_faster_on_cpus_alone_and_runs_share_a_gpu(places, seconds):
    assert wall_seconds(1_000.0, 100.0, places) == pytest.approx(seconds)
