"""`pbwn bench`: what it writes and shows; never how long anything takes."""

import json
import time

import pytest
import torch
from typer.testing import CliRunner

import pbwn
from pbwn.paths.batch import Batch
from pbwn_repro.bench.projection import constrained_in, extra_memory, starts_of, step_rules
from pbwn_repro.bench.steps import TrainingStep
from pbwn_repro.bench.suite import PARTS, _plain
from pbwn_repro.bench.timing import Times, interleaved
from pbwn_repro.cli import app
from pbwn_repro.commands.bench import _spread


def test_a_quick_run_writes_every_part_and_shows_a_table_for_each(tmp_path):
    done = CliRunner().invoke(app, ["bench", "--quick", "--out", str(tmp_path)], env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "bench.json").read_text())
    assert set(PARTS) <= set(results)
    assert results["machine"]["torch"] == torch.__version__
    assert set(results["projection"]["resnet-20"]) == {"limit", "naive", "views kept", "torch", "numba"}
    assert set(results["training"]["resnet-20"]) == {"normal", "wn", "pbwn", "pbwn-riem", "pbwn-epoch"}
    for title in ("Projection", "Riemannian gradient", "step rules", "Optimizer step", "Training step", "Growth"):
        assert title in done.output
    assert done.output.index("The projection takes") < done.output.index("Training step")
    assert "limit: reading and writing each weight once, at memory bandwidth" in done.output
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_step_rules_are_timed_on_each_path_and_counted_for_a_gpu():
    found = _plain(step_rules("resnet-8", seconds=0.0))
    assert list(found) == ["per neuron", "per matrix", "tangent", "angle"]
    assert all(set(one["times"]) == {"torch", "numba"} for one in found.values())
    asked = {rule: (one["operations a weight"], one["bytes an element"]) for rule, one in found.items()}
    weights = 7  # of this network: what a call takes once is spread over them
    for rule, operations, once, moved in (
        ("per neuron", 2, 3, 12),
        ("per matrix", 2, 3, 12),
        ("tangent", 8, 21, 60),
        ("angle", 8, 13, 56),
    ):
        assert asked[rule][0] == pytest.approx(operations + once / weights), rule
        assert moved <= asked[rule][1] <= 1.02 * moved, rule  # norms beside rows of 27 elements and more


def test_a_step_rule_is_timed_on_rows_that_move():
    [weights] = constrained_in("resnet-8", "neuron")
    batch, starts = Batch(weights, pbwn.UnitNorm()), starts_of(weights)
    for rates in (None, [0.01] * len(weights)):
        for _ in range(2):
            batch.step_(starts, rates)
            for weight, start in zip(weights, starts, strict=True):
                assert not torch.isclose(weight.tensor, start, rtol=0, atol=1e-6).flatten(1).all(1).any()


def test_one_sample_has_no_range_and_a_range_names_its_unit_once():
    assert _spread({"median": 0.0386, "lower_quartile": 0.0386, "upper_quartile": 0.0386, "runs": 1}) == (
        "38.6 ms",
        "one sample",
    )
    assert (
        _spread({"median": 2e-5, "lower_quartile": 1.9e-5, "upper_quartile": 3e-5, "runs": 9})[1] == "19.0 to 30.0 µs"
    )
    assert (
        _spread({"median": 2e-5, "lower_quartile": 1.9e-5, "upper_quartile": 3e-3, "runs": 9})[1]
        == "19.0 µs to 3.00 ms"
    )


def test_one_part_of_one_network_can_be_asked_for(tmp_path):
    arguments = ["bench", "--quick", "--part", "memory", "--network", "resnet-32", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "bench.json").read_text())
    assert set(results["memory"]) == {"resnet-32"}
    assert "projection" not in results


def test_a_network_without_images_of_32_by_32_has_no_training_step(tmp_path):
    arguments = ["bench", "--quick", "--part", "training", "--part", "memory", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, "--network", "mlp"])
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "bench.json").read_text())
    assert (set(results["memory"]), results["training"]) == ({"mlp"}, {})
    assert "left out of training: mlp" in done.output
    nothing = CliRunner().invoke(
        app, ["bench", "--part", "training", "--network", "mlp", "--out", str(tmp_path / "no")]
    )
    assert "training cannot be timed with mlp" in str(nothing.exception)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("part", [(), ("--part", "growth")])
def test_an_unknown_network_is_refused_before_anything_is_measured(tmp_path, part):
    done = CliRunner().invoke(app, ["bench", "--quick", "--network", "resnet", "--out", str(tmp_path / "bench"), *part])
    assert "unknown model 'resnet'" in str(done.exception)
    assert not (tmp_path / "bench").exists()


def test_an_unknown_part_is_refused_by_name():
    done = CliRunner().invoke(app, ["bench", "--quick", "--part", "speed"])
    assert isinstance(done.exception, ValueError)
    assert "unknown part 'speed': choose from training" in str(done.exception)


def test_candidates_run_equally_often_in_an_order_that_changes():
    calls = []
    found = interleaved({name: lambda name=name: calls.append(name) for name in "abc"}, seconds=0, min_rounds=20)
    assert {name: times.runs for name, times in found.items()} == {"a": 20, "b": 20, "c": 20}
    rounds = {tuple(calls[place : place + 3]) for place in range(3, len(calls), 3)}
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(rounds) > 1


def test_times_are_summed_up_by_their_median_and_the_middle_half():
    assert Times.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Times(3.0, 1.5, 4.5, 5)
    assert Times.of([2.0]) == Times(2.0, 2.0, 2.0, 1)


def test_no_path_keeps_more_than_a_few_bytes_per_neuron():
    for network in ("resnet-20", "mlp"):
        for path, one in extra_memory(network).items():
            assert one["bytes kept"] <= 9 * one["neurons"] + 64, (network, path)  # norm, radius, free or not


@pytest.mark.parametrize("name", ["pbwn", "pbwn-riem"])
def test_the_projections_own_time_is_the_time_between_the_hooks_around_it(name, monkeypatch):
    step = TrainingStep("resnet-20", name, batch_size=2)
    step()
    now = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    _, inside = step()
    # The clock ticks once per look: hooks before and after the projection's own look one after the other, twice.
    assert inside == 2.0


def test_a_method_without_a_projection_has_no_time_for_one():
    step = TrainingStep("resnet-20", "normal", batch_size=2)
    whole, inside = step()
    assert 0 <= inside < whole
