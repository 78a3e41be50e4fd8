"""From the table of runs to a report: a section for each artefact, scale and variant, and one for a user's own runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from pbwn_repro.catalog import ARTEFACTS, KNOWN, SCALES, Column, MeasuredArtefact, Plan, Scale, TrainedArtefact
from pbwn_repro.catalog.artefact import Axis
from pbwn_repro.catalog.relatives import RELATIVES
from pbwn_repro.config import RunConfig, Steps
from pbwn_repro.data import original
from pbwn_repro.data.cache import LOSSLESS
from pbwn_repro.errors import UsageError
from pbwn_repro.methods import title
from pbwn_repro.metrics import Metric
from pbwn_repro.report.cells import SETTINGS, Cells, best_settings, groups, labelled
from pbwn_repro.report.curves import ROUNDING, largest_deviation, plots_of, slug
from pbwn_repro.report.measured import measured_section
from pbwn_repro.report.missing import effort_of
from pbwn_repro.report.model import Report, Row, Section
from pbwn_repro.report.relatives import with_ranges, with_times
from pbwn_repro.report.runs import OWN, read_runs
from pbwn_repro.report.statistics import Values, compare, digits, diverging, in_common, mean, significant
from pbwn_repro.report.verdicts import amount, difference_in_words, verdicts, with_significance
from pbwn_repro.runs.estimates import Shown
from pbwn_repro.tasks import metric_of

_SCALES: Mapping[str, str] = {
    "smoke": "Scale smoke: seconds of training on stand-ins for the data, to see that everything runs. The numbers say "
    "nothing about the methods.",
    "short": "Scale short: the paper's protocol in fewer epochs. Errors are higher than the paper's, and "
    "differences between methods need not be those at full length.",
    "paper": "Scale paper: the published protocol at full length.",
}
NEAR = 0.05  # of the best value: rates within it are as good for a reader who has to choose one


def collect(root: Path) -> Report:
    """Read all run folders below `root` and make of them what can be shown; what cannot be trusted is named."""
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder: pass the one that holds the run folders, such as runs")
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
            elif isinstance(artefact, TrainedArtefact):
                mine, others = labelled(artefact, scale, runs)
                on_other_copies = {**others, **on_other_copies}
                matched |= set(mine.path)
                found += _trained(artefact, scale, mine)
    for run in runs[runs.home != OWN].itertuples():
        if run.path not in matched:
            protocol_differs = f"another protocol: no run of {run.home} at scale {run.scale} has this configuration"
            left_out[run.path] = on_other_copies.get(run.path, protocol_differs)
    found = [*with_times(found), *own_runs(runs[runs.home == OWN])]
    made = runs[(runs.state == "done") & (runs.home != OWN)][["path", "config", "environment"]]
    speeds = Shown(made.itertuples(index=False), effort_of)
    complete = tuple(replace(each, remarks=_remarks(root, each), notes=_notes(each), speeds=speeds) for each in found)
    return Report(root, complete, dict(sorted(left_out.items())))


def _trained(artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame) -> list[Section]:
    """A section for the artefact itself, if it has runs, and one for each of its variants that has."""
    variants = [axis for axis in artefact.axes(scale) if axis.role == "variant"]
    found = groups(runs, [axis.name for axis in variants])
    sections = []
    for values in itertools.product(*(axis.values for axis in variants)):  # the artefact itself comes first
        if values not in found:
            continue
        labels = {axis.name: value for axis, value in zip(variants, values, strict=True)}
        variant = {axis.name: labels[axis.name] for axis in variants if labels[axis.name] != axis.values[0]}
        cells = Cells(artefact, scale, found[values])
        section = _section(cells, scale, variant)
        if artefact.name == RELATIVES.name and section.table:
            section = replace(section, table=with_ranges(section.table, cells))
        missing = tuple(_missing(artefact, scale, cells.runs, labels))
        told = tuple(sentence for each in artefact.compared for sentence in _COMPARED[each](cells))
        sections.append(replace(section, verdicts=verdicts(cells), missing=missing, compared=told))
    return sections


def _section(cells: Cells, scale: Scale | Literal[""], variant: Mapping[str, Any]) -> Section:
    section = Section(cells.artefact, scale, cells.runs, variant, cells.table())
    return replace(
        section,
        plots=plots_of(cells, section.anchor),
        notes=(*_searched(cells), *_diverged(cells), *_skipped(section.runs), *_on_the_sphere(section.runs)),
        environments=tuple({repr(each): each for each in section.runs.environment}.values()),
    )


def _missing(artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame, variant: Mapping[str, Any]) -> Iterable[Plan]:
    """The runs of the protocol that have neither ended nor diverged."""
    names = [axis.name for axis in artefact.axes(scale)]
    settled = set(runs[runs.state != "unfinished"][[*names, "seed"]].itertuples(index=False, name=None))
    plans = artefact.plans(scale, only={name: [str(value)] for name, value in variant.items()})
    if artefact.seeds_at_best:
        plans += artefact.further_plans(best_settings(artefact, scale, runs), scale)
    return (plan for plan in plans if tuple(plan.labels[name] for name in (*names, "seed")) not in settled)


def _remarks(root: Path, section: Section) -> tuple[str, ...]:
    """The paragraphs of remarks.md beside the runs: of an artefact itself, not of its variants."""
    file = root / section.artefact.name / section.scale / "remarks.md"
    if section.is_own or section.variant or not file.is_file():
        return ()
    try:
        paragraphs = file.read_text(encoding="utf-8").split("\n\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text ({error})") from None
    return tuple(words for paragraph in paragraphs if (words := " ".join(paragraph.split())))


# --- what a reader has to know before comparing a section with the paper


def _notes(section: Section) -> tuple[str, ...]:
    """What the section has to say itself, its scale, what is missing, data, versions and machines."""
    found = list(section.notes)
    if section.is_reproduced and isinstance(section.artefact, TrainedArtefact):
        found.append(_SCALES[section.scale])
    if section.scale == "short":
        found += _lengths(section.runs.config)
    if section.variant:
        found.append(f"Variant: {', '.join(f'{name} = {value}' for name, value in section.variant.items())}.")
    if count := len(section.missing):
        found.append(f"{count} {'run of' if count == 1 else 'runs of'} this scale's protocol {_are(count)} missing.")
    found += _counted(section)
    found += _data(section)
    return (*found, *_versions(section), *_machines(section.environments))


def _searched(cells: Cells) -> list[str]:
    """A word of caution where a search is not complete: the best of some settings need not be the best of all."""
    least = min((len(chosen.tried) for chosen in cells.chosen.values()), default=cells.possible)
    if least >= cells.possible:
        return []
    return [f"The search is not complete: of the cells that have runs, one has {least} of {cells.possible} settings."]


def _diverged(cells: Cells) -> list[str]:
    """Which runs diverged, by what they have in common but the seed."""
    axes = [axis.name for axis in (cells.axis, *cells.column_axes, *cells.searched)]
    found = []
    for values, lost in cells.runs[cells.runs.state == "diverged"].groupby(axes, sort=False):
        place = "".join(f", {name} = {value}" for name, value in zip(axes[1:], values[1:], strict=True))
        found.append(f"Diverged: {cells.title(str(values[0]))}{place}, {_seeds(sorted(lost.seed))}.")
    return found


def _counted(section: Section) -> list[str]:
    """How many comparisons the verdicts rest on."""
    count = sum(verdict.difference is not None for verdict in section.verdicts)
    if count < 2:
        return []
    return [
        f"{count} comparisons, not corrected for their number: between equal methods, about one in twenty would differ "
        "by chance."
    ]


def beside_the_paper(section: Section) -> str:
    """How runs differ from those of the paper's table in length, seeds and data; empty if they do not."""
    artefact, configs = section.artefact, list(section.runs.config)
    if not isinstance(artefact, TrainedArtefact) or artefact.name not in ARTEFACTS or not configs:
        return ""
    words, lengths = [], {_duration(config) for config in configs}
    whole, whole_unit = _duration(artefact.plans("paper", seeds=1)[0].config)
    if len(lengths) == 1 and (whole, whole_unit) not in lengths:
        [(count, unit)] = lengths
        between = "of" if unit == whole_unit else f"{unit} instead of"
        seeds = section.runs.seed.nunique()
        words = [f"{count:,} {between} {whole:,} {whole_unit}", f"{seeds} {'seed' if seeds == 1 else 'seeds'}"]
    has_numbers = section.table is not None and any(cell.paper for cell in section.table.cells.values())
    ending = ": not comparable with the paper's numbers" if words and has_numbers else ""
    words += ["on JPEG copies of the images"] if any(config.data.name.endswith("-jpeg") for config in configs) else []
    return ", ".join(words) + ending


def _duration(config: RunConfig) -> tuple[int, str]:
    return (config.epochs, "epochs") if config.epochs else (config.steps or 0, "iterations")


def _lengths(configs: Iterable[RunConfig]) -> list[str]:
    """How long the runs are, and where their rates drop."""
    found = {_length(config) for config in configs}
    return [f"Each run: {each}." for each in found] if len(found) == 1 else []


def _length(config: RunConfig) -> str:
    epochs = f"{config.epochs} {'epoch' if config.epochs == 1 else 'epochs'}"
    length = epochs if config.epochs else f"{config.steps:,} iterations"
    drops = config.schedule.drops if isinstance(config.schedule, Steps) else ()
    drops = tuple(drop for drop in drops if not config.epochs or drop <= config.epochs)
    places = f"{'epoch' if len(drops) == 1 else 'epochs'} {' and '.join(map(str, drops))}"
    return f"{length}, the rate drops at {places}" if drops else length


def _data(section: Section) -> list[str]:
    names = {config.data.name for config in section.runs.config}
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
        return [f"Run on different hardware or versions: {'; '.join(places)}."]
    return [f"Run on {places[0]}."] if places else []


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
    alike: dict[str, list[pd.DataFrame]] = {}  # experiments with the same model and data
    for _, found in frame.groupby("experiment", sort=True):
        config = found.config.iloc[0]
        ordered = found.sort_values(["method", "lr", "weight_decay", "seed"], ignore_index=True)
        alike.setdefault(slug(f"own {config.model} {config.data.name}"), []).append(ordered)
    sections = []
    for name, experiments in alike.items():
        differences = _differing([json.loads(found.experiment.iloc[0]) for found in experiments])
        for number, (found, settings) in enumerate(zip(experiments, differences, strict=True), start=1):
            sections.append(_own(found, found.config.iloc[0], name if number == 1 else f"{name}-{number}", settings))
    return sections


def _experiment(config: RunConfig) -> str:
    """What the runs of an experiment have in common, in one fixed form."""
    fields = {name: value for name, value in config.identity.items() if name not in ("method", "seed")}
    optimizer = config.optimizer.model_dump(mode="json", exclude={"lr", "weight_decay"})
    return json.dumps({**fields, "optimizer": optimizer}, sort_keys=True)


def _differing(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings of each that some other does not share, as `--set` takes them; not what follows from one of these.

    >>> _differing([{"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}]), _differing([{"a": 1}])
    (['a.b=1', 'a.b=3'], [''])
    >>> _differing([{"kind": "sgd", "momentum": 0.9}, {"kind": "adamw"}])
    ['kind=sgd', 'kind=adamw']
    """
    flat = [pd.json_normalize(dict(each)).iloc[0].map(str).to_dict() for each in experiments]
    names = sorted({name for each in flat for name in each})
    apart = [name for name in names if len({each.get(name) for each in flat}) > 1]
    in_all = [name for name in apart if all(name in each for each in flat)]

    def follows(name: str, other: str) -> bool:
        return len({(each[other], each.get(name)) for each in flat}) == len({each[other] for each in flat})

    apart = in_all + [name for name in apart if not any(follows(name, other) for other in in_all)]
    return [", ".join(f"{name}={each[name]}" for name in apart if name in each) for each in flat]


def _own(runs: pd.DataFrame, config: RunConfig, name: str, settings: str) -> Section:
    metric = metric_of(config)
    known = sorted(set(runs.method), key=lambda each: (each != "normal", each))
    rates, decays = (tuple(sorted(set(runs[each]), reverse=True)) for each in ("lr", "weight_decay"))
    axes = (
        Axis("method", tuple(known), "row", title=lambda name: title(str(name))),
        Axis("lr", rates, "searched"),
        Axis("weight_decay", decays, "searched"),
    )
    artefact = TrainedArtefact(
        name,
        title=f"{config.model} on {config.data.name}" + (f" ({settings})" if settings else ""),
        about=f"The {metric.words} of your own runs, grouped by method, at the best setting of each.",
        protocol=f"{type(config.optimizer).__name__}, batch {config.batch_size}, {_length(config)}.",
        axes=lambda scale: axes,
        metric=metric.name,
    )
    cells = Cells(artefact, "paper", runs)
    section = _section(cells, "", {})
    return replace(section, compared=(*_differences(cells), *_against_themselves(cells), *_good_ranges(cells)))


def _skipped(runs: pd.DataFrame) -> list[str]:
    """Which runs have passed over steps that were not finite."""
    counts = {path.name: result["skipped_steps"] for path, result in zip(runs.path, runs.result, strict=True)}
    found = [f"{name} ({count:,})" for name, count in counts.items() if count]
    return [f"Steps that were not finite were skipped in {', '.join(found)}."] if found else []


def _on_the_sphere(runs: pd.DataFrame) -> list[str]:
    """That the constraint held to rounding, which is no figure."""
    largest = largest_deviation(runs)
    if largest is None or largest >= ROUNDING:
        return []
    return [f"Constrained norms deviate by {largest:.1g} of their value at most: rounding."]


# --- comparisons without a verdict


def _differences(cells: Cells) -> list[str]:
    """Each method against the first, without a verdict: which settings were searched for each is the user's affair."""
    first, *others = cells.curve_rows
    found = []
    for column in _judged(cells):
        for other in others:
            ours, theirs = (cells.values(row.key, column) for row in (other, first))
            if ours and theirs:
                names = (other.title, first.title, column.title if column.value else "")
                tried = [len(chosen.tried) for row in (other, first) if (chosen := cells.at(row.key, column))]
                found.append(_difference(cells, ours, theirs, names) + _best_of(*tried))
    return found


def _against_themselves(cells: Cells) -> list[str]:
    """Each method against itself, every other seed against the rest: what runs that differ in nothing differ by."""
    found = []
    for row in cells.curve_rows:
        for column in _judged(cells):
            values = cells.values(row.key, column)
            seeds = sorted(values)
            if len(seeds) > 3:  # two a side, as an interval needs
                one, other = ({seed: values[seed] for seed in seeds[start::2]} for start in (0, 1))
                first, second = (f"{row.title} with {_seeds(part)}" for part in (one, other))
                found.append(f"The same method twice. {_difference(cells, one, other, (first, second, ''))}")
    return found


def _best_of(ours: int, theirs: int) -> str:
    """Of how many settings the compared ones are the best; nothing where there was no choice."""
    if ours == theirs:
        return f" Each is the best of its method's {ours} settings." if ours > 1 else ""
    return f" They are the best of {ours} and the best of {theirs} settings."


def _seeds(seeds: Collection[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def _judged(cells: Cells) -> list[Column]:
    """The columns of the metric that runs are judged by."""
    return [column for column in cells.columns if column.metric == cells.metric.name]


def _difference(cells: Cells, ours: Values, theirs: Values, names: tuple[str, str, str]) -> str:
    compared = compare(ours, theirs)
    return with_significance(difference_in_words(names, compared, cells.metric), compared)


def _good_ranges(cells: Cells) -> list[str]:
    """At which learning rates each method stays within 5 % of its best, where several were tried."""
    found = []
    for row, column, means in _means_by_rate(cells):
        best = means[_best_rate(means, cells.metric)]
        near = [rate for rate, value in means.items() if abs(value - best) <= NEAR * abs(best)]
        unit = f" {cells.metric.unit}" if cells.metric.unit else ""
        tried = len(cells.tried(row.key, column.value, "lr"))
        rates = ", ".join(f"{rate:g}" for rate in sorted(near))
        found.append(
            f"{_place(row, column)} is within {100 * NEAR:g} % of its best ({significant(best)}{unit}) "
            f"at {len(near)} of {tried} {SETTINGS['lr']}s: {rates}."
        )
    return found


def _carried_over(cells: Cells) -> list[str]:
    """How much worse than its own best rate each column does at the best rate of the first."""
    found = []
    for row in cells.curve_rows:
        columns = [(column, means) for each, column, means in _means_by_rate(cells) if each == row]
        if len(columns) < 2:
            continue
        best = {column: _best_rate(means, cells.metric) for column, means in columns}
        rates = ", ".join(f"{rate:g} at {column.title}" for column, rate in best.items())
        (first, _), (last, means) = columns[0], columns[-1]
        carried = means.get(best[first])
        if carried is None:
            cost = f"at {last.title} the best rate of {first.title} was not tried or diverged"
        else:
            loss = abs(carried - means[best[last]])
            cost = f"at {last.title} the best rate of {first.title} costs {amount(digits(loss), cells.metric.points)}"
        found.append(f"{row.title} has its best learning rate at {rates}: {cost}.")
    return found


def _means_by_rate(cells: Cells) -> list[tuple[Row, Column, dict[float, float]]]:
    """Of each row and column whose search has several rates, the mean at each; none where a run diverged.

    Over the seeds that all rates have: more of the best one would compare other runs.
    """
    found = []
    for row in cells.curve_rows:
        for column in _judged(cells):
            tried = in_common(cells.tried(row.key, column.value, "lr"))
            means = {rate: mean(list(values.values())) for rate, values in tried.items() if not diverging(values)}
            if len(tried) > 1 and means:
                found.append((row, column, means))
    return found


def _best_rate(means: Mapping[float, float], metric: Metric) -> float:
    return min(means, key=lambda rate: metric.sign * means[rate])


def _place(row: Row, column: Column) -> str:
    return f"{row.title}, {column.title}," if column.value else row.title


_COMPARED: Mapping[str, Callable[[Cells], list[str]]] = {
    "differences": _differences,
    "good-range": _good_ranges,
    "carries-over": _carried_over,
}
