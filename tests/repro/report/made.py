"""A report made by hand: every kind of section, with values that can be looked for."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd

from pbwn_repro.bench.measuring import MEASUREMENTS
from pbwn_repro.bench.parts import Parts
from pbwn_repro.catalog import find
from pbwn_repro.config import read_config
from pbwn_repro.report.model import OUTCOMES, Cell, Curve, Plot, Report, Row, Section, Summary, Table, Verdict
from pbwn_repro.report.page import page
from pbwn_repro.report.runs import COLUMNS
from pbwn_repro.runs.resolution import complete

ROOT = Path("runs")
ENVIRONMENT = {"device": "cpu", "packages": {"torch": "2.13.0"}, "processor": "A <fast> one", "threads": 1}
METHODS = {"Normal": "normal", "BaseLine": "normal", "WN": "wn", "PBWN-Riem": "pbwn-riem", "PBWN": "pbwn"}


@cache
def report() -> Report:
    """Three figures, three tables, one of them in a variant, and a folder that was left out."""
    table = section("table-3", table=table_of("table-3"), notes=("Trained on JPEG copies & marked <so>.",))
    plans = find("table-3").plans("paper")
    sections = (
        landscapes(),
        section(
            "figure-2a",
            plots=(curves("figure-2a-paper-training-loss", ("Normal", "PBWN-Riem", "PBWN"), count=5, main=True),),
        ),
        section(
            "figure-2b",
            plots=(curves("figure-2b-paper-training-loss", [f"T = {t}" for t in (1, 10, 20, 50, 100)], main=True),),
        ),
        replace(
            table,
            plots=(curves("table-3-paper-weight-norms", ("BaseLine", "WN", "PBWN"), count=5),),
            missing=tuple(plans[:12]),
        ),
        section("table-1", table=table_of("table-1", shift=80.0), scale="smoke", variant={"init": "authors"}),
        section("table-6", table=table_of("table-6")),
    )
    return Report(
        ROOT, sections, {ROOT / "table-1/paper/inception-wn-seed1-0badf00d": "result.json lacks <test_error>"}
    )


def section(name, *, scale="paper", variant=None, **shown) -> Section:
    artefact = find(name)
    plans = artefact.plans(scale, seeds=2)[:6] if hasattr(artefact, "plans") else []
    runs = pd.DataFrame([run(plan) for plan in plans], columns=None if plans else COLUMNS)
    return Section(artefact, scale, runs, variant or {}, **{"verdicts": verdicts(name), **shown})


def run(plan) -> dict:
    fields, _ = complete(plan.overrides)
    fields["data"]["digest"] = "0" * 64
    config = read_config(fields)
    path = ROOT / plan.artefact / plan.scale / config.run_name
    result = {"deviation": 1e-7, "steps": 62_500}
    row = {"path": path, "config": config, "seed": config.seed, "result": result, "environment": ENVIRONMENT}
    return {**row, "state": "done", "test_error": 6.5, "best_test_error": 6.25, **plan.labels}


def verdicts(name) -> tuple[Verdict, ...]:
    """All outcomes in turn; the first claim on a table has a comparison in each of its columns."""
    given = []
    table = find(name).table
    for position, claim in enumerate(find(name).claims):
        columns = [column.title for column in table.columns] if position == 0 and table else [""]
        for shift, column in enumerate(columns):
            outcome = OUTCOMES[position % 3]
            middle = None if outcome == "undecided" else position + 0.1 * shift - 0.4
            ends = (None, None) if middle is None else (middle - 0.3, middle + 0.3)
            sentence = f"What the runs say to {claim.name}{shift}: {claim.words}."
            dots = () if middle is None else (middle - 0.1, middle + 0.1)
            given.append(Verdict(claim, outcome, sentence, middle, *ends, (5, 5), "PBWN", "Normal", column, dots=dots))
    return tuple(given)


def table_of(name, shift=0.0) -> Table:
    """The paper's own table, with ours a little beside it; every third cell has no runs yet."""
    paper = find(name).table
    titles = {column.title: column for column in paper.columns}
    cells = {}
    for position, ((key, column), number) in enumerate(paper.numbers.items()):
        value = number.value + shift + 0.01 * (position % 7) - 0.03
        missing = key in paper.others or position % 7 == 3
        ours = (
            Summary((value - 0.1, value + 0.1), value, 0.14, diverged=int(position % 5 == 4)) if not missing else None
        )
        cells[key, titles[column]] = Cell(ours, number)
    rows = tuple(Row(key, title, key) for key, title in paper.rows.items())
    return Table(rows, paper.columns, cells, paper.unit)


def curves(name, titles, count=1, main=False) -> Plot:
    steps = tuple(range(10, 4690, 60))
    drawn = []
    for position, title in enumerate(titles):
        mean = tuple(
            2.3 * math.exp(-step / (260 + 90 * position)) + 0.002 * (position + 1) + 0.02 * math.sin(step / 7) ** 2
            for step in steps
        )
        row = Row(title, title, METHODS.get(title, title.replace("T = ", "pbwn-t")))
        low, high = (tuple(share * value for value in mean) for share in (0.8, 1.2))
        drawn.append(Curve(row, steps, mean, low, high, count))
    return Plot(name, "Training loss by iteration", "iteration", "training loss", tuple(drawn), y_log=True, main=main)


def landscapes() -> Section:
    options = find("figure-1").options("smoke")
    found = MEASUREMENTS["landscape"](options, Parts(Path("nowhere")), lambda done, total, doing: None)
    return section("figure-1", landscapes=found, measurement=ROOT / "figure-1", environments=(ENVIRONMENT,))


@cache
def rendered() -> str:
    """The page of the report; drawing takes seconds."""
    return page(report())
