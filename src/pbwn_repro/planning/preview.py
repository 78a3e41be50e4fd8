"""What a sweep would do, before it does any of it: each run with its state, its time and its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pbwn_repro.catalog import Artefact, MeasuredArtefact, Plan, Scale
from pbwn_repro.catalog.artefact import Only
from pbwn_repro.planning.jobs import Best, measuring_job, plans_of, splits_of, title_of, training_job
from pbwn_repro.planning.sources import Sources
from pbwn_repro.runs.resolution import complete
from pbwn_repro.runs.speed import Speeds


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
