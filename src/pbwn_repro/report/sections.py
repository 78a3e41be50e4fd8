"""The sections of a report: one for each artefact, scale and variant, and one for each of a user's own experiments."""

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
from pbwn_repro.runs.estimates import ObservedSpeeds
from pbwn_repro.tasks import metric_of

_SCALES: Mapping[str, str] = {
    "smoke": "Smoke scale: seconds of training on stand-ins for the data, to check that everything runs. The numbers "
    "say nothing about the methods.",
    "short": "Short scale: the paper's protocol with fewer epochs. Errors are higher than the paper's, and differences "
    "between methods may change at full length.",
    "paper": "Paper scale: the published protocol at full length.",
}
NEAR = 0.05  # relative to the best value: learning rates within it count as good


def collect(root: Path) -> Report:
    """Read all run folders below `root` into a report, which lists the folders that cannot be used with the reasons."""
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder: pass the one that holds the run folders, such as runs")
    runs, left_out = read_runs(root)
    sections: list[Section] = []
    matched: set[Path] = set()
    reasons: dict[Path, str] = {}
    for artefact in KNOWN.values():
        for scale in reversed(SCALES):
            if isinstance(artefact, MeasuredArtefact):
                section, unusable = measured_section(artefact, scale, root)
                sections += [section] if section else []
                left_out |= unusable
            elif isinstance(artefact, TrainedArtefact):
                matching, excluded = labelled(artefact, scale, runs)
                reasons = {**excluded, **reasons}
                matched |= set(matching.path)
                sections += _trained(artefact, scale, matching)
    for run in runs[runs.home != OWN].itertuples():
        if run.path not in matched:
            other_protocol = f"another protocol: no run of {run.home} at scale {run.scale} has this configuration"
            left_out[run.path] = reasons.get(run.path, other_protocol)
    sections = [*with_times(sections), *own_runs(runs[runs.home == OWN])]
    finished = runs[(runs.state == "done") & (runs.home != OWN)][["path", "config", "environment"]]
    speeds = ObservedSpeeds(finished.itertuples(index=False), effort_of)
    complete = (replace(each, remarks=_remarks(root, each), notes=_notes(each), speeds=speeds) for each in sections)
    return Report(root, tuple(complete), dict(sorted(left_out.items())))


def _trained(artefact: TrainedArtefact, scale: Scale, runs: pd.DataFrame) -> list[Section]:
    """Return a section for the artefact itself and one for each of its variants, if they have runs."""
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
        compared = tuple(sentence for each in artefact.compared for sentence in _COMPARED[each](cells))
        sections.append(replace(section, verdicts=verdicts(cells), missing=missing, compared=compared))
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
    """Return the runs of the protocol that have neither finished nor diverged."""
    names = [axis.name for axis in artefact.axes(scale)]
    ended = set(runs[runs.state != "unfinished"][[*names, "seed"]].itertuples(index=False, name=None))
    plans = artefact.plans(scale, only={name: [str(value)] for name, value in variant.items()})
    if artefact.seeds_at_best:
        plans += artefact.further_plans(best_settings(artefact, scale, runs), scale)
    return (plan for plan in plans if tuple(plan.labels[name] for name in (*names, "seed")) not in ended)


def _remarks(root: Path, section: Section) -> tuple[str, ...]:
    """Return the paragraphs of remarks.md beside the runs; only an artefact itself has remarks, not its variants."""
    file = root / section.artefact.name / section.scale / "remarks.md"
    if section.is_own or section.variant or not file.is_file():
        return ()
    try:
        paragraphs = file.read_text(encoding="utf-8").split("\n\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text ({error})") from None
    return tuple(words for paragraph in paragraphs if (words := " ".join(paragraph.split())))


# --- notes on how a section compares with the paper


def _notes(section: Section) -> tuple[str, ...]:
    """Return the section's own notes, and those on scale, missing runs, comparisons, data, versions and machines."""
    notes = list(section.notes)
    if section.is_reproduced and isinstance(section.artefact, TrainedArtefact):
        notes.append(_SCALES[section.scale])
    if section.scale == "short":
        notes += _lengths(section.runs.config)
    if section.variant:
        notes.append(f"Variant: {', '.join(f'{name} = {value}' for name, value in section.variant.items())}.")
    if count := len(section.missing):
        runs, are = ("run", "is") if count == 1 else ("runs", "are")
        notes.append(f"{count} {runs} of this scale's protocol {are} missing.")
    notes += _comparisons(section)
    notes += _data(section)
    return (*notes, *_versions(section), *_machines(section.environments))


def _searched(cells: Cells) -> list[str]:
    """Warn of an incomplete search: the best of some settings need not be the best of all."""
    least = min((len(chosen.tried) for chosen in cells.chosen.values()), default=cells.search_size)
    if least >= cells.search_size:
        return []
    return [f"The search is incomplete: of the cells with runs, one has only {least} of {cells.search_size} settings."]


def _diverged(cells: Cells) -> list[str]:
    """List the diverged runs, grouped by everything but the seed."""
    axes = [axis.name for axis in (cells.axis, *cells.column_axes, *cells.searched)]
    notes = []
    for values, diverged in cells.runs[cells.runs.state == "diverged"].groupby(axes, sort=False):
        setting = "".join(f", {name} = {value}" for name, value in zip(axes[1:], values[1:], strict=True))
        notes.append(f"Diverged: {cells.title(str(values[0]))}{setting}, {_seeds(sorted(diverged.seed))}.")
    return notes


def _comparisons(section: Section) -> list[str]:
    """Note how many comparisons the verdicts rest on."""
    count = sum(verdict.difference is not None for verdict in section.verdicts)
    if count < 2:
        return []
    return [
        f"{count} comparisons, not corrected for multiple testing: about one in twenty would differ by chance if the "
        "methods were equal."
    ]


def differences_from_paper(section: Section) -> str:
    """Return how the runs differ from the paper's in length, seeds and data; empty if they do not."""
    artefact, configs = section.artefact, list(section.runs.config)
    if not isinstance(artefact, TrainedArtefact) or artefact.name not in ARTEFACTS or not configs:
        return ""
    differences, lengths = [], {_duration(config) for config in configs}
    paper, paper_unit = _duration(artefact.plans("paper", seeds=1)[0].config)
    if len(lengths) == 1 and (paper, paper_unit) not in lengths:
        [(count, unit)] = lengths
        of = "of" if unit == paper_unit else f"{unit} instead of"
        seeds = section.runs.seed.nunique()
        differences = [f"{count:,} {of} {paper:,} {paper_unit}", f"{seeds} {'seed' if seeds == 1 else 'seeds'}"]
    has_numbers = section.table is not None and any(cell.paper for cell in section.table.cells.values())
    ending = ": not comparable with the paper's numbers" if differences and has_numbers else ""
    if any(config.data.name.endswith("-jpeg") for config in configs):
        differences.append("on JPEG copies of the images")
    return ", ".join(differences) + ending


def _duration(config: RunConfig) -> tuple[int, str]:
    return (config.epochs, "epochs") if config.epochs else (config.steps or 0, "iterations")


def _lengths(configs: Iterable[RunConfig]) -> list[str]:
    """Note the length of the runs and where their learning rates drop, if it is the same for all."""
    lengths = {_length(config) for config in configs}
    return [f"Each run: {each}." for each in lengths] if len(lengths) == 1 else []


def _length(config: RunConfig) -> str:
    epochs = f"{config.epochs} {'epoch' if config.epochs == 1 else 'epochs'}"
    length = epochs if config.epochs else f"{config.steps:,} iterations"
    drops = config.schedule.drops if isinstance(config.schedule, Steps) else ()
    drops = tuple(drop for drop in drops if not config.epochs or drop <= config.epochs)
    at = f"{'epoch' if len(drops) == 1 else 'epochs'} {' and '.join(map(str, drops))}"
    return f"{length}, with drops of the learning rate at {at}" if drops else length


def _data(section: Section) -> list[str]:
    """Note the origin of the data, and how it differs from the published data set."""
    names = {config.data.name for config in section.runs.config}
    data = [environment.get("data", {}) for environment in section.environments]
    origins = sorted({f"{each['name']} from {each['origin']}" for each in data if each.get("origin")})
    notes = []
    if any(name.endswith("-jpeg") for name in names):
        notes.append(
            "Trained and tested on JPEG copies of the images, which differ from the originals by lossy compression."
        )
    for name in sorted(name for name in names if name.endswith(LOSSLESS)):
        notes.append(
            f"Trained and tested on a lossless copy of {original(name)}: the same images and labels, verified by "
            "content, but in another order than the published one, so that a seed draws other batches."
        )
    if section.is_reproduced and any(name.startswith("synthetic") or name == "digits" for name in names):
        notes.append(f"Data: {', '.join(sorted(names))}, stand-ins for the paper's data set.")
    return notes + ([f"Data: {'; '.join(origins)}."] if origins else [])


def _versions(section: Section) -> list[str]:
    """Note if the runs were made with several versions of the code."""
    codes = sorted({_code(each) for each in section.environments if each.get("code")})
    if len(codes) < 2:
        return []
    return [f"The runs mix {len(codes)} versions of the code: {', '.join(codes)}."]


def _code(environment: Mapping[str, Any]) -> str:
    code = environment["code"]
    return str(code.get("commit", "") or f"{code.get('pbwn', '')} ({str(code.get('sha256', ''))[:8]})")


def _machines(environments: Iterable[Mapping[str, Any]]) -> list[str]:
    """Note the machines that the runs were made on."""
    machines = sorted({machine(environment) for environment in environments if environment})
    if len(machines) > 1:
        return [f"Run on different hardware or versions: {'; '.join(machines)}."]
    return [f"Run on {machines[0]}."] if machines else []


def machine(environment: Mapping[str, Any]) -> str:
    """Describe a machine: processor or GPU, threads and torch version."""
    device = environment.get("device", "cpu")
    name = environment.get("processor", "an unknown processor") if device == "cpu" else device
    threads = environment.get("threads")
    parts = [str(name)]
    if device == "cpu" and threads:
        parts.append(f"{threads} {'thread' if threads == 1 else 'threads'} per run")
    torch = environment.get("packages", {}).get("torch")
    return ", ".join([*parts, *([f"torch {torch}"] if torch else [])])


# --- a user's own runs


def own_runs(runs: pd.DataFrame) -> list[Section]:
    """Return a section for each experiment: runs that differ only in method, learning rate, weight decay and seed."""
    if runs.empty:
        return []
    frame = runs.assign(
        experiment=[_experiment(config) for config in runs.config],
        method=[config.method for config in runs.config],
        lr=[config.optimizer.lr for config in runs.config],
        weight_decay=[config.optimizer.weight_decay for config in runs.config],
    )
    by_name: dict[str, list[pd.DataFrame]] = {}  # experiments with the same model and data
    for _, group in frame.groupby("experiment", sort=True):
        config = group.config.iloc[0]
        ordered = group.sort_values(["method", "lr", "weight_decay", "seed"], ignore_index=True)
        by_name.setdefault(slug(f"own {config.model} {config.data.name}"), []).append(ordered)
    sections = []
    for name, experiments in by_name.items():
        differences = _differing([json.loads(group.experiment.iloc[0]) for group in experiments])
        for number, (group, settings) in enumerate(zip(experiments, differences, strict=True), start=1):
            sections.append(_own(group, group.config.iloc[0], name if number == 1 else f"{name}-{number}", settings))
    return sections


def _experiment(config: RunConfig) -> str:
    """Return what the runs of an experiment have in common, as canonical JSON."""
    fields = {name: value for name, value in config.identity.items() if name not in ("method", "seed")}
    optimizer = config.optimizer.model_dump(mode="json", exclude={"lr", "weight_decay"})
    return json.dumps({**fields, "optimizer": optimizer}, sort_keys=True)


def _differing(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings of each experiment that others do not share, as `--set` takes them.

    Settings that only some experiments have are omitted if another setting determines them.

    >>> _differing([{"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}]), _differing([{"a": 1}])
    (['a.b=1', 'a.b=3'], [''])
    >>> _differing([{"kind": "sgd", "momentum": 0.9}, {"kind": "adamw"}])
    ['kind=sgd', 'kind=adamw']
    """
    flat = [pd.json_normalize(dict(each)).iloc[0].map(str).to_dict() for each in experiments]
    names = sorted({name for each in flat for name in each})
    differing = [name for name in names if len({each.get(name) for each in flat}) > 1]
    in_all = [name for name in differing if all(name in each for each in flat)]

    def follows(name: str, other: str) -> bool:
        return len({(each[other], each.get(name)) for each in flat}) == len({each[other] for each in flat})

    kept = in_all + [name for name in differing if not any(follows(name, other) for other in in_all)]
    return [", ".join(f"{name}={each[name]}" for name in kept if name in each) for each in flat]


def _own(runs: pd.DataFrame, config: RunConfig, name: str, settings: str) -> Section:
    metric = metric_of(config)
    methods = sorted(set(runs.method), key=lambda each: (each != "normal", each))
    rates, decays = (tuple(sorted(set(runs[each]), reverse=True)) for each in ("lr", "weight_decay"))
    axes = (
        Axis("method", tuple(methods), "row", title=lambda name: title(str(name))),
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
    """Note which runs skipped non-finite steps."""
    counts = {path.name: result["skipped_steps"] for path, result in zip(runs.path, runs.result, strict=True)}
    names = [f"{name} ({count:,})" for name, count in counts.items() if count]
    return [f"Non-finite steps were skipped in {', '.join(names)}."] if names else []


def _on_the_sphere(runs: pd.DataFrame) -> list[str]:
    """Note that the constraint held up to rounding; larger deviations are a figure instead."""
    largest = largest_deviation(runs)
    if largest is None or largest >= ROUNDING:
        return []
    return [f"Constrained norms deviate by at most {largest:.1g} of their value: rounding error."]


# --- comparisons without a verdict


def _differences(cells: Cells) -> list[str]:
    """Compare each method with the first, without a verdict, as the searches of the methods may differ."""
    first, *others = cells.curve_rows
    sentences = []
    for column in _task_columns(cells):
        for other in others:
            ours, theirs = (cells.values(row.key, column) for row in (other, first))
            if ours and theirs:
                names = (other.title, first.title, column.title if column.value else "")
                tried = [len(chosen.tried) for row in (other, first) if (chosen := cells.at(row.key, column))]
                sentences.append(_difference(cells, ours, theirs, names) + _best_of(*tried))
    return sentences


def _against_themselves(cells: Cells) -> list[str]:
    """Compare each method with itself, every other seed with the rest, as a measure of the noise."""
    sentences = []
    for row in cells.curve_rows:
        for column in _task_columns(cells):
            values = cells.values(row.key, column)
            seeds = sorted(values)
            if len(seeds) > 3:  # an interval needs two runs per side
                one, other = ({seed: values[seed] for seed in seeds[start::2]} for start in (0, 1))
                first, second = (f"{row.title} with {_seeds(part)}" for part in (one, other))
                sentences.append(f"The same method twice. {_difference(cells, one, other, (first, second, ''))}")
    return sentences


def _best_of(ours: int, theirs: int) -> str:
    """Return a sentence on how many settings the compared ones are the best of; empty if there was no choice."""
    if ours == theirs:
        return f" Each is the best of its method's {ours} settings." if ours > 1 else ""
    return f" They are the best of {ours} and of {theirs} settings."


def _seeds(seeds: Collection[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def _task_columns(cells: Cells) -> list[Column]:
    """Return the columns of the task's metric."""
    return [column for column in cells.columns if column.metric == cells.metric.name]


def _difference(cells: Cells, ours: Values, theirs: Values, names: tuple[str, str, str]) -> str:
    compared = compare(ours, theirs)
    return with_significance(difference_in_words(names, compared, cells.metric), compared)


def _good_ranges(cells: Cells) -> list[str]:
    """Return the learning rates at which each method is within 5 % of its best, if several were tried."""
    sentences = []
    for row, column, means in _means_by_rate(cells):
        best = means[_best_rate(means, cells.metric)]
        near = [rate for rate, value in means.items() if abs(value - best) <= NEAR * abs(best)]
        unit = f" {cells.metric.unit}" if cells.metric.unit else ""
        tried = len(cells.tried(row.key, column.value, "lr"))
        rates = ", ".join(f"{rate:g}" for rate in sorted(near))
        sentences.append(
            f"{_subject(row, column)} is within {100 * NEAR:g} % of its best ({significant(best)}{unit}) "
            f"at {len(near)} of {tried} {SETTINGS['lr']}s: {rates}."
        )
    return sentences


def _carried_over(cells: Cells) -> list[str]:
    """Return how much the best learning rate of the first column costs in the last one."""
    sentences = []
    for row in cells.curve_rows:
        columns = [(column, means) for each, column, means in _means_by_rate(cells) if each == row]
        if len(columns) < 2:
            continue
        best = {column: _best_rate(means, cells.metric) for column, means in columns}
        rates = ", ".join(f"{rate:g} at {column.title}" for column, rate in best.items())
        (first, _), (last, means) = columns[0], columns[-1]
        carried = means.get(best[first])
        if carried is None:
            cost = f"at {last.title}, the best rate of {first.title} was not tried or diverged"
        else:
            loss = abs(carried - means[best[last]])
            cost = f"at {last.title}, the best rate of {first.title} costs {amount(digits(loss), cells.metric.points)}"
        sentences.append(f"The best learning rate of {row.title} is {rates}: {cost}.")
    return sentences


def _means_by_rate(cells: Cells) -> list[tuple[Row, Column, dict[float, float]]]:
    """Return the mean at each learning rate, for each row and column with several; rates with diverged runs have none.

    The means are over the seeds that all rates have, so that they compare the same runs.
    """
    found = []
    for row in cells.curve_rows:
        for column in _task_columns(cells):
            tried = in_common(cells.tried(row.key, column.value, "lr"))
            means = {rate: mean(list(values.values())) for rate, values in tried.items() if not diverging(values)}
            if len(tried) > 1 and means:
                found.append((row, column, means))
    return found


def _best_rate(means: Mapping[float, float], metric: Metric) -> float:
    return min(means, key=lambda rate: metric.sign * means[rate])


def _subject(row: Row, column: Column) -> str:
    return f"{row.title}, {column.title}," if column.value else row.title


_COMPARED: Mapping[str, Callable[[Cells], list[str]]] = {
    "differences": _differences,
    "good-range": _good_ranges,
    "carries-over": _carried_over,
}
