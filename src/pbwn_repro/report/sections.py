"""From the table of runs to a report: a section for each artefact, scale and variant, and one for a user's own runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from pbwn_repro.catalog import BESIDE, KNOWN, SCALES, MeasuredArtefact, Plan, Scale, TrainedArtefact
from pbwn_repro.catalog.artefact import Axis
from pbwn_repro.catalog.relatives import RELATIVES
from pbwn_repro.config import RunConfig, Steps
from pbwn_repro.data.published import LOSSLESS, original
from pbwn_repro.report.cells import SETTINGS, Cells, labelled
from pbwn_repro.report.curves import plots_of, slug
from pbwn_repro.report.measured import measured_section
from pbwn_repro.report.model import Report, Section
from pbwn_repro.report.relatives import with_ranges, with_times
from pbwn_repro.report.runs import OWN, read_runs
from pbwn_repro.report.statistics import Values, compare, diverging, mean
from pbwn_repro.report.verdicts import difference_in_words, verdicts
from pbwn_repro.tasks import metric_of

_SCALES: Mapping[str, str] = {
    "smoke": "Scale smoke: seconds of training on stand-ins for the data, to see that everything runs. The numbers say "
    "nothing about the methods.",
    "short": "Scale short: the paper's protocol squeezed into fewer epochs. Errors are higher than the paper's, and "
    "differences between methods need not be those at full length.",
    "paper": "Scale paper: the published protocol at full length.",
}
NEAR = 0.05  # of the best value: rates within it are as good for a reader who has to choose one


def collect(root: Path) -> Report:
    """Read all run folders below `root` and make of them what can be shown; what cannot be trusted is named."""
    if not root.is_dir():
        raise ValueError(f"{root} is no folder: give the one that holds the run folders, such as runs")
    runs, left_out = read_runs(root)
    found: list[Section] = []
    matched: set[Path] = set()
    on_other_copies: dict[Path, str] = {}
    for artefact in KNOWN.values():
        for scale in reversed(SCALES):
            if isinstance(artefact, MeasuredArtefact):
                section, damaged = measured_section(artefact, scale, root)
                found += [section] if section else []
                left_out |= damaged
            elif isinstance(artefact, TrainedArtefact) and _has_own_runs(artefact, scale, runs):
                mine, others = labelled(artefact, scale, runs)
                on_other_copies = {**others, **on_other_copies}
                matched |= set(mine.path)
                found += _trained(artefact, scale, mine)
    for run in runs[runs.home != OWN].itertuples():
        if run.path not in matched:
            protocol_differs = f"another protocol: no run of {run.home} at scale {run.scale} has this configuration"
            left_out[run.path] = on_other_copies.get(run.path, protocol_differs)
    found = with_times(found)
    complete = (replace(each, remarks=_remarks(root, each), notes=_notes(each)) for each in found)
    return Report(root, (*complete, *own_runs(runs[runs.home == OWN])), dict(sorted(left_out.items())))


def _has_own_runs(artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame) -> bool:
    """Whether a section is worth a look: what stands beside the paper's artefacts borrows some of their runs."""
    return artefact.name not in BESIDE or bool(((runs.scale == scale) & (runs.home == artefact.name)).any())


def _trained(artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame) -> list[Section]:
    """A section for the artefact itself, if it has runs, and one for each of its variants that has."""
    variants = [axis for axis in artefact.axes(scale) if axis.role == "variant"]
    names = [axis.name for axis in variants]
    groups = dict(iter(runs.groupby(names, sort=False))) if names and len(runs) else {(): runs} if len(runs) else {}
    ordered = sorted(
        groups, key=lambda values: [axis.values.index(v) for axis, v in zip(variants, values, strict=True)]
    )
    sections = []
    for values in ordered:
        labels = dict(zip(names, values, strict=True))
        variant = {axis.name: labels[axis.name] for axis in variants if labels[axis.name] != axis.values[0]}
        cells = Cells(artefact, scale, groups[values])
        section = _section(cells, groups[values], scale, variant)
        if artefact.name == RELATIVES.name and section.table:
            section = replace(section, table=with_ranges(section.table, cells))
        missing = tuple(_missing(artefact, scale, groups[values], labels))
        sections.append(replace(section, verdicts=verdicts(cells), missing=missing))
    return sections


def _section(cells: Cells, runs: pd.DataFrame, scale: Scale | Literal[""], variant: Mapping[str, Any]) -> Section:
    done = runs[runs.state == "done"]
    section = Section(
        *(cells.artefact, scale, done, variant, cells.table()),
        notes=(*_searched(cells), *_diverged(cells, runs)),
        unfinished=tuple(runs[runs.state == "unfinished"].path),
        diverged=tuple(runs[runs.state == "diverged"].path),
        environments=tuple({repr(each): each for each in done.environment}.values()),
    )
    return replace(section, plots=plots_of(cells, section.anchor))


def _missing(artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame, variant: Mapping[str, Any]) -> Iterable[Plan]:
    """The runs of the protocol that have neither ended nor diverged."""
    names = [axis.name for axis in artefact.axes(scale)]
    settled = set(runs[runs.state != "unfinished"][[*names, "seed"]].itertuples(index=False, name=None))
    plans = artefact.plans(scale, only={name: [str(value)] for name, value in variant.items()})
    return (plan for plan in plans if tuple(plan.labels[name] for name in (*names, "seed")) not in settled)


def _remarks(root: Path, section: Section) -> tuple[str, ...]:
    """The paragraphs of remarks.md beside the runs: of an artefact itself, not of its variants."""
    file = root / section.artefact.name / section.scale / "remarks.md"
    if section.variant or not file.is_file():
        return ()
    try:
        paragraphs = file.read_text(encoding="utf-8").split("\n\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error})") from None
    return tuple(words for paragraph in paragraphs if (words := " ".join(paragraph.split())))


# --- what a reader has to know before comparing a section with the paper


def _notes(section: Section) -> tuple[str, ...]:
    """What the section has to say itself, its scale, what is missing, data, versions and machines."""
    found = list(section.notes)
    configs = list(section.runs.config) if len(section.runs) else []
    if section.is_reproduced and isinstance(section.artefact, TrainedArtefact):
        found.append(_SCALES[section.scale])
    if section.scale == "short":
        found += _lengths(configs)
    if section.variant:
        found.append(f"Variant: {', '.join(f'{name} = {value}' for name, value in section.variant.items())}.")
    if count := len(section.missing):
        found.append(f"{count} {'run of' if count == 1 else 'runs of'} this scale's protocol {_are(count)} missing.")
    found += _counted(section)
    found += _data(section, configs)
    return (*found, *_versions(section), *_machines(section.environments))


def _searched(cells: Cells) -> list[str]:
    """A word of caution where a search is not complete: the best of some settings need not be the best of all."""
    least = min((len(chosen.tried) for chosen in cells.chosen.values()), default=cells.possible)
    if least >= cells.possible:
        return []
    return [f"The search is not complete: of the cells that have runs, one has {least} of {cells.possible} settings."]


def _diverged(cells: Cells, runs: pd.DataFrame) -> list[str]:
    """Which runs diverged, by what they have in common but the seed."""
    axes = [axis.name for axis in (cells.axis, *cells.column_axes, *cells.searched)]
    found = []
    for values, lost in runs[runs.state == "diverged"].groupby(axes, sort=False):
        place = "".join(f", {name} = {value}" for name, value in zip(axes[1:], values[1:], strict=True))
        found.append(f"Diverged: {cells.title(str(values[0]))}{place}, seeds {', '.join(map(str, sorted(lost.seed)))}.")
    return found


def _counted(section: Section) -> list[str]:
    """How many comparisons the verdicts rest on."""
    count = sum(verdict.difference is not None for verdict in section.verdicts)
    if count < 2:
        return []
    return [f"{count} comparisons with the claims: of twenty that compare equals, one is expected to look different."]


def _lengths(configs: Sequence[RunConfig]) -> list[str]:
    """How long the runs are, and where their rates drop."""
    found = {_length(config) for config in configs}
    return [f"Each run: {each}." for each in found] if len(found) == 1 else []


def _length(config: RunConfig) -> str:
    length = f"{config.epochs} epochs" if config.epochs else f"{config.steps:,} iterations"
    drops = config.schedule.drops if isinstance(config.schedule, Steps) else ()
    drops = tuple(drop for drop in drops if not config.epochs or drop <= config.epochs)
    places = f"{'epoch' if len(drops) == 1 else 'epochs'} {' and '.join(map(str, drops))}"
    return f"{length}, the rate drops at {places}" if drops else length


def _data(section: Section, configs: Sequence[RunConfig]) -> list[str]:
    names = {config.data.name for config in configs}
    data = [environment.get("data", {}) for environment in section.environments]
    origins = sorted({f"{each['name']} from {each['origin']}" for each in data if each.get("origin")})
    found = []
    if any(name.endswith("-jpeg") for name in names):
        found.append("Trained and tested on JPEG copies of the original images, which differ by their compression.")
    for name in sorted(name for name in names if name.endswith(LOSSLESS)):
        found.append(
            f"Trained and tested on a lossless copy of {original(name)}: the same images and labels, compared by "
            "content, in another order than the published one, so that a seed draws other batches."
        )
    if any(name.endswith("-png") for name in names):
        found.append("Trained and tested on lossless copies: the same images as the original set, in another order.")
    if section.is_reproduced and any(name.startswith("synthetic") or name == "digits" for name in names):
        found.append(f"Data: {', '.join(sorted(names))}, stand-ins for the paper's set.")
    return found + ([f"Data: {'; '.join(origins)}."] if origins else [])


def _versions(section: Section) -> list[str]:
    """Whether the runs were made with several versions of the code."""
    codes = sorted({_code(each) for each in section.environments if each.get("code")})
    if len(codes) < 2:
        return []
    return [f"The runs mix {len(codes)} versions of the code: {', '.join(codes)}."]


def _code(environment: Mapping[str, Any]) -> str:
    code = environment["code"]
    return str(code.get("commit", "") or f"{code.get('pbwn', '')} ({str(code.get('sha256', ''))[:8]})")


def _machines(environments: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the runs were made on, a sentence."""
    places = sorted({machine(environment) for environment in environments if environment})
    if len(places) > 1:
        return [f"Made on different hardware or versions: {'; '.join(places)}."]
    return [f"Made on {places[0]}."] if places else []


def machine(environment: Mapping[str, Any]) -> str:
    """Processor or GPU, threads and torch."""
    device = environment.get("device", "cpu")
    name = environment.get("processor", "an unknown processor") if device == "cpu" else device
    threads = environment.get("threads")
    parts = [str(name)]
    if device == "cpu" and threads:
        parts.append(f"{threads} {'thread' if threads == 1 else 'threads'} a run")
    torch = environment.get("packages", {}).get("torch")
    return ", ".join([*parts, *([f"torch {torch}"] if torch else [])])


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


# --- a user's own runs


def own_runs(runs: pd.DataFrame) -> list[Section]:
    """A section for each experiment: runs that differ in method, learning rate, weight decay and seed alone."""
    if runs.empty:
        return []
    frame = runs.assign(
        experiment=[_experiment(config) for config in runs.config],
        method=[config.method for config in runs.config],
        lr=[config.optimizer.lr for config in runs.config],
        weight_decay=[config.optimizer.weight_decay for config in runs.config],
    )
    sections, names = [], dict[str, int]()
    for _, found in frame.groupby("experiment", sort=True):
        config = found.config.iloc[0]
        name = slug(f"own {config.model} {config.data.name}")
        names[name] = names.get(name, 0) + 1
        ordered = found.sort_values(["method", "lr", "weight_decay", "seed"], ignore_index=True)
        sections.append(_own(ordered, config, name if names[name] == 1 else f"{name}-{names[name]}"))
    return sections


def _experiment(config: RunConfig) -> str:
    """What the runs of an experiment have in common, in one fixed form."""
    differing = {"method", "seed"}
    fields = {name: value for name, value in config.identity.items() if name not in differing}
    optimizer = {name: value for name, value in fields["optimizer"].items() if name not in ("lr", "weight_decay")}
    return json.dumps({**fields, "optimizer": optimizer}, sort_keys=True)


def _own(runs: pd.DataFrame, config: RunConfig, name: str) -> Section:
    metric = metric_of(config)
    known = sorted(set(runs.method), key=lambda each: (each != "normal", each))
    rates, decays = (tuple(sorted(set(runs[each]), reverse=True)) for each in ("lr", "weight_decay"))
    axes = (
        Axis("method", tuple(known), "row"),
        Axis("lr", rates, "searched"),
        Axis("weight_decay", decays, "searched"),
    )
    optimizer = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[config.optimizer.kind]
    artefact = TrainedArtefact(
        name,
        title=f"{config.model} on {config.data.name}",
        about=f"The {metric.words} of your own runs, grouped by method, at the best setting of each.",
        protocol=f"{optimizer}, batch {config.batch_size}, {_length(config)}.",
        axes=lambda scale: axes,
        metric=metric.name,
    )
    cells = Cells(artefact, "paper", runs)
    section = _section(cells, runs, "", {})
    notes = (*section.notes, *_data(section, list(section.runs.config)), *_versions(section))
    return replace(
        section,
        compared=(*_differences(cells, known), *_widths(cells, known)),
        notes=(*notes, *_machines(section.environments)),
    )


def _differences(cells: Cells, methods: Sequence[str]) -> list[str]:
    """Each method against the first, without a verdict: which settings were searched for each is the user's affair."""
    column = next(column for column in cells.columns if column.metric == cells.metric.name)
    first, found = methods[0], []
    for other in methods[1:]:
        ours, theirs = cells.values(other, column), cells.values(first, column)
        if ours and theirs:
            compared = compare(ours, theirs)
            plain = mean(list(ours.values())) - mean(list(theirs.values()))
            difference = compared.interval.difference if compared.interval else plain
            names = (cells.title(other), cells.title(first), "")
            sentence = f"The {difference_in_words(names, compared, cells.metric, difference)}."
            tried = [len(chosen.tried) for key in (other, first) if (chosen := cells.at(key, column))]
            search = f" It is the best of {tried[0]} and of {tried[1]} settings." if max(tried) > 1 else ""
            found.append(sentence + search)
    return found


def _widths(cells: Cells, methods: Sequence[str]) -> list[str]:
    """From which to which learning rate each method stays within 5 % of its best, where several were tried."""
    found = []
    for key in methods:
        chosen = cells.chosen.get((key, ""))
        if chosen is None or len(cells.runs.lr.unique()) < 2:
            continue
        decay = chosen.setting["weight_decay"]
        mine = cells.runs[(cells.runs.method == key) & (cells.runs.weight_decay == decay)]
        means = {rate: _mean_of(runs, cells) for rate, runs in mine[mine.state != "unfinished"].groupby("lr")}
        best = means[chosen.setting["lr"]]
        if best is None:
            continue
        near = [rate for rate, value in means.items() if value is not None and abs(value - best) <= NEAR * abs(best)]
        words = (
            f"{min(near):g} to {max(near):g}, a factor of {max(near) / min(near):.3g}"
            if len(near) > 1
            else f"{near[0]:g} alone"
        )
        unit = f" {cells.metric.unit}" if cells.metric.unit else ""
        found.append(
            f"{cells.title(key)} is within {100 * NEAR:g} % of its best ({best:.3g}{unit}) at the {SETTINGS['lr']}s "
            f"{words}, of {', '.join(f'{rate:g}' for rate in means)}."
        )
    return found


def _mean_of(runs: pd.DataFrame, cells: Cells) -> float | None:
    """The mean of a setting's runs; none where one of them diverged."""
    values: Values = dict(
        zip(runs.seed, runs[cells.metric.name].where(runs.state == "done", float("inf")), strict=True)
    )
    return None if diverging(values) else mean(list(values.values()))
