"""Run folders become cells, whatever order they are found in, and never across scales or settings."""

import math
import shutil
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbwn_repro.catalog import ARTEFACTS
from pbwn_repro.report.figures import drawings, of_plot
from pbwn_repro.report.markdown import whole
from pbwn_repro.report.missing import command
from pbwn_repro.report.page import page
from pbwn_repro.report.runs import read_history
from pbwn_repro.report.sections import collect, differences_from_paper
from repro.report.folders import ENVIRONMENT, STEPS_PER_EPOCH, cell_at, config_of, own_plan, plans, section, write_run

NOT_COMPARABLE = ": not comparable with the paper's numbers"


def cell(report, artefact, row, column, scale="paper", **variant):
    return cell_at(section(report, artefact, scale, **variant), row, column)


def write_seeds(root, artefact, errors, scale="paper", **labels):
    for plan, error in zip(plans(artefact, scale, seeds=len(errors), **labels), errors, strict=True):
        write_run(root, plan, errors=(50.0, error))


def test_a_cell_is_the_mean_over_seeds_beside_the_papers(tmp_path):
    write_seeds(tmp_path, "table-3", [8.0, 8.5, 8.1], method="pbwn", depth=20, init="paper")
    found = cell(collect(tmp_path), "table-3", "PBWN", "Res-20")
    assert found.ours.values == (8.0, 8.5, 8.1)
    assert found.ours.mean == pytest.approx(8.2)
    assert found.ours.deviation == pytest.approx(0.26457, abs=1e-5)
    assert (found.paper.value, found.paper.spread, found.paper.seeds) == (8.08, 0.07, 5)


def test_a_single_run_has_no_deviation_and_other_cells_are_the_papers_alone(tmp_path):
    write_seeds(tmp_path, "table-3", [8.0], method="pbwn", depth=20, init="paper")
    report = collect(tmp_path)
    assert cell(report, "table-3", "PBWN", "Res-20").ours.deviation is None
    empty = cell(report, "table-3", "BaseLine*", "Res-110")
    assert (empty.ours, empty.paper.value) == (None, 6.61)
    assert len(section(report, "table-3").missing) == 5 * 5 * 5 - 1


def test_scales_are_never_mixed(tmp_path):
    write_seeds(tmp_path, "table-3", [8.0, 8.2], method="pbwn", depth=20, init="paper")
    write_seeds(tmp_path, "table-3", [12.0], "short", method="pbwn", depth=20, init="paper")
    report = collect(tmp_path)
    assert cell(report, "table-3", "PBWN", "Res-20").ours.values == (8.0, 8.2)
    assert cell(report, "table-3", "PBWN", "Res-20", "short").ours.values == (12.0,)
    assert [each.scale for each in report.sections] == ["paper", "short"]


def observed(plan, **observation):
    return replace(plan, overrides={**plan.overrides, **observation})


def test_how_often_a_run_was_observed_does_not_part_it_from_others_where_only_its_end_is_shown(tmp_path):
    first, second = plans("table-3", seeds=2, method="pbwn", depth=20, init="paper")
    write_run(tmp_path, first, errors=(50.0, 8.0))
    other = observed(second, log_every=50, evaluate_every=5 * STEPS_PER_EPOCH, checkpoint_every=7)
    assert other.identity == second.identity == first.identity
    write_run(tmp_path, other, errors=(50.0, 9.0))
    report = collect(tmp_path)
    assert cell(report, "table-3", "PBWN", "Res-20").ours.values == (8.0, 9.0)
    assert not report.left_out
    assert "8.00, 9.00 (2)" in whole(report)


@pytest.mark.parametrize(
    ("artefact", "labels", "observation", "reason"),
    [
        (
            "figure-2a",
            {"method": "normal", "lr": 0.3, "sizes": "paper"},
            {"log_every": 5},
            "log_every is 5, figure-2a needs 10",
        ),
        (
            "table-7",
            {"method": "normal", "network": "imagenet-resnet-34", "lr": 0.1},
            {"evaluate_every": 2 * STEPS_PER_EPOCH},
            f"evaluate_every is {2 * STEPS_PER_EPOCH}, table-7 needs each epoch",
        ),
    ],
)
def test_a_run_is_left_out_where_what_is_shown_depends_on_how_often_it_was_observed(
    artefact, labels, observation, reason, tmp_path
):
    first, second = plans(artefact, seeds=2, **labels)
    write_run(tmp_path, first)
    path = write_run(tmp_path, observed(second, **observation))
    report = collect(tmp_path)
    assert len(section(report, artefact).runs) == 1
    assert report.left_out == {path: f"another protocol: {reason}"}


def test_remarks_beside_the_runs_stand_in_their_section_and_in_no_other(tmp_path):
    write_seeds(tmp_path, "figure-2a", [1.9], method="pbwn", lr=0.3, sizes="paper")
    write_seeds(tmp_path, "figure-2a", [1.8], method="pbwn", lr=0.3, sizes="authors")
    (tmp_path / "figure-2a" / "paper" / "remarks.md").write_text("It went\nwell.\n\n\nWhy: see `code`.\n")
    report = collect(tmp_path)
    assert section(report, "figure-2a").remarks == ("It went well.", "Why: see `code`.")
    assert section(report, "figure-2a", sizes="authors").remarks == ()
    assert whole(report).count("It went well.") == page(report).count("It went well.") == 1
    assert not report.left_out


def test_a_variant_is_a_section_of_its_own(tmp_path):
    write_seeds(tmp_path, "table-3", [8.0], method="pbwn", depth=20, init="paper")
    write_seeds(tmp_path, "table-3", [9.0], method="pbwn", depth=20, init="authors")
    report = collect(tmp_path)
    assert cell(report, "table-3", "PBWN", "Res-20").ours.values == (8.0,)
    assert cell(report, "table-3", "PBWN", "Res-20", init="authors").ours.values == (9.0,)
    assert len({plot.name for each in report.sections for plot in each.plots}) == 6


def test_deviations_from_the_sphere_are_a_figure_unless_all_are_rounding(tmp_path):
    [plan] = plans("table-3", "short", seeds=1, method="pbwn", depth=20, init="paper")
    write_run(tmp_path, plan)
    found = section(collect(tmp_path), "table-3", "short")
    assert not [plot for plot in found.plots if "deviation" in plot.name]
    assert "Constrained norms deviate by at most 1e-07 of their value: rounding error." in found.notes
    [plan] = plans("table-3", "short", seeds=1, method="pbwn-epoch", depth=20, init="paper")
    write_run(tmp_path, plan, deviation=0.1)
    found = section(collect(tmp_path), "table-3", "short")
    [plot] = [plot for plot in found.plots if "deviation" in plot.name]
    assert plot.title == "Largest deviation from the sphere, before an epoch is projected, Res-20"
    assert not [note for note in found.notes if "rounding" in note]


@pytest.mark.parametrize(
    ("artefact", "scale", "labels", "data", "words"),
    [
        ("table-3", "paper", {"depth": 20, "init": "paper"}, None, ""),
        ("table-3", "short", {"depth": 20, "init": "paper"}, None, f"8 of 160 epochs, 2 seeds{NOT_COMPARABLE}"),
        ("table-3", "paper", {"depth": 20, "init": "paper"}, "cifar10-jpeg", "on JPEG copies of the images"),
        ("figure-2a", "short", {"sizes": "paper", "lr": 0.3}, None, "5 of 20 epochs, 2 seeds"),
        ("figure-2a", "smoke", {"sizes": "paper", "lr": 0.3}, None, "2 of 20 epochs, 2 seeds"),
        ("intervals-bn", "short", {"interval": 10}, None, ""),
    ],
)
def test_how_runs_differ_from_the_papers_is_told_beside_its_numbers(tmp_path, artefact, scale, labels, data, words):
    if "interval" not in labels:
        labels = {**labels, "method": "pbwn"}
    for plan in plans(artefact, scale, seeds=2, **labels):
        write_run(tmp_path, plan, data=data)
    assert differences_from_paper(section(collect(tmp_path), artefact, scale)) == words


def test_a_control_is_a_row_of_its_own_below_the_papers_and_in_no_cell_of_them(tmp_path):
    write_seeds(tmp_path, "table-3", [12.0], "short", method="normal", depth=20, init="paper")
    missing = len(section(collect(tmp_path), "table-3", "short").missing)
    write_seeds(tmp_path, "table-3", [11.5], "short", method="normal-lr-0.2", depth=20, init="paper")
    write_seeds(tmp_path, "table-3", [11.0], "short", method="unit-start", depth=20, init="paper")
    report = collect(tmp_path)
    assert not report.left_out
    found = section(report, "table-3", "short")
    rows = ["BaseLine", "Normal, learning rate 0.2", "Unit start"]
    assert [row.title for row in found.table.rows[-2:]] == rows[1:]
    assert [cell_at(found, row, "Res-20").ours.values for row in rows] == [(12.0,), (11.5,), (11.0,)]
    assert cell_at(found, "Unit start", "Res-20").paper is None
    assert len(found.missing) == missing  # what the paper has no row for is not part of the protocol
    configs = dict(zip(found.runs.method, found.runs.config, strict=True))
    assert (configs["normal-lr-0.2"].method, configs["normal-lr-0.2"].optimizer.lr) == ("normal", 0.2)
    assert (configs["unit-start"].method, configs["unit-start"].optimizer.lr) == ("unit-start", 0.1)


def test_the_controls_of_figure_2_search_as_the_methods_do_and_starts_are_variants(tmp_path):
    assert len(plans("figure-2a", method="unit-start")) == 5
    write_seeds(tmp_path, "figure-2b", [2.0], interval=1, init="lecun")
    write_seeds(tmp_path, "figure-2b", [2.5], interval=50, init="lecun")
    report = collect(tmp_path)
    assert not report.left_out
    found = section(report, "figure-2b", init="lecun")
    assert [cell_at(found, f"T = {t}", "test error (%)").ours.mean for t in (1, 50)] == [2.0, 2.5]


def test_jpeg_copies_count_as_the_pictures_and_a_note_says_so(tmp_path):
    [plan] = plans("table-3", method="pbwn", depth=20, init="paper")
    write_run(tmp_path, plan, data="cifar10-jpeg")
    found = section(collect(tmp_path), "table-3")
    assert len(found.runs) == 1
    assert any("JPEG copies" in note for note in found.notes)
    assert any("An abacus" in note for note in found.notes)


def test_lossless_copies_count_as_the_set_and_a_note_tells_their_order(tmp_path):
    [plan] = plans("table-4", method="pbwn", depth=20, init="paper")
    write_run(tmp_path, plan, data="cifar100-lossless")
    found = section(collect(tmp_path), "table-4")
    assert len(found.runs) == 1
    assert any("a lossless copy of cifar100" in note and "another order" in note for note in found.notes)
    assert not any("JPEG" in note for note in found.notes)


def test_runs_on_two_copies_of_the_data_are_never_mixed(tmp_path):
    def write(copies, seeds, **labels):
        for plan in plans("table-3", seeds=seeds, method="pbwn", depth=20, init="paper"):
            for data, error in copies:
                write_run(tmp_path / str(seeds) / labels["where"], plan, errors=(50.0, error), data=data)

    both = ((None, 8.0), ("cifar10-jpeg", 12.0))
    write(both, 3, where="both")
    report = collect(tmp_path / "3" / "both")
    assert cell(report, "table-3", "PBWN", "Res-20").ours.values == (8.0, 8.0, 8.0)
    assert len(section(report, "table-3").runs) == 3
    assert len(report.left_out) == 3
    assert set(report.left_out.values()) == {
        "another copy of the data: cifar10-jpeg (11111111), the runs shown are on cifar10 (00000000)"
    }
    write(both[1:], 3, where="more copies")
    [plan] = plans("table-3", method="normal", depth=20, init="paper")
    write_run(tmp_path / "3" / "more copies", plan)
    report = collect(tmp_path / "3" / "more copies")
    assert cell(report, "table-3", "PBWN", "Res-20").ours.values == (12.0, 12.0, 12.0)
    assert cell(report, "table-3", "BaseLine", "Res-20").ours is None


def test_the_best_rate_is_chosen_on_the_seeds_that_all_rates_have_and_shown_with_all_of_its_own(tmp_path):
    for plan in plans("figure-2a", method="pbwn", sizes="paper"):
        write_run(tmp_path, plan, losses=(2.0, {0.3: 0.1, 1.0: 0.2}.get(plan.labels["lr"], 0.9)))
    for seed, plan in enumerate(plans("figure-2a", seeds=4, method="pbwn", sizes="paper", lr=0.3)[1:], start=2):
        write_run(tmp_path, plan, losses=(2.0, seed * 1.0))  # worse than the other rates on their one seed
    ours = cell(collect(tmp_path), "figure-2a", "PBWN", "training loss, last epoch").ours
    assert ours.chosen == {"lr": 0.3}
    assert ours.values == pytest.approx((0.1, 2.0, 3.0, 4.0))


def test_a_search_that_is_not_complete_says_so(tmp_path):
    wanted = plans("figure-2a", method="pbwn", sizes="paper")
    for plan in wanted[:4]:
        write_run(tmp_path, plan)
    words = "The search is incomplete: of the cells with runs, one has only 4 of 5 settings."
    assert words in section(collect(tmp_path), "figure-2a").notes
    write_run(tmp_path, wanted[4])
    assert words not in section(collect(tmp_path), "figure-2a").notes


def test_a_figures_curves_show_the_best_setting_with_a_band_over_seeds(tmp_path):
    for plan in plans("figure-2a", seeds=2, method="pbwn", sizes="paper", lr=0.3):
        write_run(tmp_path, plan, losses=(2.0, plan.labels["seed"]))
    [plot] = [p for p in section(collect(tmp_path), "figure-2a").plots if p.name == "figure-2a-paper-training-loss"]
    [curve] = plot.curves
    assert (plot.x_label, curve.row.title, curve.count) == ("iteration", "PBWN", 2)
    assert (curve.x[0], curve.x[-1]) == (10, 400)
    assert (curve.mean[0], curve.low[0], curve.high[0]) == (2.0, 2.0, 2.0)
    assert curve.mean[-1] == 1.5
    assert (curve.low[-1], curve.high[-1]) == (1.0, 2.0)


def test_a_search_is_drawn_over_the_seeds_that_all_settings_have_and_says_where_runs_diverged(tmp_path):
    for rate, losses in ((1.0, (None, None, 0.9)), (0.3, (0.2, 0.9, 0.9)), (0.1, (0.4,)), (0.03, (0.5,))):
        found = plans("figure-2a", seeds=len(losses), method="pbwn", sizes="paper", lr=rate)
        for plan, loss in zip(found, losses, strict=True):
            write_run(tmp_path, plan, losses=(2.0, loss or 0), state="diverged" if loss is None else "done")
    [plot] = [p for p in section(collect(tmp_path), "figure-2a").plots if p.name == "figure-2a-paper-search"]
    [curve] = plot.curves
    assert (curve.x, curve.mean, curve.diverged) == ((0.03, 0.1, 0.3), (0.5, 0.4, 0.2), (1.0,))
    assert "2 of 3 diverged at 1" in of_plot(plot).description
    assert of_plot(plot).title.endswith("crosses mark diverged runs")
    assert ">PBWN</text>" in of_plot(plot).svg


def test_runs_that_diverged_are_drawn_in_a_band_of_their_own_and_no_dot_is_cut(tmp_path):
    for rate, losses in ((1.0, (None, 0.9)), (0.3, (0.2, 0.9)), (0.1, (0.4, 0.5))):
        for plan, loss in zip(plans("figure-2a", seeds=2, method="pbwn", sizes="paper", lr=rate), losses, strict=True):
            write_run(tmp_path, plan, losses=(2.0, loss or 0), state="diverged" if loss is None else "done")
    [plot] = [p for p in section(collect(tmp_path), "figure-2a").plots if p.name == "figure-2a-paper-search"]
    band, panel = of_plot(plot).draw().axes
    assert band.get_position().y0 > panel.get_position().y1
    assert [label.get_text() for label in band.get_yticklabels()] == ["diverged"]
    assert [(list(line.get_xdata()), line.get_marker()) for line in band.lines] == [([1.0], "x")]
    assert [text.get_text() for text in band.texts] == ["1 of 2"]
    assert {line.get_marker() for line in panel.lines} == {"None", "o"}
    low, high = panel.get_xlim()
    assert low < 0.1
    assert high > 1.0
    none = replace(plot, curves=tuple(replace(curve, diverged=(), lost=()) for curve in plot.curves))
    assert len(of_plot(none).draw().axes) == 1


def test_commands_name_the_copy_and_the_seeds_of_the_runs(tmp_path):
    for interval in (1, 10, 20, 50, 100):
        for plan in plans("figure-2b", seeds=6, interval=interval, sizes="paper"):
            if interval > 1 or plan.labels["seed"] > 1:
                write_run(tmp_path, plan)
    assert command(section(collect(tmp_path), "figure-2b")) == "pbwn reproduce figure-2b --scale paper"
    write_run(tmp_path, plans("figure-2b", interval=1, sizes="paper")[0])
    assert command(section(collect(tmp_path), "figure-2b")) == "pbwn reproduce figure-2b --scale paper --seeds 6"
    [plan] = plans("table-4", method="pbwn", depth=20, init="authors")
    write_run(tmp_path, plan, data="cifar100-jpeg")
    words = "pbwn reproduce table-4 --scale paper --only init=authors --data cifar100=hf:FOLDER"
    assert command(section(collect(tmp_path), "table-4", init="authors")) == words


def test_runs_of_other_code_or_on_other_machines_are_told(tmp_path):
    made_with = {**ENVIRONMENT, "code": {"pbwn": "0.1.0", "sha256": "a" * 64}}
    others = {
        2: {**made_with, "code": {"pbwn": "0.2.0", "sha256": "b" * 64}},
        3: {**made_with, "processor": "A slide rule"},
    }
    for plan in plans("table-3", seeds=3, method="pbwn", depth=20, init="paper"):
        write_run(tmp_path, plan, environment=others.get(plan.labels["seed"], made_with))
    notes = section(collect(tmp_path), "table-3").notes
    assert "The runs mix 2 versions of the code: 0.1.0 (aaaaaaaa), 0.2.0 (bbbbbbbb)." in notes
    [hardware] = [note for note in notes if note.startswith("Run on different hardware or versions: ")]
    assert "An abacus" in hardware
    assert "A slide rule" in hardware


def test_the_number_of_comparisons_is_told(tmp_path):
    for method in ("normal", "pbwn", "pbwn-riem"):
        write_seeds(tmp_path, "table-3", [8.0, 8.1], method=method, depth=20, init="paper")
    [note] = [note for note in section(collect(tmp_path), "table-3").notes if "comparisons" in note]
    assert note.startswith("3 comparisons, not corrected for multiple testing")


def test_your_own_runs_are_grouped_by_what_they_have_in_common(tmp_path):
    for method, rates in (("pbwn", {0.1: 9.0, 0.3: 8.9, 1.0: 20.0}), ("normal", {0.1: 10.0, 0.3: 12.0, 1.0: None})):
        for rate, error in rates.items():
            for seed in (1, 2, 3, 4):
                plan = own_plan(method=method, lr=rate, seed=seed)
                lost = error is None
                ends = (50.0, 0.0 if lost else error + seed * (0.1 if method == "pbwn" else 0.2))
                write_run(tmp_path, plan, errors=ends, state="diverged" if lost else "done")
    write_run(tmp_path, own_plan(method="pbwn", epochs=2))
    report = collect(tmp_path)
    assert not report.left_out
    longer, shorter = sorted(report.sections, key=lambda each: -len(each.runs))
    assert (longer.title, len(shorter.runs)) == ("Your runs: resnet-20 on cifar10 (epochs=4)", 1)
    assert longer.anchor != shorter.anchor
    assert cell_at(longer, "PBWN", "test error (%)").ours.values == pytest.approx((9.0, 9.1, 9.2, 9.3))
    assert cell_at(longer, "PBWN", "test error (%)").ours.chosen == {"lr": 0.3, "weight_decay": 0.0001}
    assert not longer.verdicts
    compared, *itself, first, second = longer.compared
    again = "The same method twice. No significant difference: the test error of PBWN with seeds 1, 3 is "
    assert itself[1].startswith(again)
    assert "than that of PBWN with seeds 2, 4 (95 % interval " in itself[1]
    assert compared.startswith("The test error of PBWN is 1.35 points lower than that of Normal (95 % interval ")
    assert compared.endswith("paired t, 4 pairs by seed). Each is the best of its method's 3 settings.")
    assert [first, second] == [
        "Normal is within 5 % of its best (10.5 %) at 1 of 3 learning rates: 0.1.",
        "PBWN is within 5 % of its best (9.15 %) at 2 of 3 learning rates: 0.1, 0.3.",
    ]
    assert [plot for plot in longer.plots if plot.name == f"{longer.anchor}-search"]
    text, shown = whole(report), page(report)
    assert "## Your runs: resnet-20 on cifar10" in text
    assert "## Not run" not in text
    assert "Compared, without a verdict" in text
    assert shown.count("Your runs") >= 2
    assert "pbwn reproduce" not in shown


def test_of_one_run_there_are_no_dots_and_of_two_no_method_is_compared_with_itself(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path, own_plan(method="pbwn", seed=seed), errors=(50.0, 8.0 + seed))
        [found] = collect(tmp_path).sections
        names = [drawing.name for drawing in drawings(found)[0]]
        assert (f"{found.anchor}-dots" in names) == (seed == 2)
        assert not found.compared


def test_one_point_is_no_points_and_an_interval_around_zero_no_difference(tmp_path):
    for method, errors in (("normal", (12.0, 10.0)), ("pbwn", (8.0, 12.0))):
        for seed, error in enumerate(errors, 1):
            write_run(tmp_path, own_plan(method=method, seed=seed), errors=(50.0, error))
    [sentence] = collect(tmp_path).sections[0].compared
    assert sentence.startswith("No significant difference: the test error of PBWN is 1 point lower than that of Normal")


def test_a_damaged_run_of_your_own_is_named(tmp_path):
    whole_run = write_run(tmp_path, own_plan(method="pbwn"))
    damaged = write_run(tmp_path, own_plan(method="normal"))
    (damaged / "result.json").write_text("{")
    report = collect(tmp_path)
    assert list(report.left_out) == [damaged]
    assert report.sections[0].runs.path.tolist() == [whole_run]


def test_a_short_section_says_how_long_its_runs_are(tmp_path):
    write_seeds(tmp_path, "table-3", [8.0], "short", method="pbwn", depth=20, init="paper")
    notes = section(collect(tmp_path), "table-3", "short").notes
    assert "Each run: 8 epochs, with drops of the learning rate at epochs 4 and 6." in notes
    write_seeds(tmp_path, "table-8", [1.0], "short", method="pbwn", labels=100, denoising="authors", init="paper")
    assert "Each run: 15,000 iterations." in section(collect(tmp_path), "table-8", "short").notes


def test_a_figure_uses_the_runs_that_another_artefact_keeps(tmp_path):
    for plan in plans("table-1", method="pbwn", data="cifar100", init="paper"):
        write_run(tmp_path, plan)
    report = collect(tmp_path)
    assert [each.artefact.name for each in report.sections] == ["figure-3b", "table-1"]
    assert len(section(report, "figure-3b").runs) == 1
    assert section(report, "figure-3b").plots[0].x_label == "epoch"


def test_table_7_shows_the_best_epoch_with_the_top_5_error_of_that_same_epoch(tmp_path):
    [plan] = plans("table-7", method="normal", network="imagenet-resnet-34", lr=0.1)
    write_run(tmp_path, plan, errors=(40.0, 28.0, 29.0), top5=(20.0, 9.5, 9.0))
    report = collect(tmp_path)
    assert cell(report, "table-7", "Normal", "Residual, top-1").ours.values == (28.0,)
    assert cell(report, "table-7", "Normal", "Residual, top-5").ours.values == (9.5,)


def test_a_run_that_diverged_is_counted_and_never_averaged_in(tmp_path):
    first, second, third = plans("table-3", seeds=3, method="pbwn", depth=20, init="paper")
    write_run(tmp_path, first, errors=(8.0,))
    write_run(tmp_path, second, state="diverged")
    write_run(tmp_path, third, state="unfinished")
    report = collect(tmp_path)
    ours = cell(report, "table-3", "PBWN", "Res-20").ours
    assert (ours.values, ours.diverged) == ((8.0,), 1)
    assert [len(section(report, "table-3").diverged), len(section(report, "table-3").unfinished)] == [1, 1]
    assert not report.left_out


def test_a_rate_at_which_runs_diverged_is_not_the_best(tmp_path):
    for plan in plans("figure-2a", method="normal", sizes="paper"):
        diverges = plan.labels["lr"] == 1.0
        write_run(tmp_path, plan, losses=(plan.labels["lr"],), state="diverged" if diverges else "done")
    ours = cell(collect(tmp_path), "figure-2a", "Normal", "test error (%)").ours
    assert (ours.chosen, ours.diverged) == ({"lr": 0.01}, 0)


def test_where_every_run_diverged_there_is_no_mean(tmp_path):
    [plan] = plans("table-3", method="pbwn", depth=20, init="paper")
    write_run(tmp_path, plan, state="diverged")
    ours = cell(collect(tmp_path), "table-3", "PBWN", "Res-20").ours
    assert (ours.count, ours.diverged) == (0, 1)
    assert math.isnan(ours.mean)


def test_lines_without_a_finite_loss_are_not_averaged_in(tmp_path):
    [plan] = plans("figure-2a", method="normal", sizes="paper", lr=0.3)
    path = write_run(tmp_path, plan, losses=(4.0, None, 2.0, 1.0))
    history = read_history(path / "metrics.jsonl", config_of(plan), 20 * STEPS_PER_EPOCH)
    assert history.mean_loss == pytest.approx(7 / 3)
    assert history.final_loss == 1
    assert [loss for _, loss in history.losses_by_epoch()] == [4.0] * 5 + [2.0] * 5 + [1.0] * 5
    assert len(section(collect(tmp_path), "figure-2a").runs) == 1


def test_a_run_of_another_protocol_is_left_out_and_named(tmp_path):
    [plan] = plans("table-3", "short", method="pbwn", depth=20, init="paper")
    path = write_run(tmp_path, plan)
    wrong = tmp_path / "table-3" / "paper" / path.name
    wrong.parent.mkdir(parents=True)
    shutil.move(path, wrong)
    report = collect(tmp_path)
    assert report.sections == ()
    assert report.left_out == {wrong: "another protocol: no run of table-3 at scale paper has this configuration"}


def test_a_folder_that_is_not_there_is_an_error_that_says_so(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        collect(tmp_path / "nowhere")


def test_an_empty_folder_is_an_empty_report(tmp_path):
    report = collect(tmp_path)
    assert (report.sections, report.left_out) == ((), {})


@settings(max_examples=8)
@given(order=st.permutations(range(6)))
def test_the_order_in_which_runs_were_written_changes_nothing(tmp_path_factory, order):
    root = tmp_path_factory.mktemp("runs")
    wanted = [
        *plans("table-3", seeds=3, method="pbwn", depth=20, init="paper"),
        *plans("table-3", seeds=3, method="normal", depth=20, init="paper"),
    ]
    for number in order:
        write_run(root, wanted[number], errors=(9.0, 8.0 + number / 10))
    found = collect(root)
    assert found.sections[0].runs.seed.tolist() == [1, 2, 3, 1, 2, 3]
    assert cell(found, "table-3", "BaseLine", "Res-20").ours.values == (8.3, 8.4, 8.5)
    assert cell(found, "table-3", "PBWN", "Res-20").ours.values == (8.0, 8.1, 8.2)


@pytest.mark.parametrize("artefact", [name for name, each in ARTEFACTS.items() if hasattr(each, "axes")])
def test_every_planned_run_finds_its_own_cell(tmp_path, artefact):
    wanted = plans(artefact, "smoke")
    for plan in wanted:
        write_run(tmp_path, plan)
    found = section(collect(tmp_path), artefact, "smoke")
    assert len(found.runs) == len(wanted)
    assert found.runs[list(wanted[0].labels)].to_dict("records") == [{**plan.labels} for plan in wanted]
    filled = {row for (row, _), each in found.table.cells.items() if each.ours}
    assert filled == {str(plan.labels[next(iter(plan.labels))]) for plan in wanted}
