"""From artefacts and a scale to the jobs of a sweep, to what it would do, and to what is done.

Each run is made once, however many artefacts show it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pbwn_repro.bench.measuring import folder_of, measure
from pbwn_repro.catalog import ARTEFACTS, EXPERIMENTS, SCALES, Artefact, MeasuredArtefact, Plan, Scale, TrainedArtefact
from pbwn_repro.catalog.artefact import Labels, Only, identity
from pbwn_repro.config import RunConfig, read_config
from pbwn_repro.data import DataSet, balanced_indices
from pbwn_repro.engine.reporting import Reporter
from pbwn_repro.engine.signals import Interrupted, StopRequest
from pbwn_repro.errors import UsageError, listed
from pbwn_repro.models import recipe
from pbwn_repro.runs.estimates import TERAFLOPS, Speeds
from pbwn_repro.runs.folder import RunFolder, State
from pbwn_repro.runs.jobs import Job, TrainingJob
from pbwn_repro.runs.resolution import Sources, complete
from pbwn_repro.tasks import AnySet, training_split

Choice = Mapping[str, frozenset[str]]
Best = Mapping[str, Sequence[Labels]]  # by artefact, the settings of which further seeds are made


def parse_only(texts: Iterable[str], artefacts: Sequence[Artefact], scale: Scale, seeds: int | None) -> Choice:
    """Read `name=value,name=value`: several values of a name are alternatives, several names hold together.

    Unknown names and values are errors that list the known ones.
    """
    known = _known(artefacts, scale, seeds)
    chosen: dict[str, set[str]] = {}
    for word in (word.strip() for text in texts for word in text.split(",") if word.strip()):
        name, separator, value = word.partition("=")
        if not separator:
            raise UsageError(f"--only {word!r}: write NAME=VALUE, such as method=pbwn")
        if name not in known:
            names = ", ".join(artefact.name for artefact in artefacts)
            raise UsageError(f"--only {word}: the runs of {names} have no {name!r}: {listed(name, known)}")
        found = next((each for each in known[name] if _same(each, value)), None)
        if found is None:
            raise UsageError(f"--only {word}: there is no such {name}: {listed(value, known[name])}")
        chosen.setdefault(name, set()).add(found)
    return {name: frozenset(values) for name, values in chosen.items()}


def _known(artefacts: Sequence[Artefact], scale: Scale, seeds: int | None) -> dict[str, dict[str, None]]:
    """The names and their values, over all artefacts, each once and in order."""
    known: dict[str, dict[str, None]] = {}
    for artefact in artefacts:
        if isinstance(artefact, TrainedArtefact):
            for axis in artefact.axes(scale):
                known.setdefault(axis.name, {}).update(dict.fromkeys(map(str, axis.known)))
            count = max(artefact.seeds[scale], artefact.seeds_at_best.get(scale, 0)) if seeds is None else seeds
            known.setdefault("seed", {}).update(dict.fromkeys(map(str, range(1, count + 1))))
    return known


def _same(value: str, wanted: str) -> bool:
    try:
        return value == wanted or float(value) == float(wanted)
    except ValueError:
        return False


@dataclass(frozen=True, eq=False)
class MeasuringJob:
    """What is computed or timed in one go; nothing runs beside what is timed."""

    title: str
    path: Path
    measurement: str
    options: Mapping[str, Any]
    flops: float = 0.0
    alone: bool = True

    @property
    def state(self) -> State:
        """Where the measurement stands on the disk."""
        return RunFolder(self.path).state

    def make(self, device: torch.device, reporter: Reporter) -> None:
        """Measure; asked to stop, it ends between two pieces."""
        begun = False

        def tell(done: int, total: int, doing: str) -> None:
            nonlocal begun
            if stop.requested:
                raise Interrupted(f"stopped in {self.path}; run the same command to resume")
            if not begun:
                reporter.begin(self.title, done, total)
                begun = True
            reporter.step(done, 0.0, 0.0, 0.0)

        with StopRequest() as stop:
            try:
                measure(self.measurement, self.options, RunFolder(self.path), progress=tell)
            finally:
                reporter.end()


def measuring_flops(options: Mapping[str, Any], speeds: Speeds) -> float:
    """How much work a measurement is: a step of each method and network in every round, or runs and what they take."""
    if options.keys() >= {"networks", "moments"}:
        return _visiting_flops(options, speeds)
    flops = 0.0
    for name in options["networks"] if "rounds" in options else ():
        fields = recipe(name)
        sized = {**fields, "data": {**fields["data"], "digest": ""}, "batch_size": options["batch_sizes"][name]}
        step = speeds.effort(read_config({**sized, "method": "normal"})).step_flops
        flops += step * len(options["methods"]) * (options["rounds"] + 1)  # one round to warm up
    return flops


def _visiting_flops(options: Mapping[str, Any], speeds: Speeds) -> float:
    """Runs of each network, and products with the Hessian at each moment: about 75, of four training steps each."""
    flops, count = 0.0, options["seeds"] * len(options["methods"])
    for name, wishes in options["networks"].items():
        fields, _ = complete({**wishes, "model": name, "method": "normal"})
        config = read_config({**fields, "data": {**fields["data"], "digest": ""}, "processes": 1, "seed": 1})
        work = speeds.effort(config)
        products = 300 * len(options["moments"]) * options["examples"][name] / config.batch_size
        flops += count * work.step_flops * (work.steps + products)
    return flops


def plans_of(
    artefacts: Sequence[Artefact],
    scale: Scale,
    *,
    seeds: int | None = None,
    only: Only | None = None,
    best: Best | None = None,
) -> list[Plan]:
    """The training runs that the artefacts need."""
    if seeds is not None and seeds < 1:
        raise UsageError(f"--seeds {seeds}: at least 1 is needed")
    found: list[Plan] = []
    for artefact in artefacts:
        if isinstance(artefact, TrainedArtefact):
            found += artefact.plans(scale, seeds=seeds, only=only)
            found += artefact.further_plans((best or {}).get(artefact.name, ()), scale, only)
    return found


def sets_of(plans: Iterable[Plan]) -> list[str]:
    """The names of the data sets that the runs need, each once."""
    return list(dict.fromkeys(complete(plan.wishes)[1] for plan in plans))


def plan_jobs(
    artefacts: Sequence[Artefact],
    scale: Scale,
    out: Path,
    sources: Sources,
    *,
    seeds: int | None = None,
    only: Only | None = None,
    best: Best | None = None,
    speeds: Speeds | None = None,
) -> list[Job]:
    """The jobs that make the artefacts; a run that several of them show is made once."""
    jobs: dict[Path, Job] = {}
    speeds = speeds or Speeds(out, sources.cache_dir)
    for artefact in artefacts:
        for plan in plans_of([artefact], scale, seeds=seeds, only=only, best=best):
            run = training_job(plan, out, sources, speeds, title_of(artefact, plan))
            jobs.setdefault(run.path, run)
        if isinstance(artefact, MeasuredArtefact) and not only:
            measured = measuring_job(artefact, scale, out, speeds)
            jobs[measured.path] = measured
    if not jobs:
        names = ", ".join(artefact.name for artefact in artefacts)
        raise UsageError(f"no run of {names} has {_words(only or {})}: ask for fewer")
    return list(jobs.values())


def passed_over(artefacts: Sequence[Artefact], scale: Scale, *, seeds: int | None, only: Only) -> list[str]:
    """A sentence for each artefact of which nothing is left by what was asked for."""
    empty = [one.name for one in artefacts if only and not plans_of([one], scale, seeds=seeds, only=only)]
    return [f"{name} is passed over: no run of it has {_words(only)}" for name in empty]


def _words(only: Only) -> str:
    return ", ".join(f"{name}={' or '.join(sorted(values))}" for name, values in only.items())


def measuring_job(artefact: MeasuredArtefact, scale: Scale, out: Path, speeds: Speeds) -> MeasuringJob:
    """The job of a measured artefact."""
    options = artefact.options(scale)
    path = folder_of(out, artefact.name, scale, artefact.measurement, options).path
    title = f"{artefact.name} {artefact.measurement}"
    is_timed = artefact.measurement == "time-cost"
    return MeasuringJob(title, path, artefact.measurement, options, measuring_flops(options, speeds), alone=is_timed)


def training_job(plan: Plan, out: Path, sources: Sources, speeds: Speeds, title: str) -> TrainingJob:
    """The job of one training run; its data are looked at, so that its folder is known."""
    fields, name = complete(plan.wishes)
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


def splits_of(data: Mapping[str, Any]) -> list[str]:
    """The splits that a configuration's part on data asks for."""
    return [*data.get("train", ["train"]), data.get("test", "test")]


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


def preview(
    artefacts: Sequence[Artefact],
    scale: Scale,
    out: Path,
    sources: Sources,
    speeds: Speeds,
    *,
    seeds: int | None = None,
    only: Only | None = None,
    best: Best | None = None,
) -> list[Item]:
    """What `plan_jobs` would plan; nothing is downloaded, so that some runs have no folder yet."""
    items: dict[object, Item] = {}
    for artefact in artefacts:
        for plan in plans_of([artefact], scale, seeds=seeds, only=only, best=best):
            item = _training_item(plan, out, sources, speeds, title_of(artefact, plan))
            items.setdefault(item.path or (plan.artefact, str(plan.wishes)), item)
        if isinstance(artefact, MeasuredArtefact) and not only:
            job = measuring_job(artefact, scale, out, speeds)
            seconds = speeds.measuring_seconds(job.flops)
            items[job.path] = Item(job.title, job.state, seconds, 0, job.path)
    return list(items.values())


def _training_item(plan: Plan, out: Path, sources: Sources, speeds: Speeds, title: str) -> Item:
    estimate = speeds.estimate(plan.config)
    fields, name = complete(plan.wishes)
    if not sources.has(name, splits_of(fields["data"])):
        return Item(title, "no data", estimate.seconds, estimate.bytes)
    job = training_job(plan, out, sources, speeds, title)
    return Item(title, job.state, estimate.seconds, estimate.bytes, job.path)


@dataclass(frozen=True)
class Standing:
    """An artefact at a scale; `done` are the runs that ended, also those that diverged.

    `seconds` on one core, or on one GPU, for all runs, and `longest` for one of them; `gpu_seconds` for all runs on a
    current GPU, whatever there is here, and 0 where the processor is what is measured.
    """

    runs: int
    done: int
    seconds: float
    longest: float
    gpu_seconds: float = 0.0


def overview(out: Path, speeds: Speeds) -> dict[str, dict[Scale, Standing]]:
    """The standing of each artefact at each scale, from what is on the disk below `out`."""
    finished: dict[Path, set[tuple[str, int]]] = {}
    return {
        name: {scale: standing(artefact, scale, out, speeds, finished) for scale in SCALES}
        for name, artefact in {**ARTEFACTS, **EXPERIMENTS}.items()
    }


def standing(
    artefact: Artefact, scale: Scale, out: Path, speeds: Speeds, finished: dict[Path, set[tuple[str, int]]]
) -> Standing:
    """How an artefact stands at a scale; `finished` keeps what was found in folders that were looked into."""
    if isinstance(artefact, MeasuredArtefact):
        job = measuring_job(artefact, scale, out, speeds)
        seconds = speeds.measuring_seconds(job.flops)
        return Standing(1, int(job.state == "done"), seconds, seconds)
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
    return Standing(runs + len(further) * (last - seeds), done, seconds, max(times), on_gpu)


def _finished(folder: Path) -> set[tuple[str, int]]:
    """The runs in a folder that have ended, diverged or not: what they are, on whatever data, and their seeds."""
    found = set()
    for path in folder.glob("*/config.json"):
        run = RunFolder(path.parent)
        if run.state in ("done", "diverged"):
            try:
                config = read_config(json.loads(path.read_text()))
            except (OSError, ValueError, TypeError):
                continue  # a damaged folder counts for nothing
            found.add((identity(config), config.seed))
    return found
