"""A report made by hand: every kind of section, with values that can be looked for."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

from pbwn_repro.catalog import find
from pbwn_repro.config import read_config
from pbwn_repro.measurements import MEASUREMENTS
from pbwn_repro.measurements.parts import Parts
from pbwn_repro.paper import TABLES, claims_on
from pbwn_repro.report.model import Cell, Curve, Plot, Report, Run, Section, Summary, Table, Verdict
from pbwn_repro.report.writing.page import page
from pbwn_repro.runs.resolution import complete

ROOT = Path("runs")
ENVIRONMENT = {"device": "cpu", "packages": {"torch": "2.13.0"}, "processor": "A <fast> one", "threads": 1}
OUTCOMES = ("holds", "does not hold", "not enough runs")


@cache
def report() -> Report:
    """Three figures, three tables, one of them in a variant, and a folder that was left out."""
    table = section("table-3", table=table_of("table-3"), notes=("Trained on JPEG copies & marked <so>.",))
    sections = (
        landscapes(),
        section(
            "figure-2a", plots=(curves("figure-2a-paper-training-loss", ("Normal", "PBWN-Riem", "PBWN"), count=5),)
        ),
        section(
            "figure-2b", plots=(curves("figure-2b-paper-training-loss", [f"T = {t}" for t in (1, 10, 20, 50, 100)]),)
        ),
        replace(table, plots=(curves("table-3-paper-weight-norms", ("BaseLine", "WN", "PBWN"), count=5),), missing=12),
        section("table-1", table=table_of("table-1", shift=80.0), scale="smoke", variant={"init": "authors"}),
        section("table-6", table=table_of("table-6")),
    )
    return Report(
        ROOT, sections, {ROOT / "table-1/paper/inception-wn-seed1-0badf00d": "result.json lacks <test_error>"}
    )


def section(name, *, scale="paper", variant=None, **shown) -> Section:
    artefact = find(name)
    plans = artefact.plans(scale, seeds=2)[:6] if hasattr(artefact, "plans") else []
    given = {"table": None, "plots": (), "missing": 0, "notes": (), "verdicts": verdicts(name), **shown}
    return Section(artefact, scale, variant or {}, runs=tuple(run(plan) for plan in plans), **given)


def run(plan) -> Run:
    fields, _ = complete(plan.wishes)
    fields["data"]["digest"] = "0" * 64
    config = read_config(fields)
    result = {
        "test_error": 6.5,
        "best_test_error": 6.25,
        "test_error_exported": 6.5,
        "deviation": 1e-7,
        "steps": 62_500,
    }
    return Run(ROOT / plan.artefact / plan.scale / config.run_name, plan.labels, config, result, ENVIRONMENT)


def verdicts(name) -> tuple[Verdict, ...]:
    """All outcomes in turn; the first claim on a table has a comparison in each of its columns."""
    given = []
    for position, claim in enumerate(claims_on(name)):
        columns = [column.title for column in TABLES[name].columns] if position == 0 and name in TABLES else [""]
        for shift, column in enumerate(columns):
            outcome = OUTCOMES[position % 3]
            middle = None if outcome == "not enough runs" else position + 0.1 * shift - 0.4
            ends = (None, None) if middle is None else (middle - 0.3, middle + 0.3)
            sentence = f"What the runs say to {claim.name}{shift}: {claim.words}."
            given.append(Verdict(claim, outcome, middle, *ends, (5, 5), sentence, "PBWN", "Normal", column))
    return tuple(given)


def table_of(name, shift=0.0) -> Table:
    """The paper's own table, with ours a little beside it; every third cell has no runs yet."""
    paper = TABLES[name]
    columns = tuple(column.title for column in paper.columns)
    cells = {}
    for position, ((key, column), number) in enumerate(paper.numbers.items()):
        row = paper.rows[key]
        value = number.value + shift + 0.01 * (position % 7) - 0.03
        missing = key in paper.others or position % 7 == 3
        ours = (
            Summary((value - 0.1, value + 0.1), value, 0.14, diverged=int(position % 5 == 4)) if not missing else None
        )
        cells[row, column] = Cell(row, column, ours, number)
    return Table(tuple(paper.rows.values()), columns, cells, paper.unit)


def curves(name, titles, count=1) -> Plot:
    steps = tuple(range(10, 4690, 60))
    drawn = []
    for position, title in enumerate(titles):
        mean = tuple(
            2.3 * math.exp(-step / (260 + 90 * position)) + 0.002 * (position + 1) + 0.02 * math.sin(step / 7) ** 2
            for step in steps
        )
        drawn.append(
            Curve(title, steps, mean, tuple(0.8 * value for value in mean), tuple(1.2 * value for value in mean), count)
        )
    return Plot(name, "Training loss by iteration", "iteration", "training loss", tuple(drawn), y_log=True)


def landscapes() -> Section:
    options = find("figure-1").options("smoke")
    found = MEASUREMENTS["landscape"](options, Parts(Path("nowhere")), lambda done, total, doing: None)
    return section("figure-1", landscapes=found, measurement=ROOT / "figure-1", environments=(ENVIRONMENT,))


@cache
def rendered() -> str:
    """The page of the report; drawing takes seconds."""
    return page(report())
