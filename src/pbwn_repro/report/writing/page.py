"""The report as one page of HTML that needs nothing but itself."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import pbwn
from pbwn_repro.catalog import SCALES
from pbwn_repro.report.drawing.figure import MINUS
from pbwn_repro.report.drawing.inline import inline
from pbwn_repro.report.drawing.palette import tones
from pbwn_repro.report.model import Outcome, Report
from pbwn_repro.report.writing.forest import decided, forest, plural
from pbwn_repro.report.writing.markdown import heading
from pbwn_repro.report.writing.missing import missing
from pbwn_repro.report.writing.price import ASSUMPTION
from pbwn_repro.report.writing.reading import CAUTIONS, RULES
from pbwn_repro.report.writing.tables import texts
from pbwn_repro.report.writing.views import finished, view

CITATION = """@article{huang2017projection,
  title   = {Projection Based Weight Normalization for Deep Neural Networks},
  author  = {Huang, Lei and Liu, Xianglong and Lang, Bo and Li, Bo},
  journal = {arXiv preprint arXiv:1710.02338},
  year    = {2017}
}"""

_SINGLE = "\N{LEFT SINGLE QUOTATION MARK}\\1\N{RIGHT SINGLE QUOTATION MARK}"


def page(report: Report) -> str:
    """Render the report."""
    sections = [view(section) for section in finished(report)]
    return (
        _templates()
        .get_template("page.html")
        .render(
            sections=sections,
            tallies=tallies(report),
            runs=len({run.path for section in report.sections for run in section.runs}),
            environments=environments(report),
            missing=missing(report),
            assumption=ASSUMPTION,
            rules=RULES,
            cautions=CAUTIONS,
            left_out={relative(path, report.root): reason for path, reason in report.left_out.items()},
            root=report.root.name or "runs",
            tones=tones(),
            citation=CITATION,
            version=pbwn.__version__,
        )
    )


def tallies(report: Report) -> dict[str, dict[str, int]]:
    """How many claims came out how, by scale: what a scale says is not mixed with what another or a variant says."""
    found = {scale: Counter[str]() for scale in reversed(SCALES)}
    for section in finished(report):
        if section.variant:
            continue
        found[section.scale].update(claim.outcome for claim in decided(section))
    return {
        scale: {outcome: outcomes[outcome] for outcome in get_args(Outcome) if outcomes[outcome]}
        for scale, outcomes in found.items()
        if outcomes
    }


def environments(report: Report) -> list[dict[str, Any]]:
    """The machines and versions that runs were made with, those of most runs first."""
    made = {run.path: run.environment for section in report.sections for run in section.runs}
    made |= {section.measurement: section.environments[0] for section in report.sections if section.measurement}
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for environment in made.values():
        facts = {name: value for name, value in environment.items() if name not in ("code", "data")}
        found[tuple(sorted(_flat(facts).items()))] += 1
    return [{"facts": dict(facts), "runs": count, "title": _title(dict(facts))} for facts, count in found.most_common()]


def relative(path: Path, root: Path) -> str:
    """A folder as seen from the report's own, so that pages do not tell where they were made."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("pbwn_repro.report.writing"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    templates.filters |= {
        "capitalise": lambda text: text[:1].upper() + text[1:],
        "code": lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))),
        "inline": lambda drawing, narrow: inline(drawing, narrow=narrow),
        "forest": forest,
        "heading": heading,
        "plural": plural,
        "quoted": lambda text: re.sub(r"`([^']+)'", _SINGLE, text),
        "signed": lambda value: f"{value:+.3g}".replace("-", MINUS),
        "slug": lambda text: text.replace(" ", "-"),
        "texts": texts,
    }
    return templates


def _flat(facts: dict[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in facts.items():
        flat |= {key: str(each) for key, each in value.items()} if isinstance(value, dict) else {name: str(value)}
    return flat


def _title(facts: dict[str, str]) -> str:
    known = [facts.get("processor") or facts.get("device", "unknown machine"), f"torch {facts.get('torch', 'unknown')}"]
    threads = facts.get("threads")
    return ", ".join([*known, *([f"{threads} thread{'' if threads == '1' else 's'}"] if threads else [])])
