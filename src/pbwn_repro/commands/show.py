"""`pbwn show`: a table or figure, with our numbers next to the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from pbwn_repro.commands import Fallback, announce, folder_with, print_plain
from pbwn_repro.commands.names import artefacts, check_artefact, completing

_COLOURS = {"good": "green", "bad": "red", "neutral": "blue", "open": "yellow"}


def show(
    artefact: Annotated[
        str,
        typer.Argument(
            metavar="ARTEFACT",
            help="The table or figure, such as table-3 or figure-2a.",
            autocompletion=completing(also=artefacts),
        ),
    ],
    out: Fallback = None,
) -> None:
    """Describe a table or figure: its protocol, our numbers next to the paper's, and the verdicts."""
    check_artefact(artefact)
    announce(f"Reading the runs of {artefact} ...")
    from pbwn_repro.catalog import find
    from pbwn_repro.report.model import Report, heading
    from pbwn_repro.report.sections import collect

    found = find(artefact)
    console = Console(highlight=False)
    console.print(f"[bold]{heading(found.name)}: {found.title}[/bold]\n{escape(found.about)}\n")
    console.print(f"[bold]Protocol[/bold]  {escape(found.protocol)}")
    if found.departures:
        console.print("[bold]Departs from the paper[/bold]")
    for departure in found.departures:
        console.print(f"· {escape(departure)}")
    out = out or folder_with(found.name)
    report = collect(out) if out.exists() else Report(out, (), {})
    sections = [section for section in report.sections if section.artefact.name == found.name]
    if sections:
        console.print(f"[bold]Runs in[/bold]  {escape(str(out))}", soft_wrap=True)
    for section in sections:
        _print_section(console, section, out, first=section is sections[0])
    if not sections:
        if found.table and found.table.numbers:  # our own experiments have no numbers of the paper
            _print_paper_table(console, found.table)
        print_plain(
            console,
            f"\nNo runs of {found.name} in {out}: choose another folder with --out FOLDER, or "
            f"start the runs with pbwn reproduce {found.name} --scale short (or smoke, paper).",
        )
    for path, reason in report.left_out.items():
        if path.relative_to(out).parts[0] == found.name:
            console.print(f"[red]left out[/red] {escape(f'{path}: {reason}')}", soft_wrap=True)


def _print_section(console: Console, section: Any, out: Path, *, first: bool) -> None:
    """Print a section; only the first of an artefact quotes the paper and the literature, as in the report."""
    from pbwn_repro.report.markdown import best_settings, texts, without_literature
    from pbwn_repro.report.missing import command, needed
    from pbwn_repro.report.model import good_news
    from pbwn_repro.report.sections import differences_from_paper

    variant = "".join(f", {name} = {value}" for name, value in section.variant.items())
    console.rule(f"scale {section.scale}{variant}")
    if words := differences_from_paper(section):
        console.print(f"{words[:1].upper()}{words[1:]}.")
    if table := section.table if first or not section.table else without_literature(section.table):
        below = any(cell.paper for cell in table.cells.values())
        words = f"{table.unit}: {table.legend}" + (", the paper's below" if below else "")
        titles = {row.key: row.title for row in table.rows}
        cells = {
            (titles[row], column.title): texts(cell, median=table.medians, fixed=table.fixed)[: 1 + below]
            for (row, column), cell in table.cells.items()
            if row in titles
        }
        _print_table(console, words, list(titles.values()), [column.title for column in table.columns], cells)
        if chosen := best_settings(table):
            console.print(f"Settings of these runs: {'; '.join(chosen)}")
    for decided in section.claims:
        quote = decided.claim.quote if first else ""
        statement = f"“{quote}”" if quote else decided.claim.words
        console.print(f"\n[italic]{escape(statement)}[/italic]")
        for verdict in decided.verdicts:
            colour, news = _COLOURS[verdict.meaning], good_news(verdict.claim, verdict.outcome)
            words = f"{verdict.outcome} ({news})" if news else verdict.outcome
            console.print(f"  [{colour}]{words}[/{colour}]  {escape(verdict.sentence)}")
        remark = decided.claim.remark and f"In the paper: {decided.claim.remark}"
        notes = (decided.claim.note, remark) if first else ()
        for words in (*notes, decided.beside, needed(decided, section)):
            if words:
                console.print(f"  [dim]{escape(words)}[/dim]")
    console.print()
    for note in section.notes:
        console.print(f"· {escape(note)}")
    done = 1 if section.measurement else len(section.runs)
    states = {"done": done, "diverged": len(section.diverged), "unfinished": len(section.unfinished)}
    counts = [f"{count} {state}" for state, count in states.items() if count]
    if section.missing:
        counts.append(f"{len(section.missing)} missing: {command(section)}")
    console.print(f"[dim]runs: {escape(', '.join(counts))}[/dim]", soft_wrap=True)


def _print_paper_table(console: Console, numbers: Any) -> None:
    from pbwn_repro.report.markdown import paper_text

    cells = {
        (row, column.title): (paper_text(numbers.numbers.get((key, column.title))),)
        for key, row in numbers.rows.items()
        for column in numbers.columns
    }
    columns = [column.title for column in numbers.columns]
    console.print()
    _print_table(console, f"the paper's {numbers.unit}", list(numbers.rows.values()), columns, cells)


def _print_table(
    console: Console,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[str, str], Sequence[str]],
) -> None:
    """Print a table, split into several below each other if it is too wide; numbers are never truncated.

    Lines of a cell after the first are dimmed.
    """
    from rich.table import Table

    texts = {key: [line.replace(" ± ", "±") for line in lines] for key, lines in cells.items()}
    widths = [
        max(map(len, [*column.split(), *(line for row in rows for line in texts[row, column])])) for column in columns
    ]
    title_width = max(map(len, rows))
    start = 0
    while start < len(columns):
        end, used = start, title_width + 4
        while end < len(columns) and (end == start or used + widths[end] + 3 <= console.width):
            used += widths[end] + 3
            end += 1
        spare = max(0, console.width - used) // (end - start)
        table = Table(title=None if start else title, title_justify="left")
        table.add_column("", no_wrap=True)
        for column, width in zip(columns[start:end], widths[start:end], strict=True):
            table.add_column(column, justify="right", width=max(width, min(len(column), width + spare)))
        for row in rows:
            lines = [texts[row, column] for column in columns[start:end]]
            table.add_row(row, *("\n".join([ours, *(f"[dim]{each}[/dim]" for each in more)]) for ours, *more in lines))
        Console(width=max(used, console.width)).print(table)
        start = end
