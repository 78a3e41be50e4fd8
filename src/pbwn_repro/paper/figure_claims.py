"""What the paper claims of its figures, in its own words, and what decides each claim.

The margins are ours: the paper says 'nearly identical', a test needs a number.
"""

from __future__ import annotations

from pbwn_repro.paper.claim import Claim
from pbwn_repro.paper.criteria import Alike, BestSetting, Better, Conditioned, Higher, NotWorse

_OURS = ("pbwn-riem", "pbwn", "pbwn-epoch")
_BASELINES = ("normal", "wn")
_FASTER = "our model can converge significantly faster than the baselines"
_IDENTICAL = "`PBWN-Riem' and `PBWN' have nearly identical training curves"
_CURVES_MARGIN = 0.1

_FIGURE_1 = (
    Claim(
        "figure-1-scaled",
        "figure-1",
        "as alpha becomes larger, it is more likely that the Hessian matrix will be ill-conditioned",
        "the Hessian's condition number grows with the scale",
        Conditioned("scaled"),
    ),
    Claim(
        "figure-1-projected",
        "figure-1",
        "our method performs normalization via projection [...] which ensures the improvement of conditioning of "
        "Hessian matrix",
        "after projection the condition number is no larger than at equal magnitude",
        Conditioned("projected"),
    ),
)
_FIGURE_2 = (
    Claim(
        "figure-2a-rate",
        "figure-2a",
        "report the best performance of each method (All are under learning rate of 0.3)",
        "of the learning rates searched, 0.3 ends with the lowest training loss",
        BestSetting(("normal", "pbwn-riem", "pbwn"), "lr", 0.3),
    ),
    Claim(
        "figure-2a-faster",
        "figure-2a",
        "optimize neural networks over Oblique manifold, which can alleviate the ill-conditioned problem",
        "the training loss, averaged over the run, is lower than Normal's",
        Better(("pbwn-riem", "pbwn"), ("normal",), "mean_training_loss"),
        remark="The paper says this of the method; of Normal's curve in figure 2a its text says nothing.",
    ),
    Claim(
        "figure-2a-alike",
        "figure-2a",
        "using the ordinary gradient has nearly identical training loss curve to using Riemannian gradient",
        "the training loss, averaged over the run, differs by less than 10 %",
        Alike(("pbwn-riem", "pbwn"), _CURVES_MARGIN, "mean_training_loss", relative=True, interval="paired"),
    ),
    Claim(
        "figure-2b-jumps",
        "figure-2b",
        "in the initial phase, executing norm projection by large interval results in the sudden increase of loss",
        "the largest rise of the loss within the first epoch is higher than at T = 1",
        Higher(("50", "100"), ("1",), "early_jump"),
    ),
    Claim(
        "figure-2b-ends-well",
        "figure-2b",
        "We empirically find this trick can work well in practice",
        "the test error at the end is at most 0.5 points above that at T = 1",
        NotWorse(("10", "20", "50", "100"), ("1",), 0.5, interval="paired"),
    ),
)
_FIGURE_3 = tuple(
    claim
    for letter in "ab"
    for claim in (
        Claim(
            f"figure-3{letter}-faster",
            f"figure-3{letter}",
            _FASTER,
            "the training loss, averaged over the run, is lower than that of Normal and WN",
            Better(_OURS, _BASELINES, "mean_training_loss"),
        ),
        Claim(
            f"figure-3{letter}-alike",
            f"figure-3{letter}",
            _IDENTICAL,
            "the training loss, averaged over the run, differs by less than 10 %",
            Alike(("pbwn-riem", "pbwn"), _CURVES_MARGIN, "mean_training_loss", relative=True, interval="paired"),
        ),
    )
)
FIGURE_CLAIMS = (*_FIGURE_1, *_FIGURE_2, *_FIGURE_3)
