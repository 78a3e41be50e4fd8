"""A damaged run folder is named with its reason, and never averaged in."""

import json
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbwn_repro.report.sections import collect
from repro.report.folders import cell_at, plans, write_run


@pytest.fixture
def runs(tmp_path):
    """Three seeds of one cell; the tests damage the last one."""
    wanted = plans("table-3", "smoke", seeds=3, method="pbwn", depth=20, init="paper")
    return [write_run(tmp_path, plan, errors=(9.0, 8.0)) for plan in wanted]


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def cut(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))


DAMAGE = {
    "a configuration that is no JSON": (
        lambda run: (run / "config.json").write_text("{"),
        "config.json cannot be read",
    ),
    "a configuration that is a list": (
        lambda run: (run / "config.json").write_text("[]"),
        "config.json is not a JSON object",
    ),
    "no configuration": (lambda run: (run / "config.json").unlink(), "config.json is missing"),
    "an unknown method": (lambda run: change(run / "config.json", method="pbvn"), "not a run configuration"),
    "another seed": (lambda run: change(run / "config.json", seed=1), "does not belong to this folder"),
    "a result that is no JSON": (
        lambda run: (run / "result.json").write_text("nonsense"),
        "result.json cannot be read",
    ),
    "a result that is no text": (lambda run: (run / "result.json").write_bytes(b"\xff\xfe{"), "cannot be read"),
    "another run's result": (lambda run: change(run / "result.json", run="f" * 64), "belongs to the run ffffffff"),
    "a changed error": (lambda run: change(run / "result.json", test_error=1.0), "metrics.jsonl says 8.0"),
    "a changed best error": (lambda run: change(run / "result.json", best_test_error=1.0), "best_test_error 1.0"),
    "an error that is a word": (lambda run: change(run / "result.json", test_error="8"), "not a number"),
    "an error that is true": (lambda run: change(run / "result.json", test_error=True), "not a number"),
    "an error without a value": (lambda run: change(run / "result.json", test_error=None), "not a number"),
    "a result without a field": (lambda run: (run / "result.json").write_text("{}"), "result.json lacks test_error"),
    "no metrics": (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl is missing"),
    "metrics that were cut": (lambda run: cut(run / "metrics.jsonl"), "metrics.jsonl"),
    "metrics that are no JSON": (lambda run: (run / "metrics.jsonl").write_text("{\n"), "at line 1"),
    "an empty line of metrics": (lambda run: (run / "metrics.jsonl").write_text("[]\n"), "at line 1"),
    "no environment": (lambda run: (run / "environment.json").unlink(), "environment.json is missing"),
    "an evaluation without an error": (
        lambda run: (run / "metrics.jsonl").write_text('{"step": 1, "epoch": 1.0}\n'),
        "at line 1",
    ),
    "a loss that is not finite": (
        lambda run: (run / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n'),
        "at line 1",
    ),
    "an environment without the data's name": (
        lambda run: (run / "environment.json").write_text('{"data": {"nbme": "mnist", "origin": "a drawer"}}'),
        "data lacks a name or an origin",
    ),
    "steps that are no whole number": (lambda run: change(run / "result.json", steps=40.0), "not a step count"),
    "more steps than anybody takes": (lambda run: change(run / "result.json", steps=10**11), "not a step count"),
    "an error beyond all numbers": (lambda run: change(run / "result.json", test_error=10**400), "not a number"),
    "an infinite step": (
        lambda run: (run / "metrics.jsonl").write_text('{"step": Infinity, "loss": 1.0}\n'),
        "at line 1",
    ),
    "no loss of the last epoch": (
        lambda run: (run / "metrics.jsonl").write_text(
            re.sub(r'"loss": [\d.]+', '"loss": null', (run / "metrics.jsonl").read_text())
        ),
        "has no finite loss in the last epoch",
    ),
    "an environment without packages": (
        lambda run: (run / "environment.json").write_text('{"packages": []}'),
        "packages is not an object",
    ),
    "metrics that are a folder": (
        lambda run: [(run / "metrics.jsonl").unlink(), (run / "metrics.jsonl").mkdir()],
        "metrics.jsonl",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named_and_the_other_seeds_are_averaged(tmp_path, runs, what):
    damage, reason = DAMAGE[what]
    damage(runs[2])
    report = collect(tmp_path)
    assert list(report.left_out) == [runs[2]]
    assert reason in report.left_out[runs[2]]
    [section] = report.sections
    assert len(section.runs) == 2
    assert cell_at(section, "PBWN", "Res-20").ours.count == 2


def test_a_run_whose_test_loss_is_not_finite_is_shown_all_the_same(tmp_path, runs):
    path = runs[2] / "metrics.jsonl"
    path.write_text(re.sub(r'"test_loss": [\d.]+', '"test_loss": null', path.read_text()))
    assert '"test_loss": null' in path.read_text()
    report = collect(tmp_path)
    assert not report.left_out
    assert cell_at(report.sections[0], "PBWN", "Res-20").ours.count == 3


def test_an_evaluation_on_the_way_that_is_not_finite_is_left_out_of_the_curve(tmp_path, runs):
    path = runs[2] / "metrics.jsonl"
    change(runs[2] / "result.json", best_test_error=8.0)
    path.write_text(path.read_text().replace('"test_error": 9.0', '"test_error": null'))
    report = collect(tmp_path)
    assert not report.left_out
    assert cell_at(report.sections[0], "PBWN", "Res-20").ours.count == 3


def test_a_folder_without_anything_is_named(tmp_path, runs):
    empty = runs[0].with_name("resnet-20-pbwn-seed9-00000000")
    empty.mkdir()
    assert collect(tmp_path).left_out == {empty: "config.json is missing"}


def test_files_beside_the_runs_are_not_runs(tmp_path, runs):
    (runs[0].parent / "notes.txt").write_text("remember the milk")
    (runs[0].parent / ".cache").mkdir()
    (tmp_path / "report.html").write_text("<p>")
    (tmp_path / "train" / "some-run").mkdir(parents=True)
    assert collect(tmp_path).left_out == {}


@settings(max_examples=40)
@given(data=st.data())
def test_a_flipped_bit_in_the_metrics_never_ends_the_report(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("runs")
    [plan] = plans("table-3", "smoke", method="pbwn", depth=20, init="paper")
    path = write_run(root, plan, errors=(9.0, 8.0))
    content = bytearray((path / "metrics.jsonl").read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (path / "metrics.jsonl").write_bytes(content)
    report = collect(root)
    shutil.rmtree(root)
    if report.left_out:
        assert list(report.left_out) == [path]
    else:
        assert cell_at(report.sections[0], "PBWN", "Res-20").ours.values == (8.0,)


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from(["config.json", "result.json"]))
def test_a_flipped_bit_is_named_or_changes_nothing_that_is_shown(tmp_path_factory, data, name):
    root = tmp_path_factory.mktemp("runs")
    [plan] = plans("table-3", "smoke", method="pbwn", depth=20, init="paper")
    path = write_run(root, plan, errors=(9.0, 8.0))
    before = collect(root).sections[0]
    content = bytearray((path / name).read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    (path / name).write_bytes(content)
    report = collect(root)
    shutil.rmtree(root)
    if report.left_out:
        assert list(report.left_out) == [path]
        assert report.sections == ()
    else:
        assert report.sections[0].table == before.table
        assert report.sections[0].plots == before.plots
        assert report.sections[0].verdicts == before.verdicts
