"""The report as a self-contained HTML page, and as the Markdown, tables and figures beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import pbwn
from pbwn_repro.catalog import SCALES
from pbwn_repro.catalog.artefact import Column
from pbwn_repro.errors import UsageError
from pbwn_repro.metrics import METRICS
from pbwn_repro.report.figures import MINUS, Drawing, drawings
from pbwn_repro.report.findings import cards
from pbwn_repro.report.forest import forest
from pbwn_repro.report.markdown import (
    CAUTIONS,
    RULES,
    best_settings,
    comma_separated,
    comparisons,
    latex,
    markdown,
    protocol,
    texts,
    whole,
    without_literature,
)
from pbwn_repro.report.missing import ASSUMPTION, command, missing, needed
from pbwn_repro.report.model import (
    MEANINGS,
    OUTCOMES,
    Meaning,
    Outcome,
    Report,
    Section,
    Table,
    claims_tested,
    good_news,
    heading,
    in_words,
    plural,
)
from pbwn_repro.report.palette import own_stroke, tones
from pbwn_repro.report.sections import differences_from_paper
from pbwn_repro.report.statistics import Interval, digits

CITATION = """@article{huang2017projection,
  title   = {Projection Based Weight Normalization for Deep Neural Networks},
  author  = {Huang, Lei and Liu, Xianglong and Lang, Bo and Li, Bo},
  journal = {arXiv preprint arXiv:1710.02338},
  year    = {2017}
}"""
Drawn = dict[str, tuple[list[Drawing], list[Drawing]]]  # by the section's anchor
_LONG = 32  # characters from which on code may have to wrap on a phone
_SINGLE = "\N{LEFT SINGLE QUOTATION MARK}\\1\N{RIGHT SINGLE QUOTATION MARK}"


def write(report: Report) -> Path:
    """Write the report beside its runs and return the path of the page."""
    return write_files(report)[0]


def write_files(
    report: Report,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda name: None,
    *,
    pdf: bool = False,
) -> list[Path]:
    """Write page, Markdown, tables and figures beside the runs or into `folder`; return the files, the page first.

    `progress` is called with the name of each part before it is written.
    """
    if not report.shown:
        lines = "".join(f"\n  {path.relative_to(report.root)}: {reason}" for path, reason in report.left_out.items())
        left_out = f" These folders were found but cannot be used:{lines}" if lines else ""
        raise UsageError(
            f"{report.root} holds no finished runs: start some with pbwn reproduce or pbwn train.{left_out}"
        )
    folder = folder or report.root
    drawn: Drawn = {section.anchor: drawings(section) for section in report.shown}
    progress("report.html")
    files = [_write(folder / "report.html", page(report, drawn)), _write(folder / "report.md", whole(report))]
    for section in report.shown:
        progress(f"tables and figures of {section.anchor}")
        if section.table is not None:
            tables, name = folder / "tables", section.anchor
            files.append(_write(tables / f"{name}.md", markdown(section.table)))
            files.append(_write(tables / f"{name}.csv", comma_separated(section.table)))
            files.append(_write(tables / f"{name}.tex", latex(section.table, section.title)))
        for drawing in chain(*drawn[section.anchor]):
            files += drawing.write(folder / "figures", pdf=pdf)
    return files


def page(report: Report, drawn: Drawn | None = None) -> str:
    """Render the page; `drawn` are the figures if they are drawn already."""
    drawn = drawn or {section.anchor: drawings(section) for section in report.shown}
    return (
        _templates()
        .get_template("page.html")
        .render(
            sections=_views(report, drawn),
            overview=claims_tested(report.shown),
            tallies=tallies(report),
            meanings=MEANINGS,
            findings=cards(report) if tallies(report) else [],
            runs=len({path for section in report.sections for path in section.runs.path}),
            environments=environments(report),
            missing=missing(report),
            assumption=ASSUMPTION,
            rules=RULES,
            cautions=(*CAUTIONS, comparisons(report)),
            left_out={_relative(path, report.root): reason for path, reason in report.left_out.items()},
            root=report.root.name or "runs",
            tones=tones(),
            citation=CITATION,
            version=pbwn.__version__,
        )
    )


def _views(report: Report, drawn: Drawn) -> list[dict[str, Any]]:
    """Return the template's variables for each section; an artefact's first one quotes the paper and the literature."""
    seen: set[str] = set()
    views = []
    for section in report.shown:
        views.append(_view(section, *drawn[section.anchor], first=section.artefact.name not in seen))
        seen.add(section.artefact.name)
    return views


def _view(section: Section, figures: list[Drawing], diagnostics: list[Drawing], *, first: bool) -> dict[str, Any]:
    columns, lines = run_table(section)
    metric = getattr(section.artefact, "metric", "")
    table = section.table if first or not section.table else without_literature(section.table)
    rows = table.rows if table else ()
    return {
        "section": section,
        "first": first,
        "table": table,
        "shortened": table is not section.table,
        "metric": metric,
        "protocol": protocol(section),
        "differences": differences_from_paper(section),
        "claims": [(decided, needed(decided, section)) for decided in section.claims],
        "has_differences": any(forest(decided.verdicts, metric) for decided in section.claims),
        "figures": figures,
        "diagnostics": diagnostics,
        "tones": {row.key: stroke.tone.name for row in rows if (stroke := own_stroke(row.style))},
        "quoted": section.artefact.table.others if section.artefact.table else frozenset(),
        "best": best(table),
        "chosen": best_settings(table) if table else [],
        "command": command(section),
        "has_paper": table is not None and any(cell.paper for cell in table.cells.values()),
        "run_columns": columns,
        "run_lines": lines,
    }


def tallies(report: Report) -> dict[str, dict[tuple[Outcome, Meaning], int]]:
    """Count the outcomes of the claims, each at its largest scale, leaving out variants."""
    found = {scale: Counter[tuple[Outcome, Meaning]]() for scale in reversed(SCALES)}
    for claims in claims_tested(section for section in report.shown if not section.variant).values():
        for section, decided in (pair for tested in claims for pair in tested.sections):
            if section.scale:
                found[section.scale][decided.outcome, decided.meaning] += 1
    return {
        scale: dict(sorted(counts.items(), key=lambda each: OUTCOMES.index(each[0][0])))
        for scale, counts in found.items()
        if counts
    }


def best(table: Table | None) -> set[tuple[str, Column]]:
    """Return the cells with our best value in a column, for tables whose best values the paper marks too."""
    if table is None or not any(cell.paper and cell.paper.bold for cell in table.cells.values()):
        return set()
    found: set[tuple[str, Column]] = set()
    for column in table.columns:
        ranks = {
            key: cell.ours.rank(METRICS[column.metric])
            for key, cell in table.cells.items()
            if key[1] == column and cell.ours and cell.ours.values
        }
        if len(ranks) > 1:
            found |= {key for key, rank in ranks.items() if rank == min(ranks.values())}
    return found


def run_table(section: Section) -> tuple[list[str], list[list[str]]]:
    """Return the titles and lines of the table of a section's runs: their settings and results."""
    runs = section.runs
    if runs.empty:
        return [], []
    axes = [axis.name for axis in section.axes]
    names = [name for name in ("deviation", "steps") if any(result.get(name) is not None for result in runs.result)]
    metrics = [name for name in METRICS if name in runs and runs[name].notna().any()]
    columns = [*axes, "seed", *(METRICS[name].label for name in metrics), *names, "folder"]
    results = {name: [result.get(name) for result in runs.result] for name in names}
    shown = runs[[*axes, "seed", *metrics]].assign(**results, folder=[path.name for path in runs.path])
    return columns, shown.astype(object).map(_text).to_numpy().tolist()


def environments(report: Report) -> list[dict[str, Any]]:
    """Return the machines and versions that the runs were made with, those with the most runs first."""
    by_folder: dict[Path, Any] = {}
    for section in report.sections:
        by_folder |= dict(zip(section.runs.path, section.runs.environment, strict=True))
        if section.measurement:
            by_folder[section.measurement] = section.environments[0]
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    for environment in by_folder.values():
        facts = {name: value for name, value in environment.items() if name not in ("code", "data", "own")}
        counts[tuple(sorted(_flat(facts).items()))] += 1
    return [
        {"facts": dict(facts), "runs": count, "title": _title(dict(facts))} for facts, count in counts.most_common()
    ]


def signed(value: float, low: float | None, high: float | None) -> str:
    """Format a difference with its sign and the decimals that its interval supports."""
    text = digits(value, None if low is None or high is None else Interval(value, low, high))
    return text.replace("-", MINUS) if text.startswith("-") else f"+{text}"


def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("pbwn_repro.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    templates.filters |= {
        "capitalise": lambda text: text[:1].upper() + text[1:],
        "code": _code,
        "forest": forest,
        "good_news": good_news,
        "heading": heading,
        "in_words": lambda outcome, preliminary: in_words(outcome, preliminary=preliminary),
        "plural": plural,
        "quoted": lambda text: re.sub(r"`([^']+)'", _SINGLE, text),
        "signed": signed,
        "together": lambda text: re.sub(r" (?=[%±])|(?<=±) |(?<=median) ", "\N{NO-BREAK SPACE}", text),
        "texts": lambda cell, table: texts(cell, median=table.medians, fixed=table.fixed),
    }
    return templates


def _code(text: str) -> Markup:
    """Set commands as code, whether or not they are between backticks; option names do not break."""
    marked = re.sub(r"(?<!`)\bpbwn [a-z]+ [\w-]+(?: --[\w-]+ [\w=,.-]*\w)+(?!`)", r"`\g<0>`", text)
    html = re.sub(rf"`([^`]{{{_LONG},}})`", r'<code class="long">\1</code>', str(escape(marked)))
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", html)
    return Markup(re.sub(r"(?<![\w-])--[a-z][\w-]*", r'<span class="option">\g<0></span>', html))


def _relative(path: Path, root: Path) -> str:
    """Return a path relative to the report's folder, so that pages do not reveal where they were made."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def _flat(facts: dict[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in facts.items():
        flat |= {key: str(each) for key, each in value.items()} if isinstance(value, dict) else {name: str(value)}
    return flat


def _title(facts: dict[str, str]) -> str:
    known = [facts.get("processor") or facts.get("device", "unknown machine"), f"torch {facts.get('torch', 'unknown')}"]
    threads = facts.get("threads")
    return ", ".join([*known, *([f"{threads} thread{'' if threads == '1' else 's'}"] if threads else [])])


def _text(value: Any) -> str:
    if value is None or value != value:
        return "\N{EN DASH}"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
