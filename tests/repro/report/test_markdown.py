"""Tables and the whole report as text: Markdown, CSV, LaTeX."""

import csv
import io
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from pbwn_repro.catalog import Column, Number, find
from pbwn_repro.report.markdown import (
    best_settings,
    comma_separated,
    latex,
    markdown,
    ours_text,
    overview,
    paper_text,
    summary,
    texts,
    whole,
)
from pbwn_repro.report.model import Cell, Row, Summary, Table, heading
from pbwn_repro.report.sections import collect
from repro.report.folders import plans, write_run

OURS = Summary((1.6, 1.7), 1.65, 0.0707, {"lr": 0.1}, 1)


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (None, "-"),
        (Summary((8.0,), 8.0, None), "8.00 (1)"),
        (Summary((8.0, 9.0), 8.5, 0.7071), "8.00, 9.00 (2)"),
        (Summary((8.0, 9.0, 10.0), 9.0, 1.0), "9.0 ± 1.0 (3)"),
        (OURS, "1.60, 1.70 (2, 1 diverged)"),
        (Summary((), math.nan, None, {}, 3), "3 diverged"),
        (Summary((0.000821,), 0.000821, None), "0.000821 (1)"),
        (Summary((0.0,), 0.0, None), "0.00 (1)"),
        (Summary((-0.0123,), -0.0123, None), "-0.0123 (1)"),
        (Summary((24.4, 27.36, 30.3), 27.36, 4.12), "27.4 ± 4.1 (3)"),
        (Summary((0.0, 0.0025, 0.0049), 0.00247, 0.00291), "0.0025 ± 0.0029 (3)"),
        (Summary((0.0, 0.0049), 0.00247, 0.00291), "0.00000, 0.00490 (2)"),
        (Summary((180.1, 196.57), 196.57, None, reach=12.3), "197 (2)"),
    ],
)
def test_ours_are_mean_deviation_and_runs(summary, words):
    assert ours_text(summary) == words


def test_where_a_few_failed_runs_carry_the_mean_the_median_stands_beside_it():
    authors = (0.97, 2.23, 1.02, 9.51, 1.02, 0.99, 3.81, 2.28, 1.04, 2.27)
    found = Summary(authors, 2.514, 2.56)
    assert ours_text(found, median=True) == "2.5 ± 2.6, median 1.64 (10)"
    assert ours_text(Summary((8.0,), 8.0, None), median=True) == "8.00 (1)"


def test_counts_are_whole_numbers_and_tiny_means_are_powers_of_ten():
    assert ours_text(Summary((3.0,), 3.0, None, is_count=True)) == "3"
    assert ours_text(Summary((7e-11, 8e-11, 8.4e-11), 7.8e-11, 7e-12)) == "7.8e-11 (3)"
    assert ours_text(Summary((1e-12,), 1e-12, None), fixed=True) == "0.00 (1)"


def test_the_papers_numbers_keep_their_digits_and_ours_have_as_many():
    paper = Number(1.607, 0.005, text="1.607 ± 0.005")
    assert paper_text(paper) == "1.607 ± 0.005"
    assert paper_text(find("table-8").table.numbers["gan-fm", "100 labels"]) == "0.93 ± 0.065"
    assert texts(Cell(OURS, paper)) == ("1.600, 1.700 (2, 1 diverged)", "1.607 ± 0.005")


ROWS = (Row("pbwn", "PBWN", "pbwn"), Row("other", "Other_one & more", "other"))
RES_20, RES_32 = Column("Res-20", "20"), Column("Res-32", "32")
TABLE = Table(
    ROWS,
    (RES_20, RES_32),
    {
        ("pbwn", RES_20): Cell(OURS, Number(1.5, 0.25, 5)),
        ("pbwn", RES_32): Cell(None, None),
        ("other", RES_20): Cell(None, Number(2.0)),
        ("other", RES_32): Cell(None, None),
    },
    "test error (%)",
)


def test_markdown_has_ours_and_the_papers_in_each_cell():
    assert markdown(TABLE).splitlines() == [
        "|  | Res-20 | Res-32 |",
        "| --- | ---: | ---: |",
        "| PBWN | 1.60, 1.70 (2, 1 diverged) · *1.50 ± 0.25* | - |",
        "| Other_one & more | - · *2.00* | - |",
    ]


def test_csv_has_a_line_for_each_cell_that_holds_anything_with_numbers_in_full():
    lines = list(csv.DictReader(io.StringIO(comma_separated(TABLE))))
    assert [(line["row"], line["column"]) for line in lines] == [("PBWN", "Res-20"), ("Other_one & more", "Res-20")]
    assert lines[0]["ours"] == "1.65"
    assert (lines[0]["deviation"], lines[0]["runs"], lines[0]["diverged"]) == ("0.0707", "2", "1")
    assert float(lines[0]["median"]) == pytest.approx(1.65)
    assert (lines[0]["chosen"], lines[0]["paper"], lines[0]["paper_seeds"]) == ("lr = 0.1", "1.5", "5")
    assert (lines[1]["ours"], lines[1]["paper"], lines[1]["paper_spread"]) == ("", "2.0", "")


def test_latex_escapes_words_and_has_one_field_for_each_column():
    text = latex(TABLE, "Test error in %")
    assert r"\caption{Test error in \%}" in text
    assert r"Other\_one \& more (paper) & 2.00 & - \\" in text
    assert r"PBWN & 1.60, 1.70 (2, 1 diverged) & - \\" in text
    assert r"\quad paper & 1.50 $\pm$ 0.25 & - \\" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in rows} == {2}


ROWS = (Row("normal", "Normal", "normal"), Row("pbwn", "PBWN, b", "pbwn"))


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((0.1, 0.1, 0.1, 0.1), ["lr = 0.1"]),
        ((0.1, 0.3, 0.1, 0.3), ["20 layers: lr = 0.1", "32 layers: lr = 0.3"]),
        ((0.1, 0.1, 0.3, 0.3), ["lr = 0.1 for Normal", "lr = 0.3 for “PBWN, b”"]),
        (
            (0.1, 0.1, 0.3, 0.1),
            ["lr = 0.1 for Normal, “PBWN, b” (32 layers)", "lr = 0.3 for “PBWN, b” (20 layers)"],
        ),
        ((None, None, None, None), []),
    ],
)
def test_best_settings_are_told_once_or_by_column_or_by_row(rates, words):
    columns = tuple(
        Column(f"{depth} layers, {kind}", depth, kind)
        for depth in ("20", "32")
        for kind in ("test_error", "final_loss")
    )
    places = [(row.key, column) for row in ROWS for column in columns]
    cells = {
        place: Cell(Summary((1.0,), 1.0, None, {"lr": rates[at // 2]} if rates[at // 2] else {}), None)
        for at, place in enumerate(places)
    }
    assert best_settings(Table(ROWS, columns, cells, "")) == words


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((3, 1), "mean ± standard deviation (runs)"),
        ((3, 2), "mean ± standard deviation (runs); both values if there are two runs"),
        ((2, 1), "every run (number of runs)"),
    ],
)
def test_the_legend_of_a_table_says_what_stands_in_its_cells(counts, words):
    cells = {(row.key, RES_20): Cell(Summary.of([1.0] * count), None) for row, count in zip(ROWS, counts, strict=True)}
    assert Table(ROWS, (RES_20,), cells, "").legend == words


@pytest.fixture
def report(tmp_path):
    for method, errors in (("pbwn", (7.0, 7.1, 7.2)), ("normal", (7.92, 8.1, 8.28))):
        for plan, error in zip(
            plans("table-3", "short", seeds=3, method=method, depth=20, init="paper"), errors, strict=True
        ):
            write_run(tmp_path, plan, errors=(50.0, error))
    broken = write_run(tmp_path, plans("table-4", method="pbwn", depth=20, init="paper")[0])
    (broken / "result.json").write_text("{")
    return collect(tmp_path)


def test_the_whole_report_has_verdict_interval_runs_scale_and_hardware(report):
    text = whole(report)
    assert "## Table 3: Residual networks on CIFAR-10 (scale short)" in text
    assert (
        "| PBWN against BaseLine, Res-20 | **holds, preliminary** | -1.00 [-1.20, -0.80] | 3, 3 | short | 0.14 ["
        in text
    )
    assert "Run on An abacus, 1 thread per run, torch 2.13.0." in text
    assert "“our methods consistently achieve better performance when using different depths”" in text
    assert "At Res-20 BaseLine (7.94) is better than PBWN-Riem (8.03)" in text


def test_each_claim_stands_once_above_its_comparisons_and_at_its_largest_scale():
    report = collect(Path(__file__).parents[3] / "results")
    for table in (overview(report), summary(report)):
        claims = re.findall(r"^\| \**((?:Figure|Table) \w+: [^|*]+)", table, flags=re.MULTILINE)
        assert len(claims) == len(set(claims)) > 10
        assert [words for words in claims if "lower than that of the Ladder network without projection" in words]
    # Table 8 has runs at two scales: the summary shows the larger.
    [line] = [line for line in summary(report).splitlines() if "without projection |" in line]
    assert line.endswith("| paper |")


def test_the_whole_report_names_what_was_not_run_and_what_was_left_out(report):
    text = whole(report)
    assert (
        "- Table 8, Semi-supervised learning on permutation invariant MNIST: `pbwn reproduce table-8 --scale paper`"
        in text
    )
    beside = f"--out {report.root.name}"
    assert f"- Table 3, 69 runs: `pbwn reproduce table-3 --scale short {beside}` (about " in text
    assert "- Table 3, at paper scale: `pbwn reproduce table-3 --scale paper`" in text
    [line] = [line for line in text.splitlines() if line.startswith("- `table-4/paper/resnet-20-pbwn-seed1-")]
    assert "result.json cannot be read" in line
    assert str(report.root) not in text


def test_a_claim_without_enough_runs_says_which_are_missing_and_what_they_cost(report):
    text = whole(report)
    missing = "Missing: 69 runs of this scale's protocol (Normal, depth 32: 3; Normal, depth 44: 3; "
    assert missing in text
    [line] = [line for line in text.splitlines() if line.startswith(missing)][:1]
    assert line.endswith("GPU hours: `pbwn reproduce table-3 --scale short`.")
    assert "Missing: 45 runs" not in text.partition("PBWN-Epoch' works the best")[0]
    assert "Missing: 42 runs of this scale's protocol (PBWN-Riem, depth 20: 3; " in text  # of the three variants alone


def test_where_all_runs_are_there_a_claim_says_how_many_seeds_would_decide_it(tmp_path):
    for interval in (1, 10, 20, 50, 100):
        for plan in plans("figure-2b", seeds=5, interval=interval, sizes="paper", init="paper"):
            error = 1.1 + plan.labels["seed"] / 10 if interval == 100 else 1.0
            write_run(tmp_path, plan, errors=(9.0, error))
    words = (
        "Missing: at the measured spread, about 13 seeds would decide the open comparisons that have an interval "
        "(16 more runs, a few GPU minutes): "
    )
    command = "`pbwn reproduce figure-2b --scale paper --seeds 13 --only interval=1,interval=100`."
    assert words + command in whole(collect(tmp_path))


def test_a_claim_on_the_first_and_the_last_column_misses_the_runs_of_these_alone(report):
    [missing] = [line for line in whole(report).splitlines() if "depth=20,depth=110" in line]
    assert "of this scale's protocol (" in missing
    assert "depth 110: 3" in missing
    assert "depth 56" not in missing


def test_what_is_missing_is_priced_in_core_hours_where_the_runs_tell_their_times(tmp_path):
    for method in ("normal", "pbwn"):
        for plan in plans("table-8", "short", seeds=2, method=method, labels=20, denoising="authors", init="paper"):
            folder = write_run(tmp_path, plan)
            (folder / "timing.jsonl").write_text('{"step": 100, "seconds": 0.024}\n')
    line, *_ = [line for line in whole(collect(tmp_path)).splitlines() if line.startswith("Missing: ")]
    # 15,000 iterations of 24 ms are 6 minutes with 20 labels; with more labels an iteration has more FLOPs.
    found = re.search(r"14 runs of this scale's protocol .* or ([\d.]+) core hours", line)
    assert 14 * 0.1 < float(found[1]) < 14 * 0.2


def test_of_a_search_that_was_hardly_begun_the_price_of_the_settings_with_runs_is_told_too(tmp_path):
    for method in ("normal", "pbwn"):
        labels = {"labels": 20, "lr": 0.001, "weight_decay": 0.0001, "denoising": "authors", "init": "paper"}
        for plan in plans("table-8", seeds=2, method=method, **labels):
            write_run(tmp_path, plan)
    text = whole(collect(tmp_path))
    assert "Missing: 536 runs of this scale's protocol" in text
    assert "Of these, 56 runs are at the setting that already has some (about" in text
    assert "): `--only lr=0.001,weight_decay=0.0001`." in text


def test_the_table_of_the_readme_carries_what_has_to_be_known_of_a_test(report, tmp_path):
    text = summary(report)
    assert "**undecided** | 1 holds, 6 undecided | 0 to 3 | short |" in text
    assert "*Here batch normalisation follows every convolution" in text
    for method, end in (("pbwn", 0.5), ("pbwn-riem", 0.5), ("normal", 0.1)):
        for plan in plans("figure-2a", seeds=3, method=method, sizes="paper", init="paper", lr=0.3):
            write_run(tmp_path / "more", plan, losses=(1.0 if method == "normal" else 0.2, end))
    [line] = [line for line in summary(collect(tmp_path / "more")).splitlines() if "averaged over the run, is" in line]
    assert "*Our test, not the paper's wording" in line
    assert "*The final training loss: 0.5 for PBWN-Riem, 0.1 for Normal.*" in line


def test_every_line_of_a_markdown_table_has_the_same_number_of_fields(report):
    lines = whole(report).splitlines()
    for before, after in pairwise(lines):
        if before.startswith("|") and after.startswith("|"):
            assert before.count("|") == after.count("|")


def test_names_of_artefacts_become_headings():
    assert [heading("figure-2a"), heading("table-3")] == ["Figure 2a", "Table 3"]
