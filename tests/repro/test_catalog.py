"""Every cell of every table is there, and the paper's own bold cells and contradictions follow from the numbers."""

from itertools import pairwise

import pytest

from pbwn_repro.catalog import ARTEFACTS, EXPERIMENTS, TrainedArtefact
from pbwn_repro.catalog.artefact import read_table
from pbwn_repro.catalog.claims import Alike, Better, Grows, MostlyBest
from pbwn_repro.models import recipe
from pbwn_repro.report.verdicts import compare_numbers

TABLES = {name: artefact.table for name, artefact in ARTEFACTS.items() if artefact.table}
CLAIMS = [(name, claim) for name, artefact in ARTEFACTS.items() for claim in artefact.claims]
FIVE = ("normal", "wn", "pbwn-riem", "pbwn", "pbwn-epoch")


def test_the_tables_are_the_eight_of_the_paper():
    assert list(TABLES) == [f"table-{number}" for number in range(1, 9)]
    assert {name: len(table.numbers) for name, table in TABLES.items()} == {
        **{"table-1": 10, "table-2": 10, "table-3": 30, "table-4": 25},
        **{"table-5": 15, "table-6": 6, "table-7": 8, "table-8": 19},
    }


@pytest.mark.parametrize("name", TABLES)
def test_each_method_has_a_number_in_each_column(name):
    table = TABLES[name]
    ours = [key for key in table.rows if key not in table.others]
    assert all((key, column.title) in table.numbers for key in ours for column in table.columns)
    if name in ("table-1", "table-2", "table-3", "table-4", "table-5"):
        assert tuple(ours) == FIVE


@pytest.mark.parametrize("name", [name for name in TABLES if name != "table-5"])
def test_the_bold_numbers_are_the_lowest_of_each_column(name):
    table = TABLES[name]
    for column in table.columns:
        cells = {key: number for (key, title), number in table.numbers.items() if title == column.title}
        lowest = min(number.value for number in cells.values())
        bold = {key for key, number in cells.items() if number.bold}
        assert bold == {key for key, number in cells.items() if number.value == lowest}


def test_seeds_are_those_that_the_paper_states_and_none_where_it_does_not():
    seeds = {name: {number.seeds for number in table.numbers.values()} for name, table in TABLES.items()}
    assert seeds == {
        **{"table-1": {5}, "table-2": {5}, "table-3": {1, 5}, "table-4": {5}},
        **{"table-5": {None}, "table-6": {None}, "table-7": {None}, "table-8": {10, None}},
    }
    assert TABLES["table-3"].numbers["he-et-al", "Res-20"].seeds == 1
    assert TABLES["table-3"].numbers["he-et-al", "Res-110"].seeds == 5


@pytest.mark.parametrize("name", [name for name in TABLES if name != "table-5"])
def test_the_keys_are_the_values_of_the_catalogs_axes(name):
    artefact, table = ARTEFACTS[name], TABLES[name]
    assert isinstance(artefact, TrainedArtefact)
    axes = {axis.role: axis for axis in artefact.axes("paper")}
    assert {str(value) for value in axes["row"].values} == set(table.rows) - table.others
    columns = [str(value) for value in axes["column"].values] if "column" in axes else [""]
    assert list(dict.fromkeys(column.value for column in table.columns)) == columns


def test_a_cell_that_cannot_be_read_is_named():
    with pytest.raises(ValueError, match=r"'6\.27 \+- 0\.34' is not a number"):
        read_table("", TABLES["table-6"].columns, "pbwn | PBWN | 6.27 +- 0.34", seeds=5)


def contradictions(table, criterion):
    """The cells that speak against a claim, worked out from the table's own numbers."""
    titles = [column.title for column in table.columns]

    def value(row, title):
        return table.numbers[row, title].value

    found = set()
    if isinstance(criterion, Better):
        pairs = [(row, title) for row in criterion.rows for title in titles]
        found = {
            (row, title) for row, title in pairs if any(value(row, title) >= value(o, title) for o in criterion.than)
        }
    elif isinstance(criterion, Grows):
        for row in criterion.rows:
            gains = {title: value(criterion.than, title) - value(row, title) for title in titles}
            found |= {(row, after) for before, after in pairwise(titles) if gains[after] < gains[before]}
    elif isinstance(criterion, MostlyBest):
        lowest = {title: min(value(row, title) for row in criterion.among) for title in titles}
        found = {(criterion.row, title) for title in titles if value(criterion.row, title) > lowest[title]}
    elif isinstance(criterion, Alike):
        for title in titles:
            for row in criterion.rows:
                for other in criterion.rows:
                    both = (table.numbers[key, title] for key in (row, other))
                    if row != other and not compare_numbers(*both).contains_zero:
                        found |= {(row, title)}
    return found


@pytest.mark.parametrize("name", TABLES)
def test_the_flagged_cells_are_those_that_contradict_the_claim(name):
    for claim in ARTEFACTS[name].claims:
        assert set(claim.contradicted) == contradictions(TABLES[name], claim.criterion), claim.name


def test_baseline_beats_two_variants_in_the_shallowest_network():
    [claim] = [claim for _, claim in CLAIMS if claim.name == "table-3-better"]
    assert {("pbwn-riem", "Res-20"), ("pbwn", "Res-20")} <= set(claim.contradicted)


def test_each_artefact_has_claims_with_unique_names_and_known_rows():
    assert len({claim.name for _, claim in CLAIMS}) == len(CLAIMS)
    assert {name for name, _ in CLAIMS} == set(ARTEFACTS)
    for name, claim in CLAIMS:
        assert claim.name.startswith(name)
        if name in TABLES:
            assert set(getattr(claim.criterion, "rows", ())) <= set(TABLES[name].rows)


@pytest.mark.parametrize("name", [name for name, each in ARTEFACTS.items() if isinstance(each, TrainedArtefact)])
def test_the_short_scale_has_the_papers_schedule_squeezed_into_fewer_epochs(name):
    for plan in ARTEFACTS[name].plans("short", seeds=1):
        full = recipe(plan.overrides["model"])
        if "schedule.drops" in plan.overrides:
            share = plan.overrides["epochs"] / full["epochs"]
            assert plan.overrides["schedule.drops"] == [round(drop * share) for drop in full["schedule"]["drops"]]
        else:
            assert full.get("schedule", {}).get("kind") != "steps"


def test_a_learning_rate_that_is_not_searched_is_that_of_the_recipe_but_for_controls():
    for name in ("table-1", "table-2", "table-3", "table-4", "table-6"):
        for plan in ARTEFACTS[name].plans("paper", seeds=1):
            assert plan.overrides["lr"] == recipe(plan.overrides["model"])["optimizer"]["lr"]


def test_the_ladders_differences_are_not_significant_by_the_papers_own_numbers():
    numbers = TABLES["table-8"].numbers
    for column in TABLES["table-8"].columns:
        interval = compare_numbers(numbers["pbwn", column.title], numbers["normal", column.title])
        assert interval.difference < 0
        assert interval.contains_zero


def test_the_grids_of_the_step_rules_are_the_same_for_all_methods():
    counts = {name: len(EXPERIMENTS[name].plans("short")) for name in ("step-rules-gpt", "step-rules-resnet")}
    assert counts == {"step-rules-gpt": 4 * 5 * 3, "step-rules-resnet": 4 * 3 * 2}
    assert len(EXPERIMENTS["transfer"].plans("short")) == 2 * 3 * 5


def test_the_best_setting_has_further_seeds_and_no_other():
    artefact = EXPERIMENTS["step-rules-gpt"]
    best = [{"method": "pbwn", "lr": 0.01, "weight_decay": 0.0}]
    found = artefact.further_plans(best, "short")
    assert [dict(plan.labels) for plan in found] == [{**best[0], "seed": 2}, {**best[0], "seed": 3}]
    assert not artefact.further_plans(best, "short", {"method": {"normal"}})
    assert not EXPERIMENTS["transfer"].further_plans([{"method": "normal", "width": 96, "lr": 0.01}], "short")


@pytest.mark.parametrize(
    ("name", "home", "count"), [("step-rules-resnet", "table-3", 2), ("transfer", "step-rules-gpt", 4)]
)
def test_a_run_that_two_artefacts_show_is_the_same_run(name, home, count):
    artefact, others = EXPERIMENTS[name], {**ARTEFACTS, **EXPERIMENTS}[home]
    for scale in ("short", "paper"):
        theirs = {plan.identity for plan in others.plans(scale, seeds=1)}
        shared = [plan for plan in artefact.plans(scale, seeds=1) if plan.artefact == home]
        assert len(shared) == count
        assert {plan.identity for plan in shared} <= theirs
