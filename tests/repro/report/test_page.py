"""The page, its figures and files, made from a report by hand."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pbwn_repro.catalog import ARTEFACTS
from pbwn_repro.cli import app
from pbwn_repro.exit_codes import USAGE, exit_code
from pbwn_repro.report.figures import MINUS, of_plot, spread
from pbwn_repro.report.forest import AGAINST, FOR, forest
from pbwn_repro.report.markdown import texts, without_literature
from pbwn_repro.report.model import (
    MEANINGS,
    Cell,
    Curve,
    Decided,
    Plot,
    Row,
    Verdict,
    claims_tested,
    good_news,
    meaning,
)
from pbwn_repro.report.page import best, page, signed, tallies, write_files
from pbwn_repro.report.palette import METHODS, strokes, tones
from pbwn_repro.report.sections import collect
from repro.report.made import curves, rendered, report, table_of, verdicts

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Elements(HTMLParser):
    """Every element with its attributes, the text of table cells, and whether all that opens is closed."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.cells = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open:
            self.cells[-1] += data


@pytest.fixture(scope="module")
def whole():
    return report()


@pytest.fixture(scope="module")
def text():
    return rendered()


@pytest.fixture(scope="module")
def elements(text):
    return Elements(text)


def test_every_element_is_closed(elements):
    assert elements.open == []


def test_the_page_asks_for_nothing_but_itself(elements):
    for tag, attributes in elements.found:
        assert tag not in ("script", "iframe", "img", "object")
        places = [attributes[name] for name in ("src", "href", "xlink:href") if name in attributes]
        assert all(place.startswith(("#", "data:")) for place in places), (tag, places)
    assert "url(http" not in "".join(value or "" for _, attributes in elements.found for value in attributes.values())


def test_names_of_elements_are_unique_and_links_lead_somewhere(elements):
    names = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(names) == len(set(names))
    links = [attributes.get("href") or attributes.get("xlink:href") for _, attributes in elements.found]
    assert {link[1:] for link in links if link and link.startswith("#")} <= set(names)


def test_every_cell_of_every_table_is_in_the_page(whole, elements):
    shown = [" ".join(cell.split()) for cell in elements.cells]
    for section in whole.sections:
        quoted = section.artefact.table.others if section.table else ()
        for (row, _), cell in section.table.cells.items() if section.table else ():
            ours, theirs = texts(cell)
            seeds = f" ({cell.paper.seeds})" if cell.paper and cell.paper.seeds else ""
            is_quoted = cell.paper and row in quoted  # nothing of theirs is run here
            assert (f"{theirs}{seeds}" if is_quoted else f"{ours} {theirs}{seeds}") in shown


def test_every_claim_and_what_was_found_is_in_the_page(whole, text):
    for section in whole.sections:
        for verdict in section.verdicts:
            assert text.count(verdict.sentence.replace("'", "&#39;")) >= 1


def test_claims_are_counted_at_their_largest_scale_and_not_again_in_variants(whole):
    assert list(tallies(whole)) == ["paper"]
    [variant] = [section for section in whole.sections if section.variant]
    smaller = replace(whole.sections[3], scale="short")
    assert tallies(replace(whole, sections=(*whole.sections, smaller))) == tallies(whole)
    smoke = replace(variant, variant={})
    others = [section for section in whole.sections if section.artefact is not smoke.artefact]
    counted = tallies(replace(whole, sections=(*others, smoke)))
    assert list(counted) == ["paper", "smoke"]
    assert sum(counted["smoke"].values()) == len(smoke.claims)


def test_what_has_no_finished_run_is_listed_and_takes_no_room(whole):
    unfinished = replace(whole.sections[1], all_runs=whole.sections[1].all_runs.head(0))
    text = page(replace(whole, sections=(whole.sections[-1], unfinished)))
    assert 'id="figure-2a-paper"' not in text
    assert '<code class="long">pbwn reproduce figure-2a <span class="option">--scale</span> paper</code>' in text
    assert ">Effect of norm projection</td>" in text


def test_what_run_folders_hold_cannot_become_part_of_the_page(text):
    assert "marked &lt;so&gt;" in text
    assert "A &lt;fast&gt; one" in text
    assert "lacks &lt;test_error&gt;" in text
    assert "<so>" not in text


def test_every_figure_is_described_and_drawn_once(whole, elements):
    drawn = [attributes["aria-label"] for tag, attributes in elements.found if tag == "svg" and "role" in attributes]
    assert len(drawn) == len(set(drawn)) > len(whole.sections)
    assert all(len(words) > 30 for words in drawn)


def test_colours_in_the_page_follow_its_theme():
    drawing = of_plot(curves("a-plot", ("Normal", "PBWN"))).inline
    assert "var(--pbwn)" in drawing
    assert not [tone for tone in tones() if tone.light in drawing]


def test_numbers_at_the_axes_keep_all_their_digits():
    drawing = of_plot(curves("a-plot", ("Normal", "PBWN"))).inline
    assert ">0.01<" in drawing
    assert not re.search(r' d="[^"]*\.\d{3}', drawing)
    falling = (1.0, 0.0005)
    row = Row("pbwn", "PBWN", "pbwn")
    small = Plot("small", "", "", "", (Curve(row, (1, 2), falling, falling, falling, 1),), y_log=True)
    assert ">0.001<" in of_plot(small).inline


def test_a_figure_is_the_same_every_time(tmp_path):
    drawings = [of_plot(curves("same", ("WN", "PBWN"), count=3)) for _ in range(2)]
    files = [drawing.write(tmp_path / str(id(drawing)), pdf=True) for drawing in drawings]
    assert [file.suffix for file in files[0]] == [".svg", ".pdf"]
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_the_page_shows_the_figure_that_is_written_beside_it(tmp_path):
    drawing = of_plot(curves("one", ("WN", "PBWN")))
    [file] = drawing.write(tmp_path)
    lines = re.findall(r' d="M ([\d.]+)', file.read_text())
    assert len(lines) > 4
    assert [f"{float(place):.0f}" for place in re.findall(r' d="M ([\d.]+)', drawing.inline)] == [
        f"{float(place):.0f}" for place in lines
    ]


def test_a_method_has_one_colour_whoever_is_beside_it_and_intervals_have_their_own():
    assert strokes(["layer 3", "wn", "pbwn"])["pbwn"] == METHODS["pbwn"]
    assert strokes(["pbwn-t7"])["pbwn-t7"] == strokes(["pbwn-t10"])["pbwn-t10"]
    looks = [(stroke.tone.light, stroke.dashes) for stroke in METHODS.values()]
    assert len({colour for colour, _ in looks}) == len({dashes for _, dashes in looks}) == len(looks)


def test_the_best_of_ours_is_marked_where_the_paper_marks_its_own():
    table = table_of("table-6")
    assert best(table) == {("pbwn-epoch", table.columns[0])}
    assert best(table_of("table-5")) == set()


@pytest.mark.parametrize(
    ("found", "firm", "outcome"),
    [
        (["holds", "holds"], False, "holds"),
        (["holds", "undecided"], True, "undecided"),
        (["holds", "does not hold", "undecided"], True, "does not hold"),
        (["holds", "does not hold", "undecided"], False, "undecided"),
    ],
)
def test_a_claim_holds_if_each_comparison_does_and_falls_by_one_that_stands_among_all(found, firm, outcome):
    one = verdicts("table-3")[0]
    given = tuple(replace(one, outcome=each, firm=firm) for each in found)
    assert Decided(one.claim, given).outcome == outcome


def test_a_claim_is_preliminary_if_all_that_speaks_for_its_outcome_is():
    one = replace(verdicts("table-3")[0], outcome="does not hold")
    few, many = replace(one, preliminary=True), replace(one, preliminary=False)
    assert Decided(one.claim, (few, few)).preliminary
    assert not Decided(one.claim, (few, many)).preliminary
    assert not Decided(one.claim, (replace(few, outcome="undecided"),)).preliminary


def test_differences_are_drawn_on_one_scale_with_zero_in_sight():
    one = verdicts("table-3")[0]
    drawn = forest([replace(one, difference=2.0, low=1.0, high=3.0), replace(one, difference=4.0, low=None, high=None)])
    assert drawn.zero < drawn.lines[0].low < drawn.lines[0].middle < drawn.lines[0].high
    assert drawn.lines[1].low == drawn.lines[1].high == drawn.lines[1].middle
    assert drawn.lines[0].dots[0] < drawn.lines[0].dots[1]
    assert forest([]) is None


@pytest.mark.parametrize(
    ("name", "unit", "sides"),
    [
        ("table-3-better", "test error, difference in points; lower is better", (FOR, AGAINST)),
        ("table-3-alike", "test error, difference in points; lower is better", ("A lower", "higher")),
        (
            "table-3-grows",
            "growth of the gain in test error, in points; more is better",
            ("against it", "for the claim"),
        ),
        ("table-5-pbwn", "extra time over Normal, in %; less is better", ("less time", "more time")),
        ("table-8-better", "test error, difference in points; lower is better", ("A better", "B better")),
        ("figure-2a-rate", "final training loss, difference; lower is better", (FOR, AGAINST)),
        (
            "figure-2b-jumps",
            "largest rise of the loss in the first epoch, difference; the claim says higher",
            (AGAINST, FOR),
        ),
    ],
)
def test_a_plot_of_differences_names_its_unit_and_what_each_side_means(name, unit, sides):
    found = {claim.name: claim for artefact in ARTEFACTS.values() for claim in artefact.claims}
    one = Verdict(found[name], "holds", "", -1.0, -2.0, 0.5, (5, 5), "A", "B")
    pair = [one, replace(one, against="C")] if name == "table-3-better" else [one]
    drawn = forest(pair, "final_training_loss")
    assert (drawn.unit, drawn.sides) == (unit, sides)


def test_each_line_of_a_plot_of_differences_has_the_name_that_tells_it_from_the_others():
    one = Verdict(verdicts("table-3")[0].claim, "holds", "", -1.0, -2.0, 0.5, (5, 5), "A", "B", "first")
    assert [line.name for line in forest([one]).lines] == [""]
    assert [line.name for line in forest([one, replace(one, row="C")]).lines] == ["A", "C"]
    pairs = [one, replace(one, against="D", column="second")]
    assert [line.name for line in forest(pairs).lines] == ["against B, first", "against D, second"]


def test_the_margin_of_a_claim_is_drawn_too():
    found = {claim.name: claim for artefact in ARTEFACTS.values() for claim in artefact.claims}
    drawn = forest([Verdict(found["table-5-pbwn"], "holds", "", 1.0, 0.5, 2.0, (5, 5), "A", "B")])
    assert drawn.ends == (0.0, 10.0)
    assert drawn.lines[0].high < drawn.edges[0] == 95.0


@pytest.mark.parametrize(
    ("name", "outcome", "means", "news"),
    [
        ("table-3-better", "holds", "good", ""),
        ("table-3-better", "does not hold", "bad", ""),
        ("table-5-pbwn", "does not hold", "bad", ""),
        ("table-5-riem", "holds", "bad", "it costs time"),
        ("table-5-riem", "does not hold", "good", "good news: it costs less"),
        ("table-5-riem", "undecided", "open", ""),
        ("figure-2a-rate", "does not hold", "neutral", ""),
        ("figure-1-scaled", "holds", "neutral", ""),
        ("figure-1-projected", "holds", "neutral", ""),
    ],
)
def test_the_colour_of_a_verdict_is_what_it_means_to_a_user(name, outcome, means, news):
    [claim] = [claim for artefact in ARTEFACTS.values() for claim in artefact.claims if claim.name == name]
    assert (meaning(claim, outcome), good_news(claim, outcome)) == (means, news)


def test_the_legend_says_what_each_colour_means(whole, text):
    counted = [key for tally in tallies(whole).values() for key in tally]
    assert {means for _, means in counted} >= {"good", "open"}
    for outcome, means in counted:
        shown = re.findall(rf'<li class="{means}">\d+ ([^<]+)</li>', text)
        assert shown
        if outcome != "undecided":
            assert all(line.endswith(f"({MEANINGS[means]})") for line in shown)


def test_the_number_of_a_card_is_not_torn_from_its_unit():
    shown = page(collect(Path(__file__).parents[3] / "results"))
    cards = shown[shown.index('<ul class="cards"') : shown.index("</ul>", shown.index('<ul class="cards"'))]
    assert re.search("\\d\N{NO-BREAK SPACE}% \\(median\N{NO-BREAK SPACE}\\d+.\\d\\d\N{NO-BREAK SPACE}%\\)", cards)
    assert not re.search(r"\d %| ± ", cards)


def test_a_bare_command_in_a_remark_is_set_as_code_and_its_options_do_not_break(whole):
    remarks = ("The paper's data: pbwn reproduce figure-2a --scale paper. Also `--only lr=1`, and day-old words.",)
    shown = page(replace(whole, sections=(replace(whole.sections[0], remarks=remarks),)))
    assert '<code class="long">pbwn reproduce figure-2a <span class="option">--scale</span> paper</code>. Also' in shown
    assert '<code><span class="option">--only</span> lr=1</code>, and day-old words.' in shown


def test_the_overview_has_each_claim_once_with_a_verdict_for_the_largest_scale_and_each_variant(whole):
    again = replace(whole.sections[3], variant={"init": "authors"})
    smaller = replace(whole.sections[3], scale="short")
    found = claims_tested((*whole.sections, smaller, again))["Table 3"]
    assert [each.claim for each in found] == [decided.claim for decided in again.claims]
    assert all(
        [section.setting for section, _ in each.sections] == ["paper scale", "paper scale, init = authors"]
        for each in found
    )


def test_the_paper_is_quoted_in_the_first_section_of_an_artefact_alone(whole):
    again = replace(whole.sections[3], variant={"init": "authors"}, plots=())
    text = page(replace(whole, sections=(*whole.sections, again)))
    assert text.count("consistently achieve better performance") == 1


def test_numbers_of_others_stand_in_the_first_table_alone():
    quoted = table_of("table-6")
    ours = {"normal", "wn", "pbwn-epoch"}
    cells = {place: cell if place[0] in ours else Cell(None, cell.paper) for place, cell in quoted.cells.items()}
    kept = without_literature(replace(quoted, cells=cells))
    assert {row.key for row in kept.rows} <= ours
    assert len(quoted.rows) > len(kept.rows) > 0
    assert without_literature(kept) is kept


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((-0.000282, -0.000573, 0.000158), f"{MINUS}0.00028"),
        ((2.345, 1.9, 2.8), "+2.35"),
        ((-0.01, -3.0, 3.0), "+0.0"),
        ((2.345, None, None), "+2.35"),
    ],
)
def test_differences_have_the_digits_that_their_interval_knows(found, words):
    assert signed(*found) == words


def test_names_at_the_ends_of_curves_do_not_overlap():
    places = spread([0.5, 0.5, 0.5, 0.99, 1.0], 0.06)
    gaps = [above - below for below, above in pairwise(places)]
    assert min(gaps) > 0.0599
    assert max(places) <= 1.0


def test_a_report_is_a_page_markdown_tables_and_figures(whole, tmp_path):
    small = replace(whole, root=tmp_path, sections=whole.sections[-1:], left_out={})
    files = {str(file.relative_to(tmp_path)) for file in write_files(small)}
    tables = {f"tables/table-6-paper.{kind}" for kind in ("md", "csv", "tex")}
    assert files == {
        "report.html",
        "report.md",
        *tables,
        "figures/table-6-paper-dots.svg",
    }
    assert all((tmp_path / file).stat().st_size for file in files)
    elsewhere = write_files(small, tmp_path / "elsewhere", pdf=True)
    with_pdf = files | {"figures/table-6-paper-dots.pdf"}
    assert {str(file.relative_to(tmp_path / "elsewhere")) for file in elsewhere} == with_pdf


def test_a_folder_without_runs_is_an_error_that_says_what_to_do(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(result.exception, ValueError)
    assert "holds no finished runs" in str(result.exception)
    assert "pbwn reproduce" in str(result.exception)
    assert exit_code(result.exception) == USAGE
