"""Which curves a section shows: those of the best settings, what searches gave, and what the paper found best."""

from __future__ import annotations

from pbwn_repro.report.collecting.cells import Cells
from pbwn_repro.report.collecting.choosing import values_of
from pbwn_repro.report.collecting.layout import row_title
from pbwn_repro.report.collecting.series import Time, plots, search_plot
from pbwn_repro.report.model import Plot


def plots_of(cells: Cells, prefix: str) -> tuple[Plot, ...]:
    """All plots of a section; the names of their files begin with the prefix."""
    # Figure 2 counts iterations, as the paper does.
    time: Time = "iteration" if cells.protocol.artefact.name.startswith("figure-2") else "epoch"
    found: list[Plot] = []
    places = dict.fromkeys(column.value for column in cells.layout.columns)
    for value in places:
        place = "" if len(places) == 1 else _place(cells, value)
        chosen = {key: cells.chosen[key, value] for key in _names(cells) if (key, value) in cells.chosen}
        rows = [(_names(cells)[key], [run.record for run in best.runs]) for key, best in chosen.items()]
        found += plots(prefix, place, rows, time)
        found += _search(cells, prefix, place, value)
    return (*found, *_at_the_papers_best(cells, prefix, time))


def _search(cells: Cells, prefix: str, place: str, value: str) -> list[Plot]:
    """What each setting gave, where one thing was searched."""
    if len(cells.searched) != 1:
        return []
    [axis] = cells.searched
    rows = []
    for key, name in _names(cells).items():
        runs = cells.runs.get((key, value), [])
        found = {
            float(setting): values_of([run for run in runs if run.labels[axis.name] == setting], cells.measure)
            for setting in axis.values
        }
        rows.append((name, {setting: values for setting, values in found.items() if values}))
    label = cells.layout.unit if cells.layout.paper else cells.layout.columns[0].title
    plot = search_plot(prefix, place, axis.name, rows, label)
    return [plot] if plot else []


def _at_the_papers_best(cells: Cells, prefix: str, time: Time) -> tuple[Plot, ...]:
    """The training loss at the setting that the paper states as the best, where it is not the best of ours."""
    stated = cells.stated
    rows = [
        (title, [run.record for run in stated.runs[key].runs])
        for key, title in _names(cells).items()
        if key in stated.runs
    ]
    return plots(prefix, f"at the paper's {stated.value}", rows, time)[:1] if rows else ()


def _names(cells: Cells) -> dict[str, str]:
    """What curves are called: by the method or the interval, also where the paper's table has another word."""
    [axis] = cells.protocol.with_role("row")
    return {str(value): row_title(axis, value) for value in axis.known}


def _place(cells: Cells, value: str) -> str:
    return next(column.title for column in cells.layout.columns if column.value == value).partition(",")[0]
