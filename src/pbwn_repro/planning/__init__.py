"""From artefacts, scales and wishes to the jobs of a sweep."""

from pbwn_repro.planning.jobs import plan_jobs
from pbwn_repro.planning.sources import Sources

__all__ = ["Sources", "plan_jobs"]
