"""Tables as Markdown, CSV and LaTeX, the whole report as Markdown, and the README's table of claims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pandas as pd

from pbwn_repro.catalog import Number
from pbwn_repro.catalog.relatives import RELATIVES
from pbwn_repro.metrics import FINAL_LOSS
from pbwn_repro.report.findings import findings, findings_table
from pbwn_repro.report.missing import ASSUMPTION, missing, needed
from pbwn_repro.report.model import (
    Cell,
    Decided,
    Outcome,
    Report,
    Section,
    Summary,
    Table,
    Verdict,
    claims_tested,
    heading,
    in_words,
    plural,
)
from pbwn_repro.report.sections import differences_from_paper, machine
from pbwn_repro.report.statistics import FEW, Interval, digits, with_interval

RULES: Mapping[Outcome, str] = {
    "holds": "the 95 % interval of the difference lies on the claimed side of zero or, if the claim names a margin, "
    "within that margin.",
    "does not hold": "the interval lies on the other side of zero or beyond the margin, or runs of the method that the "
    "claim favours diverged.",
    "undecided": "the interval contains zero or an edge of the margin, so that more runs may decide; or a side has "
    "fewer than two runs, a column that the claim covers has none, or the two sides were not searched over the same "
    "settings.",
}
CAUTIONS = (
    "A claim with several comparisons holds only if all of them hold, which needs no correction for multiple testing. "
    "A single one of n comparisons rejects the claim, but only at a confidence of 1 - 0.05 / n (the first step of "
    "Holm's method): a comparison that speaks against the claim at 95 % alone leaves it undecided.",
    f"A verdict is preliminary if it rests on fewer than {FEW} pairs of runs, or on only some of the settings that the "
    "protocol searches.",
    "Runs with the same seed see the same data in the same order, with the same labels, so they are compared in pairs: "
    "by Student's t on the differences below eight pairs, and by Wilcoxon's signed-rank test from eight on. The "
    "interval of the latter (Hodges and Lehmann) does not assume normal errors: those of table 8 are skewed, and one "
    "failed run would dominate the mean. Runs without common seeds are compared by Welch's test. The interval of a "
    "median over rounds is exact.",
    "n is the number of runs on each side or, for times, the number of rounds, in each of which every method takes a "
    "step. The margins are ours: where the paper says 'nearly identical' or 'little', a test needs a number.",
    "Where settings were searched, the best one has the lowest value of the metric shown, over the seeds that all "
    "settings have in common. If that metric is the test error, the setting was selected on the test set.",
)
_INTRODUCTION = (
    "Written by `pbwn report` from run folders. Unless a remark says otherwise, every number comes from them.\n"
)
_VERDICTS = """\
A table cell shows our number, then the paper's in italics. A verdict states what our runs at one scale say about a
claim of the paper:
"""
_PAPER = """\
The column 'paper' shows the same interval, computed from the paper's own means, spreads and seeds where it gives them.\
"""
_HEADER = (
    *("row", "column", "ours", "deviation", "median", "runs", "diverged", "chosen"),
    *("paper", "paper_spread", "paper_seeds"),
)
_TINY = 1e-5  # below this, scientific notation is easier to read


# --- cells and tables


def ours_text(summary: Summary | None, decimals: int = 2, *, median: bool = False, fixed: bool = False) -> str:
    """Format our number, as in `7.94 ± 0.16 (5)`, with no more decimals than its spread supports.

    Two runs are both shown, as in `7.85, 8.02 (2)`; a cell without runs is a dash.
    """
    if summary is None:
        return "-"
    diverged = f"{summary.diverged} diverged" if summary.diverged else ""
    if not summary.values:
        return diverged
    if summary.is_count:
        return f"{summary.mean:.0f}"
    runs = ", ".join(part for part in (str(summary.count), diverged) if part)
    if 0 < abs(summary.mean) < _TINY and not fixed:
        return f"{summary.mean:.1e} ({runs})"
    most = _decimals(summary.mean, decimals, fixed=fixed)
    if summary.is_pair:
        return f"{', '.join(f'{value:.{most}f}' for value in summary.values)} ({runs})"
    known = most if summary.decimals is None else min(most, summary.decimals)
    spread = "" if summary.deviation is None else f" ± {summary.deviation:.{known}f}"
    # A failed run dominates the mean and the spread, but not the median.
    middle = f", median {summary.median:.{most}f}" if median and summary.count > 1 else ""
    return f"{summary.mean:.{known}f}{spread}{middle} ({runs})"


def paper_text(number: Number | None, *, fixed: bool = False) -> str:
    """Format the paper's number as it prints it; a dash if it has none."""
    if number is None:
        return "-"
    decimals = _decimals(number.value, number.decimals, fixed=fixed)
    spread = "" if number.spread is None else f" ± {number.spread:.{decimals}f}"
    return number.text or f"{number.value:.{decimals}f}{spread}"


def texts(cell: Cell, *, median: bool = False, fixed: bool = False) -> tuple[str, str]:
    """Format our number and the paper's, with at most as many decimals as the paper prints."""
    decimals = cell.paper.decimals if cell.paper else 2
    return ours_text(cell.ours, decimals, median=median, fixed=fixed), paper_text(cell.paper, fixed=fixed)


def chosen_text(summary: Summary | None) -> str:
    """Format the best of the searched settings, as in `lr = 0.3`."""
    return ", ".join(f"{name} = {value:g}" for name, value in (summary.chosen if summary else {}).items())


def best_settings(table: Table) -> list[str]:
    """List the chosen settings: one for all cells, one for each column, or each with its rows and columns.

    Columns that show the same runs, such as an error and a loss, count as one.
    """
    titles = {column.value: column.title.partition(",")[0] for column in table.columns}
    chosen = {
        (row.title, titles[column.value]): words
        for row in table.rows
        for column in table.columns
        if (words := chosen_text(table.cells[row.key, column].ours))
    }
    if len(set(chosen.values())) < 2:
        return list(dict.fromkeys(chosen.values()))
    by_column = {
        column: {words for (_, other), words in chosen.items() if other == column} for column in titles.values()
    }
    if all(len(settings) == 1 for settings in by_column.values()):
        return [f"{column}: {words}" for column, [words] in by_column.items()]
    by_row = {row.title: {words for (other, _), words in chosen.items() if other == row.title} for row in table.rows}
    cells: dict[str, dict[str, None]] = {}
    for (row, column), words in chosen.items():
        name = f"“{row}”" if "," in row else row
        cells.setdefault(words, {})[name if len(by_row[row]) == 1 else f"{name} ({column})"] = None
    return [f"{words} for {', '.join(names)}" for words, names in cells.items()]


def markdown(table: Table) -> str:
    """Format a table as Markdown: in each cell our number, then the paper's in italics."""
    has_about = any(row.about for row in table.rows)
    lines = [
        ["", *(["what it does"] if has_about else []), *(column.title for column in table.columns)],
        ["---", *(["---"] if has_about else []), *("---:" for _ in table.columns)],
    ]
    for row in table.rows:
        cells = [table.cells[row.key, column] for column in table.columns]
        about = [row.about] if has_about else []
        lines.append([row.title, *about, *(_markdown_cell(cell, table) for cell in cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def without_literature(table: Table) -> Table:
    """Return the table without rows that only quote the paper; the artefact's first table has those."""
    kept = tuple(row for row in table.rows if any(table.cells[row.key, column].ours for column in table.columns))
    return table if kept == table.rows or not kept else replace(table, rows=kept)


def comma_separated(table: Table) -> str:
    """Format a table as CSV: a line for each cell that is not empty, with numbers in full."""
    titles = {row.key: row.title for row in table.rows}
    lines = []
    for (row, column), cell in table.cells.items():
        ours, paper = cell.ours, cell.paper
        line: dict[str, object] = {"row": titles[row], "column": column.title}
        if ours:
            line |= {"ours": ours.mean, "deviation": ours.deviation, "median": ours.median if ours.values else None}
            line |= {"runs": ours.count, "diverged": ours.diverged, "chosen": chosen_text(ours)}
        if paper:
            line |= {"paper": paper.value, "paper_spread": paper.spread, "paper_seeds": paper.seeds}
        if ours or paper:
            lines.append(line)
    # dtype=object, as pandas would turn a column of counts with gaps into floats.
    text: str = pd.DataFrame(lines, columns=_HEADER, dtype=object).to_csv(index=False, lineterminator="\n")
    return text


def latex(table: Table, caption: str) -> str:
    """Format a table as LaTeX (booktabs), with the paper's numbers in a row below ours."""
    lines = [
        r"\begin{table}",
        rf"\caption{{{_escape(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(["", *(_escape(column.title) for column in table.columns)]) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [table.cells[row.key, column] for column in table.columns]
        pairs = [texts(cell, median=table.medians, fixed=table.fixed) for cell in cells]
        if any(cell.ours for cell in cells):
            lines.append(_latex_row(_escape(row.title), [ours for ours, _ in pairs]))
            if any(cell.paper for cell in cells):
                lines.append(_latex_row(r"\quad paper", [paper for _, paper in pairs]))
        else:
            lines.append(_latex_row(rf"{_escape(row.title)} (paper)", [paper for _, paper in pairs]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _markdown_cell(cell: Cell, table: Table) -> str:
    ours, paper = texts(cell, median=table.medians, fixed=table.fixed)
    return f"{ours} · *{paper}*" if cell.paper else ours


def _latex_row(title: str, cells: list[str]) -> str:
    return " & ".join([title, *(cell.replace("±", r"$\pm$") for cell in cells)]) + r" \\"


def _escape(words: str) -> str:
    return words.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")


def _decimals(value: float, decimals: int, *, fixed: bool) -> int:
    """Return `decimals`, or as many as a small number needs."""
    if 0 < abs(value) < 0.1 and not fixed:
        return max(decimals, min(12, 2 - math.floor(math.log10(abs(value)))))
    return decimals


# --- the report


def whole(report: Report) -> str:
    """Format the report as Markdown: all verdicts, each section, what was not run and what was left out."""
    has_verdicts = any(section.verdicts for section in report.sections)
    parts = ["# Results\n", _INTRODUCTION]
    if found := findings(report):
        parts += ["## In short\n", findings_table(found), ""]
    if has_verdicts:
        parts += ["## How to read it\n"]
        parts += [_VERDICTS, *(f"- **{outcome}**: {rule}" for outcome, rule in RULES.items()), ""]
        parts += [*(f"{each}\n" for each in CAUTIONS), f"{_PAPER}\n"]
    parts += [f"{hardware(report)}\n"]
    if has_verdicts:
        parts += ["## The paper's claims\n", overview(report)]
    seen: set[str] = set()
    for section in report.sections:
        parts += ["", *_section(section, first=section.artefact.name not in seen)]
        seen.add(section.artefact.name)
    if any(section.is_reproduced for section in report.sections):
        parts += ["\n## Not run\n", not_run(report)]
    if report.left_out:
        parts += ["\n## Found, but left out\n"]
        parts += [f"- `{path.relative_to(report.root)}`: {reason}" for path, reason in report.left_out.items()]
    return "\n".join(parts).rstrip() + "\n"


def overview(report: Report) -> str:
    """Format each claim once, above its comparisons: outcome, interval, runs, scale; variants only if they were run."""
    lines = [
        "| claim and comparisons | verdict | difference, 95 % interval | n | scale | paper |",
        "|---|---|---:|---:|---|---:|",
    ]
    for number, claims in claims_tested(report.sections).items():
        for each in claims:
            compared = [
                _comparison(section, verdict)
                for section, decided in each.sections
                for verdict in decided.verdicts
                if not section.variant or verdict.difference is not None
            ]
            lines += [f"| **{number}: {each.claim.words}** | | | | | |", *compared] if compared else []
    return "\n".join(lines) + f"\n\n{comparisons(report)}\n"


def comparisons(report: Report) -> str:
    """Return how many comparisons have an interval, and what follows from their number."""
    count = sum(verdict.low is not None for section in report.sections for verdict in section.verdicts)
    have = "comparison has" if count == 1 else "comparisons have"
    return (
        f"{count} {have} a 95 % interval, not corrected for multiple testing: about one in twenty would exclude zero "
        "by chance if the methods were equal. A verdict against a claim is corrected for the number of the claim's "
        "comparisons."
    )


def summary(report: Report) -> str:
    """Format the claims as a table: verdict, number of comparisons, n and scale, with the notes on each test.

    A claim stands at the largest scale that has runs for it.
    """
    lines = ["| the paper's claim, as tested | verdict | comparisons | n | scale |", "|---|---|---|---:|---|"]
    for number, claims in claims_tested(section for section in report.sections if not section.variant).items():
        for each in claims:
            [(section, decided)] = each.sections
            notes = [f"*{note}*" for note in (each.claim.note, decided.beside) if note]
            sides = [count for verdict in decided.verdicts for count in verdict.counts if verdict.counts != (0, 0)]
            cells = (
                ". ".join(filter(None, [f"{number}: {each.claim.words}", " ".join(notes)])),
                f"**{in_words(decided.outcome, preliminary=decided.preliminary)}**",
                _outcome_counts(decided),
                " to ".join(map(str, sorted({min(sides), max(sides)}))) if sides else "-",
                section.scale,
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def methods_compared(report: Report, *, losses: bool = True) -> str:
    """Format the comparison with the paper's relatives at the largest scale but smoke; empty below two methods."""
    sections = {each.scale: each for each in report.shown if each.artefact.name == RELATIVES.name and not each.variant}
    section = sections.get("paper") or sections.get("short")
    table = without_literature(section.table) if section and section.table else None
    if section is None or table is None or len(table.rows) < 2:
        return ""
    if not losses:
        kept = tuple(each for each in table.columns if each.metric != FINAL_LOSS.name)
        table = replace(table, columns=kept, unit=table.unit.removeprefix("training loss and "))
    return f"\nThe methods on figure 2's network ({section.setting}): {table.unit}.\n\n{markdown(table)}"


def _outcome_counts(decided: Decided) -> str:
    """Return the number of comparisons with each outcome."""
    return ", ".join(f"{count} {plural(outcome, count)}" for outcome, count in decided.counts.items())


def not_run(report: Report) -> str:
    """List what is missing, a line each."""
    lines = [
        f"- {heading(line.artefact)}, {line.what}: `{line.command}`{f' ({line.price})' if line.price else ''}"
        for line in missing(report)
    ]
    return "\n".join([*lines, f"\n{ASSUMPTION}"]) if lines else "Nothing: all artefacts have their runs."


def hardware(report: Report) -> str:
    """List the machines that the runs were made on, with the artefacts of each."""
    artefacts: dict[str, dict[str, None]] = {}
    for section in report.sections:
        for environment in section.environments:
            artefacts.setdefault(machine(environment), {})[section.number] = None
    return "\n".join(f"Run on {name}: {', '.join(numbers)}." for name, numbers in sorted(artefacts.items()))


def protocol(section: Section) -> str:
    """Return the heading of a section's protocol; the demo and own runs have no scales."""
    return "Protocol at paper scale" if section.is_reproduced else "Protocol"


def _section(section: Section, *, first: bool) -> Iterator[str]:
    """Yield the parts of a section; the artefact's first section also quotes the paper and other systems' numbers."""
    yield f"## {section.title}\n"
    yield f"{section.artefact.about}\n"
    remarks = [f"{paragraph}\n" for paragraph in section.remarks]
    yield from remarks if section.opens_with_remarks else ()
    yield f"{protocol(section)}: {section.artefact.protocol}\n"
    if section.table:
        if words := differences_from_paper(section):
            yield f"{words[:1].upper()}{words[1:]}.\n"
        yield f"{section.table.unit[:1].upper()}{section.table.unit[1:]}; {section.table.legend}:\n"
        yield markdown(section.table if first else without_literature(section.table))
        if chosen := best_settings(section.table):
            yield f"Settings of these runs: {'; '.join(chosen)}.\n"
    for decided in section.claims:
        claim = decided.claim
        if first and claim.quote:
            yield f"> “{claim.quote}”\n"
        sentences = (f"Tested: {claim.words}.", decided.beside, *((claim.note, claim.remark) if first else ()))
        yield f"{' '.join(filter(None, sentences))}\n"
        yield "\n".join(f"- **{_outcome(verdict)}**: {verdict.sentence}" for verdict in decided.verdicts) + "\n"
        if words := needed(decided, section):
            yield f"{words}\n"
    if section.compared:
        yield "Compared, without a verdict:\n"
        yield "\n".join(f"- {sentence}" for sentence in section.compared) + "\n"
    yield from () if section.opens_with_remarks else remarks
    yield "\n".join(f"- {note}" for note in (*section.notes, *section.artefact.departures))


def _outcome(verdict: Verdict) -> str:
    decided = verdict.outcome != "undecided"
    return in_words(verdict.outcome, preliminary=decided and verdict.preliminary)


def _comparison(section: Section, verdict: Verdict) -> str:
    """Format a comparison as a line of the overview."""
    compared = " against ".join(part for part in (verdict.row, verdict.against) if part)
    paper = verdict.paper
    cells = (
        ", ".join(part for part in (compared, verdict.column) if part) or "-",
        f"**{_outcome(verdict)}**",
        _interval(verdict.difference, verdict.low, verdict.high),
        "-" if verdict.counts == (0, 0) else f"{verdict.counts[0]}, {verdict.counts[1]}",
        f"{section.scale}{''.join(f', {value}' for value in section.variant.values())}",
        _interval(paper.difference, paper.low, paper.high) if paper else "-",
    )
    return f"| {' | '.join(cells)} |"


def _interval(difference: float | None, low: float | None, high: float | None) -> str:
    if difference is None:
        return "-"
    if low is None or high is None:
        return digits(difference)
    return with_interval(Interval(difference, low, high))
