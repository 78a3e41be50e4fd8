"""The whole report as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from pbwn_repro.catalog import ARTEFACTS
from pbwn_repro.report.collecting.notes import machine
from pbwn_repro.report.model import Report, Section, Verdict
from pbwn_repro.report.verdicts.wording import digits
from pbwn_repro.report.writing.forest import decided, plural
from pbwn_repro.report.writing.missing import missing
from pbwn_repro.report.writing.price import ASSUMPTION
from pbwn_repro.report.writing.reading import CAUTIONS, RULES
from pbwn_repro.report.writing.tables import best_settings, markdown

_INTRODUCTION = """\
Every number in tables and verdicts comes from run folders; `pbwn report` makes this page from them. Remarks say where a
number is from elsewhere. A cell shows ours, then the paper's number in italics. A verdict answers a claim of the paper
with our runs at one scale:
"""
_PAPER = """\
The column 'paper' is the same interval from the paper's own means, spreads and seeds, where it gives them."""


def whole(report: Report) -> str:
    """The report: all verdicts, then each section, then what was not run and what was left out."""
    parts = ["# Results\n", _INTRODUCTION]
    parts += [*(f"- **{outcome}**: {rule}" for outcome, rule in RULES.items()), "", f"{' '.join(CAUTIONS)} {_PAPER}\n"]
    parts += [f"{hardware(report)}\n"]
    if any(section.verdicts for section in report.sections):
        parts += ["## The paper's claims\n", overview(report)]
    for section in report.sections:
        parts += ["", *_section(section)]
    parts += ["\n## Not run\n", not_run(report)]
    if report.left_out:
        parts += ["\n## Found, but left out\n"]
        parts += [f"- `{path.relative_to(report.root)}`: {why}" for path, why in report.left_out.items()]
    return "\n".join(parts).rstrip() + "\n"


def overview(report: Report) -> str:
    """A line for each verdict: claim, comparison, outcome, interval, runs, scale."""
    lines = [
        "| claim | comparison | verdict | difference, 95 % interval | n | scale | paper |",
        "|---|---|---|---:|---:|---|---:|",
    ]
    for section in report.sections:
        for verdict in section.verdicts:
            lines.append(_line(section, verdict))
    return "\n".join(lines) + "\n"


def summary(report: Report) -> str:
    """A line for each claim of the paper: what its comparisons say together, their number, n, and the scale."""
    lines = ["| the paper's claim, as tested | verdict | comparisons | n | scale |", "|---|---|---|---:|---|"]
    for section in report.sections:
        for claim in [] if section.variant else decided(section):
            sides = [count for verdict in claim.verdicts for count in verdict.counts if verdict.counts != (0, 0)]
            cells = (
                f"{heading(section.artefact.name)}: {claim.claim.words}",
                f"**{claim.outcome}**",
                ", ".join(f"{count} {plural(outcome, count)}" for outcome, count in claim.counts.items()),
                " to ".join(map(str, sorted({min(sides), max(sides)}))) if sides else "-",
                section.scale,
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def not_run(report: Report) -> str:
    """What is missing, a line each."""
    lines = [
        f"- {heading(line.artefact)}, {line.what}: `{line.command}`{f' ({line.price})' if line.price else ''}"
        for line in missing(report)
    ]
    return "\n".join([*lines, f"\n{ASSUMPTION}"]) if lines else "Nothing: every artefact has its runs."


def heading(name: str) -> str:
    """An artefact's name as a reader writes it.

    >>> heading("figure-2a")
    'Figure 2a'
    """
    kind, _, number = name.partition("-")
    return f"{kind.capitalize()} {number}".strip()


def title(section: Section) -> str:
    """A section's title: artefact, scale, variant."""
    variant = "".join(f", {name} = {value}" for name, value in section.variant.items())
    return f"{heading(section.artefact.name)}: {section.artefact.title} (scale {section.scale}{variant})"


def protocol(section: Section) -> str:
    """What a section's protocol is called: that of the demo has no scales."""
    return "Protocol at paper scale" if section.artefact.name in ARTEFACTS else "Protocol"


def _section(section: Section) -> Iterator[str]:
    yield f"## {title(section)}\n"
    yield f"{section.artefact.about}\n"
    yield f"{protocol(section)}: {section.artefact.protocol}\n"
    if section.table:
        yield f"{section.table.unit.capitalize()}; {section.table.ours}:\n"
        yield markdown(section.table)
        if chosen := best_settings(section.table):
            yield f"Settings of these runs: {'; '.join(chosen)}.\n"
    for claim in dict.fromkeys(verdict.claim for verdict in section.verdicts):
        verdicts = [verdict for verdict in section.verdicts if verdict.claim == claim]
        yield f"> “{claim.quote}”\n"
        yield f"Tested: {claim.words}.{f' {claim.remark}' if claim.remark else ''}\n"
        yield "\n".join(f"- **{verdict.outcome}**: {verdict.sentence}" for verdict in verdicts) + "\n"
    yield from (f"{paragraph}\n" for paragraph in section.remarks)
    yield "\n".join(f"- {note}" for note in section.notes)


def _line(section: Section, verdict: Verdict) -> str:
    compared = " against ".join(part for part in (verdict.row, verdict.against) if part)
    place = ", ".join(part for part in (compared, verdict.column) if part)
    counts = "-" if verdict.counts == (0, 0) else f"{verdict.counts[0]}, {verdict.counts[1]}"
    variant = "".join(f", {value}" for value in section.variant.values())
    paper = verdict.paper
    return (
        "| "
        + " | ".join(
            (
                f"{heading(section.artefact.name)}: {verdict.claim.words}",
                place or "-",
                f"**{verdict.outcome}**",
                _interval(verdict.difference, verdict.low, verdict.high),
                counts,
                f"{section.scale}{variant}",
                _interval(paper.difference, paper.low, paper.high) if paper else "-",
            )
        )
        + " |"
    )


def _interval(difference: float | None, low: float | None, high: float | None) -> str:
    if difference is None:
        return "-"
    if low is None or high is None:
        return digits(difference)
    return f"{digits(difference)} [{digits(low)}, {digits(high)}]"


def hardware(report: Report) -> str:
    """What the runs were made on: each machine once, with what was made there."""
    made: dict[str, dict[str, None]] = {}
    for section in report.sections:
        for environment in section.environments:
            made.setdefault(machine(environment), {})[heading(section.artefact.name)] = None
    return "\n".join(f"Made on {place}: {', '.join(names)}." for place, names in sorted(made.items()))
