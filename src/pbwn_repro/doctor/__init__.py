"""What stands in the way of training here: a list of findings, each with what to do."""

from pbwn_repro.doctor.examination import examine
from pbwn_repro.doctor.finding import Finding

__all__ = ["Finding", "examine"]
