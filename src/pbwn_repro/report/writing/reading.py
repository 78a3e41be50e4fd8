"""How to read a report: what each outcome means, in one place for page and Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from pbwn_repro.report.model import Outcome

RULES: Mapping[Outcome, str] = {
    "holds": "the 95 % interval of the difference lies on the claimed side of zero, or within the margin that is "
    "named.",
    "does not hold": "it lies on the other side, or beyond the margin; or runs of what the claim speaks for diverged.",
    "not enough runs": "the interval contains zero, or an edge of the margin: more runs may tell; fewer than two runs "
    "on a side, none in a column that the claim speaks of, or not the same settings searched on both sides.",
}
CAUTIONS = (
    "A claim with several comparisons holds only if each of them does. Margins are ours: where the paper says 'nearly "
    "identical' or 'little', a test needs a number.",
    "n is the number of runs on each side; of times, the number of rounds in which every method took a step.",
    "Intervals are Welch's unless a comparison names another; that of a median is exact. They are not "
    "corrected for the number of comparisons: of twenty true zeros, one is expected to look like a difference.",
    "Where settings were searched, the best is the one with the lowest value of what is shown, over the seeds that "
    "settings have in common; where that is a test error, it was chosen on the test set.",
)
