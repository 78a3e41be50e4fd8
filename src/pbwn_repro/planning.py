"""Plan the jobs of a sweep from artefacts and a scale or from a user's grid, preview them, and report their status.

A run that several artefacts need is trained once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pbwn_repro import methods
from pbwn_repro.bench.measuring import MeasuringJob, folder_of, measuring_flops
from pbwn_repro.catalog import ARTEFACTS, EXPERIMENTS, SCALES, Artefact, MeasuredArtefact, Plan, Scale, TrainedArtefact
from pbwn_repro.catalog.artefact import Labels, Only, identity
from pbwn_repro.config import RunConfig, read_config
from pbwn_repro.data import DataSet, balanced_indices
from pbwn_repro.data.loading import absolute
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.training import Training
from pbwn_repro.errors import UsageError, suggest
from pbwn_repro.runs.estimates import TERAFLOPS, Estimate, Speeds
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.runs.jobs import Job, TrainingJob
from pbwn_repro.runs.resolution import Sources, complete, resolve, splits_of
from pbwn_repro.tasks import AnySet, training_split

Best = Mapping[str, Sequence[Labels]]  # the settings to run with further seeds, by artefact


@dataclass(frozen=True)
class Request:
    """A request for the runs of artefacts at a scale.

    seeds: the number of seeds of each setting; the scale's own number if None.
    only: the values that a run may have, by the name of the axis; excludes all measured artefacts if not empty.
    best: the settings known to be best so far, which may have more seeds than the others.
    """

    artefacts: Sequence[Artefact]
    scale: Scale
    seeds: int | None = None
    only: Only = field(default_factory=dict)
    best: Best = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the number of seeds."""
        if self.seeds is not None and self.seeds < 1:
            raise UsageError(f"--seeds {self.seeds}: must be at least 1")

    def plans(self, artefact: Artefact) -> list[Plan]:
        """Return the training runs that one of the artefacts needs; none for a measured artefact."""
        if not isinstance(artefact, TrainedArtefact):
            return []
        further = artefact.further_plans(self.best.get(artefact.name, ()), self.scale, self.only)
        return artefact.plans(self.scale, seeds=self.seeds, only=self.only) + further

    def sets(self) -> list[str]:
        """Return the names of the data sets that the runs need, without duplicates."""
        plans = (plan for artefact in self.artefacts for plan in self.plans(artefact))
        return list(dict.fromkeys(complete(plan.overrides)[1] for plan in plans))

    def skipped(self) -> list[str]:
        """Return a message for each artefact that has no run matching `only`."""
        empty = [each.name for each in self.artefacts if self.only and not self.plans(each)]
        return [f"{name} is skipped: none of its runs has {self.conditions}" for name in empty]

    @property
    def conditions(self) -> str:
        """The conditions of `only`, as text."""
        return ", ".join(f"{name}={' or '.join(sorted(values))}" for name, values in self.only.items())


def parse_only(texts: Iterable[str], request: Request) -> dict[str, set[str]]:
    """Parse `name=value,name=value`: several values of a name are alternatives, several names have to hold together.

    Unknown names and values are errors that list the known ones.
    """
    known = _known_values(request)
    chosen: dict[str, set[str]] = {}
    for condition in (part.strip() for text in texts for part in text.split(",") if part.strip()):
        name, separator, value = condition.partition("=")
        if not separator:
            raise UsageError(f"--only {condition!r}: write NAME=VALUE, such as method=pbwn")
        if name not in known:
            names = ", ".join(artefact.name for artefact in request.artefacts)
            raise UsageError(f"--only {condition}: the runs of {names} have no {name!r}: {suggest(name, known)}")
        found = next((each for each in known[name] if _is_same(each, value)), None)
        if found is None:
            raise UsageError(f"--only {condition}: unknown {name}: {suggest(value, known[name])}")
        chosen.setdefault(name, set()).add(found)
    return chosen


def _known_values(request: Request) -> dict[str, dict[str, None]]:
    """Return the known values of each name over all artefacts; the dictionaries of values serve as ordered sets."""
    known: dict[str, dict[str, None]] = {}
    for artefact in request.artefacts:
        if isinstance(artefact, TrainedArtefact):
            for axis in artefact.axes(request.scale):
                known.setdefault(axis.name, {}).update(dict.fromkeys(map(str, axis.known)))
            count = request.seeds or max(artefact.seeds[request.scale], artefact.seeds_at_best.get(request.scale, 0))
            known.setdefault("seed", {}).update(dict.fromkeys(map(str, range(1, count + 1))))
    return known


def _is_same(value: str, given: str) -> bool:
    """Whether two texts are equal, also as numbers."""
    try:
        return value == given or float(value) == float(given)
    except ValueError:
        return False


def plan_jobs(request: Request, out: Path, sources: Sources, speeds: Speeds | None = None) -> list[Job]:
    """Return the jobs of a request; a run that several artefacts need becomes one job."""
    jobs: dict[Path, Job] = {}
    speeds = speeds or Speeds(out, sources.cache_dir)
    for artefact in request.artefacts:
        for plan in request.plans(artefact):
            job = training_job(plan, out, sources, speeds, title_of(artefact, plan))
            jobs.setdefault(job.path, job)
        if isinstance(artefact, MeasuredArtefact) and not request.only:
            measured = measuring_job(artefact, request.scale, out, speeds)
            jobs[measured.path] = measured
    if not jobs:
        names = ", ".join(artefact.name for artefact in request.artefacts)
        raise UsageError(f"no run of {names} has {request.conditions}: use fewer conditions")
    return list(jobs.values())


def measuring_job(artefact: MeasuredArtefact, scale: Scale, out: Path, speeds: Speeds) -> MeasuringJob:
    """Return the job of a measured artefact; a timing runs alone."""
    name, options = artefact.measurement, artefact.options(scale)
    return MeasuringJob(
        title=f"{artefact.name} {name}",
        path=folder_of(out, artefact.name, scale, name, options).path,
        measurement=name,
        options=options,
        flops=measuring_flops(name, options, speeds),
        alone=name == "time-cost",
    )


def training_job(plan: Plan, out: Path, sources: Sources, speeds: Speeds, title: str) -> TrainingJob:
    """Return the job of one training run. Loads the data, whose digest determines the folder."""
    fields, name = complete(plan.overrides)
    data = fields["data"]
    dataset = sources.load(name, splits_of(data))
    data.update(name=dataset.name, digest=dataset.digest)
    config = read_config({**fields, "processes": 1})
    _check_labels(config, dataset)
    folder = RunFolder.of(config, out, plan.artefact, plan.scale)
    folder.refuse_outdated(config)
    return TrainingJob(
        title=title,
        path=folder.path,
        config=config,
        source=sources.source_of(name),
        data_dir=sources.data_dir,
        cache_dir=sources.cache_dir,
        flops=speeds.effort(config).flops,
    )


def title_of(artefact: Artefact, plan: Plan) -> str:
    """Return a short title for a run: names are given for numbers only, and default values of variants are left out."""
    axes = artefact.axes(plan.scale) if isinstance(artefact, TrainedArtefact) else ()
    defaults = {axis.name: axis.values[0] for axis in axes if axis.role == "variant" or len(axis.values) == 1}
    words = [
        value if isinstance(value, str) else f"{name} {value}"
        for name, value in plan.labels.items()
        if defaults.get(name) != value
    ]
    return " ".join((artefact.name, *words))


def _check_labels(config: RunConfig, dataset: AnySet) -> None:
    """Raise before anything runs if a run needs more labeled images of a class than the set has."""
    if config.data.labels is not None and isinstance(dataset, DataSet):
        labels = training_split(config.data, dataset).labels
        try:
            balanced_indices(labels, config.data.labels, seed=config.seed)
        except ValueError as error:
            raise UsageError(f"{config.data.name}, seed {config.seed}: {error}") from None


@dataclass(frozen=True)
class Item:
    """One run of a preview.

    state: the state on disk, or "no data" if the data would have to be downloaded first.
    seconds: the time of the whole run on one core or one GPU.
    """

    title: str
    state: str
    seconds: float
    bytes: int
    path: Path | None = None


def preview(request: Request, out: Path, sources: Sources, speeds: Speeds) -> list[Item]:
    """Return what `plan_jobs` would plan, without downloading; runs without data have no folder yet."""
    items: dict[object, Item] = {}
    for artefact in request.artefacts:
        for plan in request.plans(artefact):
            item = _training_item(plan, out, sources, speeds, title_of(artefact, plan))
            items.setdefault(item.path or (plan.artefact, str(plan.overrides)), item)
        if isinstance(artefact, MeasuredArtefact) and not request.only:
            job = measuring_job(artefact, request.scale, out, speeds)
            items[job.path] = Item(job.title, job.state, speeds.measuring_seconds(job.flops), 0, job.path)
    return list(items.values())


def _training_item(plan: Plan, out: Path, sources: Sources, speeds: Speeds, title: str) -> Item:
    estimate = speeds.estimate(plan.config)
    fields, name = complete(plan.overrides)
    if not sources.has(name, splits_of(fields["data"])):
        return Item(title, "no data", estimate.seconds, estimate.bytes)
    job = training_job(plan, out, sources, speeds, title)
    return Item(title, job.state, estimate.seconds, estimate.bytes, job.path)


@dataclass(frozen=True)
class Grid:
    """The overrides that all runs share, as `resolve` takes them, and the values to combine; () keeps the recipe's."""

    overrides: Mapping[str, Any]
    methods: tuple[str, ...]
    rates: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    seeds: int = 1

    def settings(self) -> list[dict[str, Any]]:
        """Return the settings of each run, seeds outermost: an interrupted sweep has its first seeds complete."""
        axes = {
            "seed": tuple(range(1, self.seeds + 1)),
            "method": self.methods,
            "lr": self.rates,
            "weight_decay": self.decays,
        }
        given = {name: values for name, values in axes.items() if values}
        return [dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())]


def grid_jobs(
    grid: Grid, out: Path, speeds: Speeds, *, data_dir: Path | None = None, cache_dir: Path | None = None
) -> tuple[list[TrainingJob], Estimate]:
    """Return the jobs of a grid, and the cost of each of them, which is the same for all.

    The data are loaded once. One run of each method is prepared, so that errors in imports, configurations, models or
    their outputs are raised before anything runs.
    """
    for name in grid.methods:
        methods.method(name)
    source = absolute(complete(grid.overrides)[1])
    dataset: AnySet | None = None
    jobs: list[TrainingJob] = []
    prepared: set[str] = set()
    for setting in grid.settings():
        overrides = {**grid.overrides, **setting}
        config, dataset = resolve(overrides, data_dir=data_dir, cache_dir=cache_dir, dataset=dataset)
        folder = RunFolder.of(config, out)
        folder.refuse_outdated(config)
        if not jobs:
            estimate = speeds.estimate(config, dataset)
        if config.method not in prepared and folder.state != "done":
            Training(config, dataset, Processes()).prepared()
            prepared.add(config.method)
        words = [methods.title(config.method)]
        words += [f"{name} {setting[name]:g}" for name in ("lr", "weight_decay", "seed") if name in setting]
        jobs.append(
            TrainingJob(
                title=" ".join(words),
                path=folder.path,
                config=config,
                source=source,
                data_dir=data_dir,
                cache_dir=cache_dir,
                flops=estimate.flops,
                modules=Path.cwd(),
            )
        )
    return jobs, estimate


@dataclass(frozen=True)
class Status:
    """The status of an artefact at a scale.

    done: the number of runs that have ended, including those that diverged.
    seconds: the time of all runs on one core or one GPU; `longest` is that of the longest run.
    gpu_seconds: the time of all runs on a current GPU, whatever this machine has; 0 if the CPU is what is measured.
    same_as: a smaller scale at which the same is measured.
    """

    runs: int
    done: int
    seconds: float
    longest: float
    gpu_seconds: float = 0.0
    same_as: Scale | None = None


def overview(out: Callable[[str], Path], speeds: Speeds) -> dict[str, dict[Scale, Status]]:
    """Return the status of each artefact at each scale; `out` gives the folder of runs for an artefact's name."""
    finished: dict[Path, set[tuple[str, int]]] = {}
    return {
        name: {scale: status(artefact, scale, out(name), speeds, finished) for scale in SCALES}
        for name, artefact in {**ARTEFACTS, **EXPERIMENTS}.items()
    }


def status(
    artefact: Artefact, scale: Scale, out: Path, speeds: Speeds, finished: dict[Path, set[tuple[str, int]]]
) -> Status:
    """Return the status of an artefact at a scale; `finished` caches the finished runs of each folder."""
    if isinstance(artefact, MeasuredArtefact):
        job = measuring_job(artefact, scale, out, speeds)
        seconds = speeds.measuring_seconds(job.flops)
        smaller = SCALES[: SCALES.index(scale)]
        same_as = next((each for each in smaller if artefact.options(each) == artefact.options(scale)), None)
        return Status(1, int(job.state == "done"), seconds, seconds, same_as=same_as)
    assert isinstance(artefact, TrainedArtefact)
    seeds, runs, done, times, on_gpu = artefact.seeds[scale], 0, 0, [0.0], 0.0
    last, further = artefact.seeds_at_best.get(scale, seeds), dict[str, tuple[int, float]]()
    searched = [axis.name for axis in artefact.axes(scale) if axis.role == "searched"]
    for plan in artefact.plans(scale, seeds=1):
        folder = out / plan.artefact / scale
        if folder not in finished:
            finished[folder] = _finished(folder)
        runs += seeds
        times.append(speeds.estimate(plan.config).seconds)
        on_gpu += speeds.effort(plan.config).gpu_seconds(TERAFLOPS * 1e12) * seeds
        if finished[folder]:
            name = plan.identity
            done += sum((name, seed) in finished[folder] for seed in range(1, seeds + 1))
        # Further seeds are run for one setting of each cell, unknown before the search is complete: it is taken to be
        # the one with the most of them so far.
        cell = str([value for key, value in plan.labels.items() if key not in searched])
        further_done = sum((plan.identity, seed) in finished[folder] for seed in range(seeds + 1, last + 1))
        further[cell] = max(further.get(cell, (0, 0.0)), (further_done, times[-1]))
    seconds = sum(times) * seeds + sum(time * (last - seeds) for _, time in further.values())
    done += sum(further_done for further_done, _ in further.values())
    return Status(runs + len(further) * (last - seeds), done, seconds, max(times), on_gpu)


def _finished(folder: Path) -> set[tuple[str, int]]:
    """Return the identity and seed of each run in a folder that has ended, diverged or not."""
    found = set()
    for path in folder.glob("*/config.json"):
        run = RunFolder(path.parent)
        if run.state in ("done", "diverged"):
            try:
                config = read_config(run.read_fields())
            except (OSError, ValueError):
                continue  # damaged
            found.add((identity(config), config.seed))
    return found
