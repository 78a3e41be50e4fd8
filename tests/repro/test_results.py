"""What is published is what the kept runs say."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from pbwn_repro.report.findings import Finding, findings, findings_table, learning_rates
from pbwn_repro.report.sections import collect
from pbwn_repro.runs.folder import run_folders

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report():
    return collect(ROOT / "results")


def test_the_published_results_are_those_of_the_kept_runs(report):
    publish = runpy.run_path(str(ROOT / "results" / "publish.py"))
    for path, text in publish["published"](report).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make results`"


def test_each_finding_is_a_number_of_the_section_that_it_links_to(report):
    sections = {section.anchor: section for section in report.shown}
    found = findings(report)
    assert [finding.anchor.split("-paper")[0].split("-short")[0] for finding in found][:2] == ["table-8", "table-8"]
    for finding in found:
        ours = [cell.ours for cell in sections[finding.anchor].table.cells.values() if cell.ours and cell.ours.values]
        numbers = {f"{summary.mean:.2g}" for summary in ours}
        numbers |= {f"{value:.2f}" for summary in ours for value in (summary.mean, summary.median)}
        assert finding.value.split()[0] in numbers
        assert finding.basis.startswith(f"{sections[finding.anchor].scale} scale, ")


def test_the_findings_are_a_table_without_the_columns_that_nothing_stands_in():
    shared = {"start": "", "anchor": "table-8-paper"}
    found = Finding(
        *("a", "1 %", "2 %"),
        difference="-1 [-2, 0]",
        verdict="holds",
        paper="",
        basis="3 seeds",
        is_lowest=True,
        **shared,
    )
    higher = replace(found, value="3 %", difference="1 [-2, 4]", verdict="undecided", is_lowest=False)
    timed = Finding(
        "b", "0.5 %", "", difference="", verdict="", paper="0.7 %", basis="25 rounds", is_lowest=True, **shared
    )
    assert findings_table([found, higher, timed]).splitlines() == [
        "|  | with PBWN | without | difference, 95 % interval | paper: with, without | runs |",
        "| --- | --- | --- | --- | --- | --- |",
        "| a | **1 %** | 2 % | -1 [-2, 0] | - | 3 seeds; verdict: holds |",
        "| a | 3 % | 2 % | 1 [-2, 4] | - | 3 seeds; verdict: undecided |",
        "| b | **0.5 %** | - | - | 0.7 % | 25 rounds |",
    ]
    assert "| a | **1 %** | 2 % | 3 seeds; verdict: holds |" in findings_table([found], intervals=False)
    assert found.beside == "2 % without"
    assert timed.beside == ""


def test_the_learning_rates_are_drawn_with_every_run_as_a_dot(report):
    plots = learning_rates(report)
    assert plots
    assert [curve.row.key for curve in plots[0].curves] == ["normal", "unit-start", "pbwn"]
    for plot in plots:
        assert [curve.row.key for curve in plot.curves][:1] == ["normal"]
        assert all(curve.dots for curve in plot.curves)


def test_no_kept_run_is_damaged(report):
    assert not report.left_out


def test_every_kept_run_has_the_name_of_what_its_result_depends_on():
    folders = [folder for folder in run_folders(ROOT / "results") if folder.metrics.exists()]
    assert len(folders) >= 125
    for folder in folders:
        config = folder.read_config()
        assert folder.path.name == config.run_name
        assert folder.state == "diverged" or folder.read_result()["run"] == config.hash


def test_the_kept_runs_are_small_and_hold_no_weights():
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl")]
    assert files
    assert sum(path.stat().st_size for path in files) < 16e6
    assert not list((ROOT / "results").rglob("*.safetensors"))
