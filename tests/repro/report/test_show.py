"""`pbwn show`: the paper's cells, ours beside them, and the state of the runs; from runs that were really made."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import pbwn_repro
from pbwn_repro.catalog import KNOWN
from pbwn_repro.cli import app
from pbwn_repro.engine.processes import join_processes
from pbwn_repro.engine.reporting import Quiet
from pbwn_repro.report.sections import collect
from pbwn_repro.runs.execution import execute
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.runs.resolution import resolve
from repro.report.folders import cell_at, plans, write_run


def make(root, plan):
    config, dataset = resolve(plan.overrides)
    folder = RunFolder.of(config, root, plan.artefact, plan.scale)
    with join_processes(torch.device("cpu")) as place:
        return execute(config, dataset, folder, place, Quiet())


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A rate of two methods of figure 2a, trained for two epochs on the embedded digits."""
    root = tmp_path_factory.mktemp("runs")
    results = {}
    for plan in plans("figure-2a", "smoke", seeds=2, sizes="paper", lr=0.3):
        if plan.labels["method"] != "pbwn-riem":
            results[plan.labels["method"], plan.labels["seed"]] = make(root, plan)
    return root, results


def test_runs_that_were_really_made_are_collected(real):
    root, results = real
    report = collect(root)
    assert report.left_out == {}
    [section] = [each for each in report.sections if each.artefact.name == "figure-2a"]
    for row, method in (("PBWN", "pbwn"), ("Normal", "normal")):
        values = cell_at(section, row, "test error (%)").ours.values
        assert values == tuple(results[method, seed]["test_error"] for seed in (1, 2))
    names = {plot.name.removeprefix("figure-2a-smoke-") for plot in section.plots}
    assert names == {"training-loss", "test-error", "weight-norms"}
    assert any("digits, stand-ins for the paper's data set" in note for note in section.notes)
    assert section.environments[0]["packages"]["torch"] == torch.__version__


def test_brackets_in_names_are_shown_as_they_are(tmp_path):
    root = tmp_path / "runs[old]"
    root.mkdir()
    assert "runs[old]" in invoke("show", "table-3", "--out", root)
    [plan] = plans("table-3", "smoke", method="pbwn", depth=20, init="paper")
    path = write_run(root, plan)
    (path / "config.json").write_text((path / "config.json").read_text().replace('"pbwn"', '"[/x]"'))
    assert "[/x]" in invoke("show", "table-3", "--out", root)


def invoke(*words):
    result = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "140"})
    assert result.exception is None, result.exception
    return result.stdout


def test_runs_are_shown_with_cells_verdicts_and_states(real):
    root, _ = real
    text = invoke("show", "figure-2a", "--out", root)
    assert "Figure 2a: Effect of norm projection" in text
    assert "Settings of these runs: lr = 0.3\n" in text
    assert "2 of 20 epochs, 2 seeds." in text
    assert "runs: 4 done, 8 missing: pbwn reproduce figure-2a --scale smoke" in text
    assert "“using the ordinary gradient has nearly identical training loss curve" in text


def test_without_runs_the_papers_table_is_shown_with_the_command_that_makes_them(tmp_path):
    for out in (tmp_path, tmp_path / "nowhere"):
        text = invoke("show", "table-6", "--out", out)
        assert "1.607±0.005" in text
        assert "GPF" in text
        assert (
            "with --out FOLDER, or start the runs with pbwn reproduce table-6 --scale short (or smoke, paper)." in text
        )


@pytest.mark.parametrize("name", KNOWN)
def test_every_artefact_can_be_shown_without_runs(tmp_path, name):
    assert f"No runs of {name} in {tmp_path}" in invoke("show", name, "--out", tmp_path)


def test_without_a_folder_the_runs_of_the_checkout_are_shown_unless_there_are_own_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"Runs in  {Path(pbwn_repro.__file__).parents[2] / 'results'}" in invoke("show", "figure-1")
    write_run(tmp_path / "runs", plans("table-3", method="pbwn", depth=20, init="paper")[0])
    assert "Runs in  runs" in invoke("show", "table-3")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_number_is_cut_however_narrow_the_terminal(tmp_path, width):
    result = CliRunner().invoke(app, ["show", "table-8", "--out", str(tmp_path)], env={"COLUMNS": str(width)})
    for number in ("10.1", "16.77±4.52", "0.93±0.065", "GAN with feature matching"):
        assert number in result.stdout
    assert max(len(line) for line in result.stdout.splitlines() if line.startswith("│")) <= max(width, 49)


def test_what_departs_from_the_paper_is_one_list(tmp_path):
    text = invoke("show", "table-8", "--out", tmp_path)
    assert text.count("Departs from the paper") == 1
    assert text.count("\n· ") == len(KNOWN["table-8"].departures)


def test_a_folder_that_was_left_out_is_named(tmp_path):
    path = write_run(tmp_path, plans("table-3", method="pbwn", depth=20, init="paper")[0])
    (path / "result.json").write_text("{")
    text = invoke("show", "table-3", "--out", tmp_path)
    assert f"left out {path}: result.json cannot be read" in text
    assert "left out" not in invoke("show", "table-4", "--out", tmp_path)


def test_an_unknown_artefact_suggests_the_nearest():
    result = CliRunner().invoke(app, ["show", "tabel-3"])
    assert isinstance(result.exception, ValueError)
    assert "did you mean 'table-3'?" in str(result.exception)
