"""The jobs that artefacts need at a scale, each run once however many artefacts show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pbwn_repro.catalog import Artefact, MeasuredArtefact, Plan, Scale, TrainedArtefact
from pbwn_repro.catalog.artefact import Labels, Only
from pbwn_repro.config import RunConfig, read_config
from pbwn_repro.data import DataSet, balanced_indices
from pbwn_repro.measurements import folder_of
from pbwn_repro.planning.measuring import MeasuringJob, measuring_flops
from pbwn_repro.planning.sources import Sources
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.runs.jobs import Job, TrainingJob
from pbwn_repro.runs.resolution import complete
from pbwn_repro.runs.speed import Speeds
from pbwn_repro.tasks import AnySet, training_split

Best = Mapping[str, Sequence[Labels]]  # by artefact, the settings of which further seeds are made


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
        raise ValueError(f"--seeds {seeds}: at least 1 is needed")
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
        raise ValueError(f"no run of {names} has {_words(only or {})}: ask for fewer")
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
    return MeasuringJob(title, path, artefact.measurement, options, measuring_flops(options, speeds))


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
    """Notice before anything runs that a run needs more labeled pictures of a class than there are."""
    if config.data.labels is not None and isinstance(dataset, DataSet):
        labels = training_split(config.data, dataset).labels
        try:
            balanced_indices(labels, config.data.labels, seed=config.seed)
        except ValueError as error:
            raise ValueError(f"{config.data.name}, seed {config.seed}: {error}") from None
