"""Missing runs, the commands that make them and their cost: by artefact, by section and by undecided claim."""

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
    f"GPU hours are estimated, not measured: the FLOPs of the runs at {TERAFLOPS:g} TFLOP/s, or "
    f"{1000 * LAYER_SECONDS:g} milliseconds per layer and step if that is more. Large convolutions come close to the "
    "former on a current GPU. Small networks and narrow deep ones, such as those of figure 2 and tables 3, 4 and 8, "
    "are bound by kernel launches and take the latter, which a slow processor may double. Core hours follow from the "
    "median speed of the finished runs with the same or a similar network."
)
_MOST_SEEDS = 100  # beyond which no number of seeds is named
_NAMED = 6  # cells with missing runs that are listed


@dataclass(frozen=True)
class Missing:
    """Runs or a measurement that are missing; `price` is empty if nothing is trained."""

    artefact: str
    what: str
    command: str
    price: str


def missing(report: Report) -> list[Missing]:
    """Return the artefacts without results at full scale, and the sections with missing runs.

    Full scale is the paper's; for our own experiments it is short. Empty for a report on a user's own runs alone.
    """
    lines: list[Missing] = []
    if not any(section.is_reproduced for section in report.sections):
        return lines
    for name, artefact in {**ARTEFACTS, **EXPERIMENTS}.items():
        found = [section for section in report.sections if section.artefact.name == name and section.has_results]
        full: Scale = "paper" if name in ARTEFACTS else "short"
        if not any(section.scale == full and not section.variant for section in found):
            what = f"at {full} scale" if found else artefact.title
            lines.append(Missing(name, what, _command(name, full), _price(name, full)))
        for section in found:
            if section.missing:
                out = "" if report.root.name == "runs" else f" --out {report.root.name}"
                cost = hours(section.missing, section)
                lines.append(Missing(name, _counted(section.missing), command(section) + out, cost))
    return lines


def needed(decided: Decided, section: Section) -> str:
    """Return what would decide an undecided claim: its missing runs, then further seeds; empty for other claims."""
    if decided.outcome != "undecided":
        return ""
    if isinstance(section.artefact, MeasuredArtefact):
        return _measurement(section.artefact, decided, section)
    assert isinstance(section.artefact, TrainedArtefact)
    text = " ".join(filter(None, (_missing_runs(decided, section), _more_seeds(decided, section))))
    return f"Missing: {text[0].lower()}{text[1:]}" if text else ""


def _measurement(artefact: MeasuredArtefact, decided: Decided, section: Section) -> str:
    """Return what may decide a claim on a measurement: more seeds if it trains, otherwise another measurement."""
    compared = [min(verdict.counts) for verdict in decided.verdicts if verdict.difference is not None]
    if compared and "seeds" in artefact.options(section.scale or "paper"):
        return f"Missing: more than {max(compared)} seeds; measuring with the same seeds gives the same numbers."
    if compared:
        again = f"move this folder away and run `{command(section)}` to measure again."
        return f"Missing: a quieter machine or more rounds; {again}"
    return f"Missing: `{command(section)}` measures it."


def _missing_runs(decided: Decided, section: Section) -> str:
    """Return the missing runs of the protocol that a claim covers, by cell, with their cost and command."""
    [row] = [axis for axis in section.axes if axis.role == "row"]
    columns = [axis.name for axis in section.axes if axis.role == "column"]
    keys, values = _rows_of(decided), _columns_of(decided, section)
    plans = [
        plan
        for plan in section.missing
        if (not keys or str(plan.labels[row.name]) in keys)
        and all(str(plan.labels[name]) in values for name in columns if values)
    ]
    if not plans:
        return ""
    cells = Counter(
        ", ".join([row.title(plan.labels[row.name]), *(f"{name} {plan.labels[name]}" for name in columns)])
        for plan in plans
    )
    named = [f"{cell}: {count}" for cell, count in cells.items()]
    listed = "; ".join(named[:_NAMED]) + (f"; and {len(named) - _NAMED} more cells" if len(named) > _NAMED else "")
    made_by = command(section) + _only({columns[0]: values} if values else {})
    copies = " FOLDER is the copy of the data that these runs used." if "FOLDER" in made_by else ""
    words = f"{_counted(plans)} of this scale's protocol ({listed}), {hours(plans, section)}: `{made_by}`."
    return words + _at_started_settings(plans, section) + copies


def _at_started_settings(plans: Sequence[Plan], section: Section) -> str:
    """Return the cost of the runs at settings that already have some, which suffice for a preliminary verdict."""
    searched = [axis.name for axis in section.axes if axis.role == "searched"]
    started = set(section.runs[searched].itertuples(index=False, name=None)) if searched else set()
    at_started = [plan for plan in plans if tuple(plan.labels[name] for name in searched) in started]
    if not 0 < len(at_started) < len(plans):
        return ""
    are, cost = "is" if len(at_started) == 1 else "are", hours(at_started, section)
    if len(started) > 1:
        return f" Of these, {_counted(at_started)} {are} at settings that already have some ({cost})."
    only = ",".join(f"{name}={value}" for name, value in zip(searched, next(iter(started)), strict=True))
    return f" Of these, {_counted(at_started)} {are} at the setting that already has some ({cost}): `--only {only}`."


def _rows_of(decided: Decided) -> set[str]:
    """Return the rows that a claim names; empty if it covers all."""
    named = [getattr(decided.claim.criterion, name, ()) for name in ("rows", "row", "than", "among")]
    return {key for keys in named for key in ((keys,) if isinstance(keys, str) else keys)}


def _columns_of(decided: Decided, section: Section) -> list[str]:
    """Return the values of the columns that a claim compares; empty if it covers all."""
    if not isinstance(decided.claim.criterion, Grows) or not section.table:
        return []
    return [section.table.columns[position].value for position in (0, -1)]


def _more_seeds(decided: Decided, section: Section) -> str:
    """Return how many seeds would decide the open comparisons at the measured spread, and the runs to add."""
    assert isinstance(section.artefact, TrainedArtefact)
    assert section.scale
    needed_by = [(seeds_for(verdict), verdict) for verdict in decided.verdicts if verdict.outcome != "holds"]
    open_ = [verdict for seeds, verdict in needed_by if seeds is not None]
    seeds = max((seeds for seeds, _ in needed_by if seeds is not None), default=0)
    existing = max((count for verdict in open_ for count in verdict.counts), default=0)
    if seeds > _MOST_SEEDS:
        return f"At the measured spread, deciding the open comparisons takes more than {_MOST_SEEDS} seeds."
    if seeds <= existing:
        return ""
    compared = _compared(open_, section)
    only = {name: [str(value)] for name, value in section.variant.items()} | compared
    plans = section.artefact.plans(section.scale, seeds=seeds, only=only)
    more = [plan for plan in plans if int(plan.labels["seed"]) > existing]
    made_by = f"{_base(section)} --seeds {seeds}{_only(compared)}"
    return (
        f"At the measured spread, about {seeds} seeds would decide the open comparisons that have an interval "
        f"({len(more)} more {'run' if len(more) == 1 else 'runs'}, {hours(more, section)}): `{made_by}`."
    )


def seeds_for(verdict: Verdict) -> int | None:
    """Estimate at how many seeds an interval of the same spread decides, up to `_MOST_SEEDS` + 1; None without one."""
    if verdict.low is None or verdict.high is None or not verdict.gap:
        return None
    reach, existing = (verdict.high - verdict.low) / 2, min(verdict.counts)
    if reach <= verdict.gap:
        return existing
    target = _relative_reach(existing) * verdict.gap / reach
    counts = range(existing, _MOST_SEEDS + 1)
    return next((count for count in counts if _relative_reach(count) <= target), _MOST_SEEDS + 1)


def _relative_reach(count: int) -> float:
    """Return half the width of a mean's 95 % interval, relative to the standard deviation of `count` values."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) / math.sqrt(count)


def _compared(verdicts: Sequence[Verdict], section: Section) -> dict[str, list[str]]:
    """Return the rows, columns and best settings of some comparisons for `--only`, without axes that are complete."""
    table = section.table
    assert table
    titles = {title for verdict in verdicts for title in (verdict.row, verdict.against)}
    keys = {row.key for row in table.rows if row.title in titles}
    values = {column.value for column in table.columns if column.title in {verdict.column for verdict in verdicts}}
    chosen = [cell.ours.chosen for (key, _), cell in table.cells.items() if cell.ours and key in keys]
    found = {}
    for axis in section.axes:
        best = {str(setting[axis.name]) for setting in chosen if axis.name in setting}
        compared = {"row": keys, "column": values, "searched": best}.get(axis.role, set()) & set(map(str, axis.values))
        if 0 < len(compared) < len(axis.values):
            found[axis.name] = sorted(compared)
    return found


def _only(chosen: Mapping[str, Sequence[str]]) -> str:
    """Return the option that selects these values."""
    words = ",".join(f"{name}={value}" for name, values in chosen.items() for value in values)
    return f" --only {words}" if words else ""


def _counted(plans: Sequence[Plan]) -> str:
    return f"{len(plans)} {'run' if len(plans) == 1 else 'runs'}"


def command(section: Section) -> str:
    """Return the command for the missing runs of a section, or for all of its runs if none is missing.

    FOLDER stands for the reader's copy of the data. A user's own runs have no command.
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
    """Return the command with the section's variant and copy of the data, which is part of a run's configuration."""
    variant = [f"--only {name}={value}" for name, value in section.variant.items()]
    copies = sorted({config.data.name for config in section.runs.config})
    data = [f"--data {original(name)}=hf:FOLDER" for name in copies if name != original(name)]
    return " ".join([_command(section.artefact.name, section.scale), *variant, *data])


def hours(plans: Sequence[Plan], section: Section | None = None) -> str:
    """Return the total GPU hours of planned runs, and the core hours if the speed of their networks is known."""
    kinds: dict[str, list[Plan]] = {}
    for plan in plans:  # seeds cost the same
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
    return f"{words} or {cores}"


def _rounded(count: float) -> str:
    """Round hours to the two digits that an estimate supports."""
    return f"{count:.1f}" if count < 10 else significant(count, 2)


@cache
def _price(name: str, scale: Scale) -> str:
    """Return the number of runs of an artefact at a scale and their GPU hours; empty if nothing is trained."""
    artefact = KNOWN[name]
    if not isinstance(artefact, TrainedArtefact):
        return ""
    plans = artefact.plans(scale)
    if artefact.seeds_at_best:  # the first setting of each cell stands for the best
        axes = artefact.axes(scale)
        first = {axis.name: {str(axis.values[0])} for axis in axes if axis.role == "searched"}
        plans += artefact.further_plans(list(artefact.combinations(scale, first)), scale, first)
    words = f"{len(plans)} runs, {hours(plans)}"
    others = sorted({plan.artefact for plan in plans} - {name})
    return f"{words}, shared with {' and '.join(others).replace('-', ' ')}" if others else words


def effort_of(config: RunConfig) -> Effort:
    """Return the effort of a run; the cost of each network is counted once."""
    # The number of classes makes no relevant difference.
    data = config.data.name.replace("cifar100", "cifar10")
    sizes = (config.batch_size, config.data.labels, config.data.context)
    key = (config.model, json.dumps(config.model_options), data, *sizes)
    if key not in _COSTS:
        _COSTS[key] = network_cost(config)
    return effort(config, _COSTS[key])


_COSTS: dict[tuple[object, ...], NetworkCost] = {}


def _command(name: str, scale: str) -> str:
    return f"pbwn reproduce {name} --scale {scale}"
