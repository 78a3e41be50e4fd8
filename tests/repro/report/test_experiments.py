"""Experiments of ours: a search over the learning rate is what they show, with more seeds at its best."""

import pytest

from pbwn_repro.catalog import EXPERIMENTS, find
from pbwn_repro.report.cells import best_settings, labelled
from pbwn_repro.report.markdown import not_run, whole
from pbwn_repro.report.page import write
from pbwn_repro.report.palette import METHODS, own_stroke
from pbwn_repro.report.runs import read_runs
from pbwn_repro.report.sections import collect
from repro.report.folders import cell_at, plans, section, write_run

RULES = "step-rules-resnet"
# By method, the error at each rate, with the decay of the recipe; with the other it is a point higher.
ERRORS = {
    "normal": {0.02: 12.0, 0.1: 10.0, 0.5: 11.0},
    "pbwn": {0.02: 11.0, 0.1: 9.0, 0.5: 9.2},
    "pbwn-tangent": {0.02: 11.0, 0.1: 9.1, 0.5: None},
    "pbwn-angle": {0.02: 8.0, 0.1: 20.0, 0.5: 90.0},
}


def write_grid(root, methods=tuple(ERRORS), *, seeds=1, **labels):
    """The runs of some methods' searches; None stands for a run that diverged."""
    for method in methods:
        for plan in plans(RULES, "short", seeds=seeds, method=method, **labels):
            error, seed = ERRORS[method][plan.labels["lr"]], plan.labels["seed"]
            worse = plan.labels["weight_decay"] > 0.0001
            ends = (90.0, (error or 0.0) + worse + (seed - 1) / 10)
            write_run(root, plan, errors=ends, state="diverged" if error is None else "done")


def best_of(root, name=RULES):
    artefact = find(name)
    return best_settings(artefact, "short", labelled(artefact, "short", read_runs(root)[0])[0])


def test_the_best_setting_is_known_once_every_setting_has_ended(tmp_path):
    write_grid(tmp_path, ("normal", "pbwn-tangent"))
    write_grid(tmp_path, ("pbwn",), lr=0.1)
    assert best_of(tmp_path) == [
        {"method": "normal", "lr": 0.1, "weight_decay": 0.0001},
        {"method": "pbwn-tangent", "lr": 0.1, "weight_decay": 0.0001},
    ]


def test_further_seeds_of_the_best_setting_alone_are_missing(tmp_path):
    write_grid(tmp_path)
    left = section(collect(tmp_path), RULES, "short").missing
    settings = [(plan.labels["method"], plan.labels["lr"], plan.labels["seed"]) for plan in left]
    rates = {"normal": 0.1, "pbwn": 0.1, "pbwn-tangent": 0.1, "pbwn-angle": 0.02}
    assert settings == [(method, rates[method], seed) for method in ERRORS for seed in (2, 3)]
    write_grid(tmp_path / "more", seeds=3)
    assert not section(collect(tmp_path / "more"), RULES, "short").missing


def test_before_the_search_is_complete_its_own_runs_are_missing(tmp_path):
    write_grid(tmp_path, ("normal", "pbwn", "pbwn-angle"))
    left = section(collect(tmp_path), RULES, "short").missing
    assert {(plan.labels["method"], plan.labels["seed"]) for plan in left} >= {("pbwn-tangent", 1), ("normal", 2)}
    assert len(left) == 6 + 3 * 2


def test_a_further_seed_does_not_change_which_setting_is_best(tmp_path):
    write_grid(tmp_path, ("normal",))
    [plan] = plans(RULES, "short", seeds=2, method="normal", lr=0.1, weight_decay=0.0001, seed=2)
    write_run(tmp_path, plan, errors=(90.0, 50.0))
    assert best_of(tmp_path) == [{"method": "normal", "lr": 0.1, "weight_decay": 0.0001}]


def test_the_figure_shows_each_rate_at_its_best_decay(tmp_path):
    write_grid(tmp_path)
    found = section(collect(tmp_path), RULES, "short")
    [plot] = [plot for plot in found.plots if plot.main]
    assert plot.title == "Test error over the learning rate, at the best weight decay of each"
    curves = {curve.row.key: curve for curve in plot.curves}
    assert curves["normal"].x == (0.02, 0.1, 0.5)
    assert curves["normal"].mean == (12.0, 10.0, 11.0)
    assert (curves["pbwn-tangent"].x, curves["pbwn-tangent"].diverged) == ((0.02, 0.1), (0.5,))


def test_differences_and_good_ranges_are_told_without_a_verdict(tmp_path):
    write_grid(tmp_path, seeds=3)
    found = section(collect(tmp_path), RULES, "short")
    assert not found.verdicts
    assert found.compared[0].startswith("The test error of PBWN is 1.00 points lower than that of Normal")
    assert found.compared[0].endswith("3 pairs by seed). Each is the best of its method's 6 settings.")
    assert found.compared[-4:] == (
        "Normal is within 5 % of its best (10.1 %) at 1 of 3 learning rates: 0.1.",
        "PBWN is within 5 % of its best (9.1 %) at 2 of 3 learning rates: 0.1, 0.5.",
        "PBWN, tangent is within 5 % of its best (9.2 %) at 1 of 3 learning rates: 0.1.",
        "PBWN, angle is within 5 % of its best (8.1 %) at 1 of 3 learning rates: 0.02.",
    )


def test_runs_of_another_table_alone_make_no_section(tmp_path):
    for plan in plans("table-3", "short", seeds=3, method="normal", depth=20, init="paper"):
        write_run(tmp_path, plan, errors=(90.0, 10.0))
    assert [each.artefact.name for each in collect(tmp_path).sections] == ["table-3"]
    write_grid(tmp_path, ("pbwn-angle",))
    assert cell_at(section(collect(tmp_path), RULES, "short"), "Normal", "test error (%)").ours.count == 3


def write_widths(root, best):
    """Runs of two methods at three widths, whose cross entropy is lowest at these rates."""
    for method, rates in best.items():
        for width, rate in rates.items():
            for plan in plans("transfer", "short", method=method, width=width):
                factor = max(rate, plan.labels["lr"]) / min(rate, plan.labels["lr"])
                write_run(root, plan, errors=(5.0, 2.0 + factor / 10))


def test_whether_a_rate_carries_over_is_told_and_drawn_in_one_frame(tmp_path):
    by_width = {48: 0.01, 96: 0.003, 192: 0.001}
    write_widths(tmp_path, {"normal": by_width, "pbwn-angle-matrix": dict.fromkeys(by_width, 0.01)})
    found = section(collect(tmp_path), "transfer", "short")
    assert found.compared[:2] == (
        "The best learning rate of Normal is 0.01 at width 48, 0.003 at width 96, 0.001 at width 192: "
        "at width 192, the best rate of width 48 costs 0.90 bits.",
        "The best learning rate of Angle per matrix is 0.01 at width 48, 0.01 at width 96, 0.01 at width 192: "
        "at width 192, the best rate of width 48 costs 0.00 bits.",
    )
    [plot] = [plot for plot in found.plots if plot.main]
    assert [curve.row.title for curve in plot.curves] == [
        *(f"Normal, width {width}" for width in by_width),
        *(f"Angle per matrix, width {width}" for width in by_width),
    ]
    assert cell_at(found, "Normal", "width 96").ours.mean == pytest.approx(2.1)
    assert found.table.unit == "test cross entropy (bits/char)"


def test_lines_of_one_method_have_its_colour_and_dashes_of_their_own():
    lines = [own_stroke(f"normal/{width}") for width in range(3)]
    assert {line.tone for line in lines} == {METHODS["normal"].tone}
    assert len({line.dashes for line in lines}) == 3


def test_experiments_are_on_the_page_and_among_what_was_not_run(tmp_path):
    write_grid(tmp_path, ("normal",))
    report = collect(tmp_path)
    lines = not_run(report).splitlines()
    assert any("`pbwn reproduce transfer --scale short` (30 runs," in line for line in lines)
    assert any("20 runs: `pbwn reproduce step-rules-resnet --scale short" in line for line in lines)
    assert "## Step rules, ResNet: How the update is applied, SGD on ResNet-20 (scale short)" in whole(report)
    assert "pbwn reproduce step-rules-resnet --scale short" in write(report).read_text()


def test_experiments_that_the_paper_does_not_ask_for_claim_nothing_of_it():
    ours = [EXPERIMENTS[name] for name in ("step-rules-gpt", "step-rules-resnet", "transfer")]
    assert not [artefact.name for artefact in ours if artefact.claims or artefact.table]
