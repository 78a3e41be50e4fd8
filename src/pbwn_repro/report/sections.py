"""The section of a trained artefact: its runs become cells, curves and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pbwn_repro.paper import BestSetting, Column, claims_on
from pbwn_repro.report.choosing import Chosen, choose
from pbwn_repro.report.layout import Layout, layout
from pbwn_repro.report.matching import Labelled, Protocol
from pbwn_repro.report.measures import MEASURES, SEARCHED_BY
from pbwn_repro.report.model import Cell, Plot, Run, Section, Table
from pbwn_repro.report.notes import notes
from pbwn_repro.report.series import SETTINGS, Time, plots, search_plot
from pbwn_repro.report.verdicts import Search, verdicts


class Cells:
    """The chosen runs by the key of a row and the value of a column."""

    def __init__(self, protocol: Protocol, runs: Sequence[Labelled]) -> None:
        """Choose the best setting of each cell."""
        self.layout: Layout = layout(protocol)
        [row] = protocol.with_role("row")
        columns = protocol.with_role("column")
        self.searched = protocol.with_role("searched")
        self.artefact = protocol.artefact.name
        self.measure = MEASURES[SEARCHED_BY[protocol.artefact.value]]
        self.runs: dict[tuple[str, str], list[Labelled]] = {}
        for run in runs:
            place = (str(run.labels[row.name]), str(run.labels[columns[0].name]) if columns else "")
            self.runs.setdefault(place, []).append(run)
        self.chosen: dict[tuple[str, str], Chosen] = {}
        for place, found in self.runs.items():
            best = choose(found, self.searched, self.measure)
            if best is not None:
                self.chosen[place] = best

    def values(self, row: str, column: Column) -> dict[int, float]:
        """What the runs of a cell gave, by seed."""
        chosen = self.chosen.get((row, column.value))
        return chosen.values(MEASURES[column.measure]) if chosen else {}

    def diverged(self, row: str, column: Column) -> int:
        """How many runs of a cell's setting diverged."""
        chosen = self.chosen.get((row, column.value))
        return chosen.diverged if chosen else 0

    def search(self, row: str, column: Column, name: str) -> Search | None:
        """What the search in a cell found."""
        place = (row, column.value)
        if place not in self.chosen:
            return None
        [axis] = [axis for axis in self.searched if axis.name == name]
        done = {run.labels[name] for run in self.runs[place] if run.record.state != "unfinished"}
        tried, left = (tuple(v for v in axis.values if (v in done) == wanted) for wanted in (True, False))
        return Search(self.chosen[place].setting[name], tried, left)

    def table(self) -> Table:
        """Ours beside the paper's."""
        cells = {}
        for row in self.layout.rows:
            for column in self.layout.columns:
                chosen = self.chosen.get((row.key, column.value))
                ours = chosen.summary(MEASURES[column.measure]) if chosen else None
                number = self.layout.number(row, column)
                cells[row.title, column.title] = Cell(row.title, column.title, ours, number)
        rows, columns = (tuple(each.title for each in side) for side in (self.layout.rows, self.layout.columns))
        return Table(rows, columns, cells, self.layout.unit)

    def plots(self, prefix: str, time: Time) -> tuple[Plot, ...]:
        """The curves of each column's runs."""
        found: list[Plot] = []
        places = dict.fromkeys(column.value for column in self.layout.columns)
        for value in places:
            title = "" if len(places) == 1 else self._place(value)
            rows = [
                (row.title, self.chosen[row.key, value]) for row in self.layout.rows if (row.key, value) in self.chosen
            ]
            found += plots(prefix, title, [(name, [run.record for run in best.runs]) for name, best in rows], time)
            found += self._search(prefix, title, value)
        return tuple(found + self._at_the_papers_best(prefix, time))

    def _at_the_papers_best(self, prefix: str, time: Time) -> list[Plot]:
        """The training loss at the setting that the paper found best, where it is not the best of ours."""
        found = []
        for claim in claims_on(self.artefact):
            if isinstance(criterion := claim.criterion, BestSetting):
                name, value = criterion.name, criterion.value
                if all(best.setting.get(name) == value for best in self.chosen.values()):
                    continue
                rows = []
                for row in self.layout.rows:
                    runs = [run for run in self.runs.get((row.key, ""), ()) if run.labels[name] == value]
                    rows.append((row.title, [run.record for run in runs if run.record.state == "done"]))
                found += plots(prefix, f"at the paper's {SETTINGS.get(name, name)} {value:g}", rows, time)[:1]
        return found

    def _search(self, prefix: str, title: str, value: str) -> list[Plot]:
        if len(self.searched) != 1:
            return []
        [axis] = self.searched
        rows = []
        for row in self.layout.rows:
            done = [run for run in self.runs.get((row.key, value), ()) if run.record.state == "done"]
            by_setting = {
                setting: choose([run for run in done if run.on((axis,)) == (setting,)], (), self.measure)
                for setting in axis.values
            }
            points = [(float(setting), best.summary(self.measure).mean) for setting, best in by_setting.items() if best]
            rows.append((row.title, points))
        label = self.layout.columns[0].title if not self.layout.paper else self.layout.unit
        found = search_plot(prefix, title, axis.name, rows, label)
        return [found] if found else []

    def _place(self, value: str) -> str:
        return next(column.title for column in self.layout.columns if column.value == value).partition(",")[0]


def sections(protocol: Protocol, runs: Sequence[Labelled]) -> list[Section]:
    """A section for the artefact itself, if it has runs, and one for each of its variants that has."""
    variants = protocol.with_role("variant")
    usual = tuple(axis.values[0] for axis in variants)
    groups: dict[tuple[Any, ...], list[Labelled]] = {}
    for run in runs:
        groups.setdefault(run.on(variants), []).append(run)
    ordered = sorted(
        groups, key=lambda values: [axis.values.index(v) for axis, v in zip(variants, values, strict=True)]
    )
    names = [axis.name for axis in variants]
    return [
        _section(
            protocol,
            groups[values],
            {name: value for name, value, first in zip(names, values, usual, strict=True) if value != first},
            dict(zip(names, values, strict=True)),
        )
        for values in ordered
    ]


def _section(
    protocol: Protocol, runs: Sequence[Labelled], variant: Mapping[str, Any], labels: Mapping[str, Any]
) -> Section:
    artefact, scale = protocol.artefact, protocol.scale
    cells = Cells(protocol, runs)
    done = [run for run in runs if run.record.state == "done"]
    settled = {(tuple(run.labels.items()), run.record.seed) for run in runs if run.record.state != "unfinished"}
    plans = artefact.plans(scale, only={name: [str(value)] for name, value in labels.items()})
    wanted = [({**plan.labels}, plan.labels["seed"]) for plan in plans]
    missing = sum(
        (tuple((name, value) for name, value in each.items() if name != "seed"), seed) not in settled
        for each, seed in wanted
    )
    prefix = "-".join([artefact.name, scale, *(str(value) for value in variant.values())])
    environments = list({repr(run.record.environment): run.record.environment for run in done}.values())
    return Section(
        artefact,
        scale,
        variant,
        cells.table(),
        cells.plots(prefix, "iteration" if artefact.name.startswith("figure-2") else "epoch"),
        verdicts(artefact.name, cells),
        tuple(_run(run) for run in done),
        missing,
        notes(artefact, scale, variant, [run.record for run in done], missing),
        unfinished=_paths(runs, "unfinished"),
        diverged=_paths(runs, "diverged"),
        environments=tuple(environments),
    )


def _run(run: Labelled) -> Run:
    record = run.record
    return Run(record.path, {**run.labels, "seed": record.seed}, record.config, record.result, record.environment)


def _paths(runs: Sequence[Labelled], state: str) -> tuple[Any, ...]:
    return tuple(run.record.path for run in runs if run.record.state == state)
