"""From artefacts and a scale, or a user's own grid, to the jobs of a sweep, to what it would do, and to what is done.

Each run is made once, however many artefacts show it.
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
from pbwn_repro.errors import UsageError, listed
from pbwn_repro.runs.estimates import TERAFLOPS, Estimate, Speeds
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.runs.jobs import Job, TrainingJob
from pbwn_repro.runs.resolution import Sources, complete, resolve, splits_of
from pbwn_repro.tasks import AnySet, training_split

Best = Mapping[str, Sequence[Labels]]  # by artefact, the settings of which further seeds are made


@dataclass(frozen=True)
class Request:
    """What is asked for: artefacts at a scale.

    seeds: of each setting; the scale's own number if None.
    only: by the name of an axis, the values that a run may have; of what is measured in one go, nothing is left then.
    best: the settings that are known to be best, which may have more seeds than others.
    """

    artefacts: Sequence[Artefact]
    scale: Scale
    seeds: int | None = None
    only: Only = field(default_factory=dict)
    best: Best = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what would be no run."""
        if self.seeds is not None and self.seeds < 1:
            raise UsageError(f"--seeds {self.seeds}: at least 1 is needed")

    def plans(self, artefact: Artefact) -> list[Plan]:
        """The training runs that one of the artefacts needs; none where it is measured in one go."""
        if not isinstance(artefact, TrainedArtefact):
            return []
        further = artefact.further_plans(self.best.get(artefact.name, ()), self.scale, self.only)
        return artefact.plans(self.scale, seeds=self.seeds, only=self.only) + further

    def sets(self) -> list[str]:
        """The names of the data sets that the runs need, each once."""
        plans = (plan for artefact in self.artefacts for plan in self.plans(artefact))
        return list(dict.fromkeys(complete(plan.overrides)[1] for plan in plans))

    def passed_over(self) -> list[str]:
        """A sentence for each artefact of which nothing is left by what was asked for."""
        empty = [each.name for each in self.artefacts if self.only and not self.plans(each)]
        return [f"{name} is passed over: no run of it has {self.words}" for name in empty]

    @property
    def words(self) -> str:
        """What the runs are to have, as a user writes it."""
        return ", ".join(f"{name}={' or '.join(sorted(values))}" for name, values in self.only.items())


def parse_only(texts: Iterable[str], request: Request) -> dict[str, set[str]]:
    """Read `name=value,name=value`: several values of a name are alternatives, several names hold together.

    Unknown names and values are errors that list the known ones.
    """
    known = _known(request)
    chosen: dict[str, set[str]] = {}
    for word in (word.strip() for text in texts for word in text.split(",") if word.strip()):
        name, separator, value = word.partition("=")
        if not separator:
            raise UsageError(f"--only {word!r}: write NAME=VALUE, such as method=pbwn")
        if name not in known:
            names = ", ".join(artefact.name for artefact in request.artefacts)
            raise UsageError(f"--only {word}: the runs of {names} have no {name!r}: {listed(name, known)}")
        found = next((each for each in known[name] if _same(each, value)), None)
        if found is None:
            raise UsageError(f"--only {word}: there is no such {name}: {listed(value, known[name])}")
        chosen.setdefault(name, set()).add(found)
    return chosen


def _known(request: Request) -> dict[str, dict[str, None]]:
    """The names and their values, over all artefacts, each once and in order."""
    known: dict[str, dict[str, None]] = {}
    for artefact in request.artefacts:
        if isinstance(artefact, TrainedArtefact):
            for axis in artefact.axes(request.scale):
                known.setdefault(axis.name, {}).update(dict.fromkeys(map(str, axis.known)))
            count = request.seeds or max(artefact.seeds[request.scale], artefact.seeds_at_best.get(request.scale, 0))
            known.setdefault("seed", {}).update(dict.fromkeys(map(str, range(1, count + 1))))
    return known


def _same(value: str, given: str) -> bool:
    try:
        return value == given or float(value) == float(given)
    except ValueError:
        return False


def plan_jobs(request: Request, out: Path, sources: Sources, speeds: Speeds | None = None) -> list[Job]:
    """The jobs that fulfil a request; a run that several artefacts show is made once."""
    jobs: dict[Path, Job] = {}
    speeds = speeds or Speeds(out, sources.cache_dir)
    for artefact in request.artefacts:
        for plan in request.plans(artefact):
            run = training_job(plan, out, sources, speeds, title_of(artefact, plan))
            jobs.setdefault(run.path, run)
        if isinstance(artefact, MeasuredArtefact) and not request.only:
            measured = measuring_job(artefact, request.scale, out, speeds)
            jobs[measured.path] = measured
    if not jobs:
        names = ", ".join(artefact.name for artefact in request.artefacts)
        raise UsageError(f"no run of {names} has {request.words}: ask for fewer")
    return list(jobs.values())


def measuring_job(artefact: MeasuredArtefact, scale: Scale, out: Path, speeds: Speeds) -> MeasuringJob:
    """The job of a measured artefact; nothing runs beside what is timed."""
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
    """The job of one training run; its data are looked at, so that its folder is known."""
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
    """A run in words, short enough for a row: of numbers the name is said too, of variants only what is unusual."""
    axes = artefact.axes(plan.scale) if isinstance(artefact, TrainedArtefact) else ()
    usual = {axis.name: axis.values[0] for axis in axes if axis.role == "variant" or len(axis.values) == 1}
    words = [
        value if isinstance(value, str) else f"{name} {value}"
        for name, value in plan.labels.items()
        if usual.get(name) != value
    ]
    return " ".join((artefact.name, *words))


def _check_labels(config: RunConfig, dataset: AnySet) -> None:
    """Notice before anything runs that a run needs more labeled images of a class than there are."""
    if config.data.labels is not None and isinstance(dataset, DataSet):
        labels = training_split(config.data, dataset).labels
        try:
            balanced_indices(labels, config.data.labels, seed=config.seed)
        except ValueError as error:
            raise UsageError(f"{config.data.name}, seed {config.seed}: {error}") from None


@dataclass(frozen=True)
class Item:
    """One run to come, or there already.

    state: what is on the disk; "no data" where a download would come first.
    seconds: on one core, or on one GPU, from its start to its end.
    """

    title: str
    state: str
    seconds: float
    bytes: int
    path: Path | None = None


def preview(request: Request, out: Path, sources: Sources, speeds: Speeds) -> list[Item]:
    """What `plan_jobs` would plan; nothing is downloaded, so that some runs have no folder yet."""
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
    """What the runs have in common, as `resolve` takes it, and what they differ in; nothing listed: as the recipe."""

    overrides: Mapping[str, Any]
    methods: tuple[str, ...]
    rates: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    seeds: int = 1

    def settings(self) -> list[dict[str, Any]]:
        """What tells each run from the others, seeds outermost: an interrupted sweep has complete first seeds."""
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
    """The jobs of a grid, and what each of them takes: they are equally long.

    The data are loaded once. What cannot be imported, configured or built, or a model whose answers are no scores, is
    told before anything runs: one run of each method is prepared.
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
    """An artefact at a scale; `done` are the runs that ended, also those that diverged.

    `seconds` on one core, or on one GPU, for all runs, and `longest` for one of them; `gpu_seconds` for all runs on a
    current GPU, whatever there is here, and 0 where the processor is what is measured. `same_as` is a smaller scale at
    which the same is measured.
    """

    runs: int
    done: int
    seconds: float
    longest: float
    gpu_seconds: float = 0.0
    same_as: Scale | None = None


def overview(out: Callable[[str], Path], speeds: Speeds) -> dict[str, dict[Scale, Status]]:
    """The status of each artefact at each scale, from the runs in the folder that `out` gives for its name."""
    finished: dict[Path, set[tuple[str, int]]] = {}
    return {
        name: {scale: status(artefact, scale, out(name), speeds, finished) for scale in SCALES}
        for name, artefact in {**ARTEFACTS, **EXPERIMENTS}.items()
    }


def status(
    artefact: Artefact, scale: Scale, out: Path, speeds: Speeds, finished: dict[Path, set[tuple[str, int]]]
) -> Status:
    """How an artefact stands at a scale; `finished` keeps what was found in folders that were looked into."""
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
        # Which setting of a cell will have further seeds is known when all have one: as many as any of them has.
        cell = str([value for key, value in plan.labels.items() if key not in searched])
        there = sum((plan.identity, seed) in finished[folder] for seed in range(seeds + 1, last + 1))
        further[cell] = max(further.get(cell, (0, 0.0)), (there, times[-1]))
    seconds = sum(times) * seeds + sum(time * (last - seeds) for _, time in further.values())
    done += sum(there for there, _ in further.values())
    return Status(runs + len(further) * (last - seeds), done, seconds, max(times), on_gpu)


def _finished(folder: Path) -> set[tuple[str, int]]:
    """The runs in a folder that have ended, diverged or not: what they are, on whatever data, and their seeds."""
    found = set()
    for path in folder.glob("*/config.json"):
        run = RunFolder(path.parent)
        if run.state in ("done", "diverged"):
            try:
                config = read_config(run.read_fields())
            except (OSError, ValueError):
                continue  # a damaged folder counts for nothing
            found.add((identity(config), config.seed))
    return found
