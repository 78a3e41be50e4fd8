"""What is missing, the command that makes it, and what it takes: of artefacts, of sections, and of undecided claims."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from scipy import stats

from pbwn_repro.catalog import ARTEFACTS, EXPERIMENTS, KNOWN, MeasuredArtefact, Plan, Scale, TrainedArtefact
from pbwn_repro.catalog.claims import Grows
from pbwn_repro.config import RunConfig
from pbwn_repro.data import original
from pbwn_repro.report.model import Decided, Report, Section, Verdict
from pbwn_repro.report.statistics import CONFIDENCE, significant
from pbwn_repro.runs.estimates import LAYER_SECONDS, TERAFLOPS, Effort, NetworkCost, effort, network_cost

ASSUMPTION = (
    f"GPU hours are the FLOPs of the runs at {TERAFLOPS:g} TFLOP/s, or {1000 * LAYER_SECONDS:g} milliseconds for each "
    "layer in a step where that is more: a count, not a measurement. Large convolutions come near the one on a current "
    "GPU; small networks and narrow deep ones, such as those of figure 2 and tables 3, 4 and 8, wait for the host that "
    "starts their kernels: the other, which a slow processor may double."
)
_MOST_SEEDS = 100
_NAMED = 6  # so many cells that lack runs are named


@dataclass(frozen=True)
class Missing:
    """Something that was not run."""

    artefact: str
    what: str
    command: str
    price: str  # empty where nothing is trained


def missing(report: Report) -> list[Missing]:
    """Artefacts without a finished run, those that have none at paper scale, and those of which runs are missing.

    Experiments of ours are named with what was begun of them, or with the short scale. Nothing, where the report is
    about runs of other kinds alone.
    """
    lines: list[Missing] = []
    if not any(section.is_reproduced for section in report.sections):
        return lines
    for name, artefact in {**ARTEFACTS, **EXPERIMENTS}.items():
        found = [section for section in report.sections if section.artefact.name == name and section.has_results]
        whole: Scale = "paper" if name in ARTEFACTS else "short"
        if not any(section.scale == whole and not section.variant for section in found):
            what = f"at {whole} scale" if found else artefact.title
            lines.append(Missing(name, what, _command(name, whole), _price(name, whole)))
        for section in found:
            if section.missing:
                cost = hours(section.missing, section)
                beside = "" if report.root.name == "runs" else f" --out {report.root.name}"
                lines.append(Missing(name, f"{len(section.missing)} of the runs", command(section) + beside, cost))
    return lines


def needed(decided: Decided, section: Section) -> str:
    """Of an undecided claim, which runs are missing, how many, and what they take; empty for all others.

    Runs of the protocol that are not there first; then, for comparisons that have all of theirs and are open all the
    same, the seeds that would decide them.
    """
    if decided.outcome != "undecided":
        return ""
    if isinstance(section.artefact, MeasuredArtefact):
        return _measurement(section.artefact, decided, section)
    assert isinstance(section.artefact, TrainedArtefact)
    sentences = [words for words in (_missing_runs(decided, section), _more_seeds(decided, section)) if words]
    text = " ".join(sentences)
    return f"Missing: {text[0].lower()}{text[1:]}" if text else ""


def _measurement(artefact: MeasuredArtefact, decided: Decided, section: Section) -> str:
    """What may decide a claim that was measured: another measurement where it timed, more seeds where it trained."""
    compared = [min(verdict.counts) for verdict in decided.verdicts if verdict.difference is not None]
    if compared and "seeds" in artefact.options(section.scale or "paper"):
        return f"Missing: more than {max(compared)} seeds; to measure again with the same ones gives the same numbers."
    what = "a quieter machine, or more rounds; with this folder moved away, " if compared else ""
    return f"Missing: {what}`{command(section)}` measures it."


def _missing_runs(decided: Decided, section: Section) -> str:
    """The runs of the protocol that a claim speaks of and that are not there, by their cells."""
    [row] = [axis for axis in section.axes if axis.role == "row"]
    columns = [axis.name for axis in section.axes if axis.role == "column"]
    keys, places = _rows_of(decided), _columns_of(decided, section)
    plans = [
        plan
        for plan in section.missing
        if (not keys or str(plan.labels[row.name]) in keys)
        and all(str(plan.labels[name]) in places for name in columns if places)
    ]
    if not plans:
        return ""
    cells = Counter(
        ", ".join([row.title(plan.labels[row.name]), *(f"{name} {plan.labels[name]}" for name in columns)])
        for plan in plans
    )
    named = [f"{place}: {count}" for place, count in cells.items()]
    listed = "; ".join(named[:_NAMED]) + (f"; and {len(named) - _NAMED} more cells" if len(named) > _NAMED else "")
    made_by = command(section) + _only({columns[0]: places} if places else {})
    copies = " FOLDER holds the copy of the data that these runs used." if "FOLDER" in made_by else ""
    words = f"{_counted(plans)} of this scale's protocol ({listed}), {hours(plans, section)}: `{made_by}`."
    return words + _at_begun_settings(plans, section) + copies


def _at_begun_settings(plans: Sequence[Plan], section: Section) -> str:
    """Of a search that was hardly begun, what the settings take that have runs: a preliminary verdict needs no more."""
    searched = [axis.name for axis in section.axes if axis.role == "searched"]
    begun = set(section.runs[searched].itertuples(index=False, name=None)) if searched else set()
    left = [plan for plan in plans if tuple(plan.labels[name] for name in searched) in begun]
    if not begun or not 0 < len(left) < len(plans):
        return ""
    are = "is" if len(left) == 1 else "are"
    if len(begun) > 1:
        return f" Of these, {_counted(left)} {are} at settings that have runs already, {hours(left, section)}."
    only = ",".join(f"{name}={value}" for name, value in zip(searched, next(iter(begun)), strict=True))
    return (
        f" At the setting that has runs already, {_counted(left)} {are} left, {hours(left, section)}: `--only {only}`."
    )


def _rows_of(decided: Decided) -> set[str]:
    """The rows that a claim speaks of, none where it speaks of all."""
    named = [getattr(decided.claim.criterion, name, ()) for name in ("rows", "row", "than", "among")]
    return {key for keys in named for key in ((keys,) if isinstance(keys, str) else keys)}


def _columns_of(decided: Decided, section: Section) -> list[str]:
    """The values of the columns that a claim speaks of, none where it speaks of all."""
    if not isinstance(decided.claim.criterion, Grows) or not section.table:
        return []
    return [section.table.columns[position].value for position in (0, -1)]


def _more_seeds(decided: Decided, section: Section) -> str:
    """How many seeds the open comparisons would take with the spread that was found, and the runs that these are."""
    assert isinstance(section.artefact, TrainedArtefact)
    assert section.scale
    wanted_by = [(seeds_for(verdict), verdict) for verdict in decided.verdicts if verdict.outcome != "holds"]
    open_ = [verdict for seeds, verdict in wanted_by if seeds is not None]
    wanted = max((seeds for seeds, _ in wanted_by if seeds is not None), default=0)
    there = max((count for verdict in open_ for count in verdict.counts), default=0)
    if wanted > _MOST_SEEDS:
        return f"With the spread found so far, more than {_MOST_SEEDS} seeds would be needed to decide what is open."
    if wanted <= there:
        return ""
    compared = _compared(open_, section)
    only = {name: [str(value)] for name, value in section.variant.items()} | compared
    plans = section.artefact.plans(section.scale, seeds=wanted, only=only)
    more = [plan for plan in plans if int(plan.labels["seed"]) > there]
    made_by = f"{_base(section)} --seeds {wanted}{_only(compared)}"
    return (
        f"With the spread found so far, about {wanted} seeds would decide the comparisons that have an interval and "
        f"are open: {len(more)} more {'run' if len(more) == 1 else 'runs'}, {hours(more, section)}: `{made_by}`."
    )


def seeds_for(verdict: Verdict) -> int | None:
    """With how many seeds Student's interval of the same spread would decide; one more than is counted at most."""
    if verdict.low is None or verdict.high is None or not verdict.gap:
        return None
    reach, there = (verdict.high - verdict.low) / 2, min(verdict.counts)
    if reach <= verdict.gap:
        return there
    wanted = _relative_reach(there) * verdict.gap / reach
    return next((count for count in range(there, _MOST_SEEDS + 1) if _relative_reach(count) <= wanted), _MOST_SEEDS + 1)


def _relative_reach(count: int) -> float:
    """How far a mean's 95 % interval reaches, over the standard deviation of so many values."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) / math.sqrt(count)


def _compared(verdicts: Sequence[Verdict], section: Section) -> dict[str, list[str]]:
    """Rows, columns and best settings of some comparisons, as `--only` takes them, where they are not all."""
    table = section.table
    assert table
    titles = {title for verdict in verdicts for title in (verdict.row, verdict.against)}
    keys = {row.key for row in table.rows if row.title in titles}
    places = {column.value for column in table.columns if column.title in {verdict.column for verdict in verdicts}}
    chosen = [cell.ours.chosen for (key, _), cell in table.cells.items() if cell.ours and key in keys]
    found = {}
    for axis in section.axes:
        best = {str(setting[axis.name]) for setting in chosen if axis.name in setting}
        compared = {"row": keys, "column": places, "searched": best}.get(axis.role, set()) & set(map(str, axis.values))
        if 0 < len(compared) < len(axis.values):
            found[axis.name] = sorted(compared)
    return found


def _only(chosen: Mapping[str, Sequence[str]]) -> str:
    """The option that keeps these alone."""
    words = ",".join(f"{name}={value}" for name, values in chosen.items() for value in values)
    return f" --only {words}" if words else ""


def _counted(plans: Sequence[Plan]) -> str:
    return f"{len(plans)} {'run' if len(plans) == 1 else 'runs'}"


def command(section: Section) -> str:
    """The command that makes the missing runs of a section, or all of them again where none is missing.

    FOLDER stands for a copy of the data that the reader has to name. A user's own runs have no such command.
    """
    if not section.scale:
        return ""
    if not section.is_reproduced:
        return f"pbwn {section.artefact.name}"
    words = _base(section)
    if isinstance(section.artefact, TrainedArtefact) and not section.missing:
        usual = max(section.artefact.seeds[section.scale], section.artefact.seeds_at_best.get(section.scale, 0))
        seeds = max(section.runs.seed, default=0)
        words += f" --seeds {seeds}" if seeds > usual else ""
    return words


def _base(section: Section) -> str:
    """The command with the section's variant and its copy of the data: runs on another copy of a set are other runs."""
    variant = [f"--only {name}={value}" for name, value in section.variant.items()]
    copies = sorted({config.data.name for config in section.runs.config})
    data = [f"--data {original(name)}=hf:FOLDER" for name in copies if name != original(name)]
    return " ".join([_command(section.artefact.name, section.scale), *variant, *data])


def hours(plans: Sequence[Plan], section: Section | None = None) -> str:
    """The GPU hours that planned runs take together, and the core hours where runs with these networks show them."""
    kinds: dict[str, list[Plan]] = {}
    for plan in plans:  # seeds alike
        kinds.setdefault(json.dumps({**plan.overrides, "seed": 0}, sort_keys=True), []).append(plan)
    alike = [(same[0].config, len(same)) for same in kinds.values()]
    on_gpu = sum(effort_of(config).gpu_seconds(TERAFLOPS * 1e12) * count for config, count in alike) / 3_600
    words = f"about {_rounded(on_gpu)} GPU hours" if on_gpu >= 0.1 else "a few GPU minutes"
    if section is None or section.speeds is None or not plans:
        return words
    on_cores = 0.0
    for config, count in alike:
        seconds = section.speeds.seconds(config, effort_of(config))
        if seconds is None:
            return words
        on_cores += seconds * count / 3_600
    cores = f"{_rounded(on_cores)} core hours" if on_cores >= 0.1 else "a few core minutes"
    return f"{words}, or {cores} at the median speed of such runs"


def _rounded(count: float) -> str:
    """Hours, of which an estimate knows two digits at best."""
    return f"{count:.1f}" if count < 10 else significant(count, 2)


@cache
def _price(name: str, scale: Scale) -> str:
    """The runs of an artefact at a scale, and the GPU hours that they take together; empty where it has none."""
    artefact = KNOWN[name]
    if not isinstance(artefact, TrainedArtefact):
        return ""
    plans = artefact.plans(scale)
    if artefact.seeds_at_best:  # of whichever setting of a cell: the first stands for all
        axes = artefact.axes(scale)
        first = {axis.name: {str(axis.values[0])} for axis in axes if axis.role == "searched"}
        plans += artefact.further_plans(list(artefact.combinations(scale, first)), scale, first)
    words = f"{len(plans)} runs, {hours(plans)}"
    others = sorted({plan.artefact for plan in plans} - {name})
    return f"{words}, shared with {' and '.join(others).replace('-', ' ')}" if others else words


def effort_of(config: RunConfig) -> Effort:
    """What a run amounts to; the cost of a network is counted once."""
    # As many classes more or less change nothing that counts.
    data = config.data.name.replace("cifar100", "cifar10")
    sizes = (config.batch_size, config.data.labels, config.data.context)
    key = (config.model, json.dumps(config.model_options), data, *sizes)
    if key not in _COSTS:
        _COSTS[key] = network_cost(config)
    return effort(config, _COSTS[key])


_COSTS: dict[tuple[object, ...], NetworkCost] = {}


def _command(name: str, scale: str) -> str:
    return f"pbwn reproduce {name} --scale {scale}"
