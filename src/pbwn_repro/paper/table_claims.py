"""What the paper claims of its tables, in its own words, and what decides each claim.

The margins are ours: the paper says 'little' or 'no significant difference', a test needs a number.
"""

from __future__ import annotations

from pbwn_repro.paper.claim import Claim
from pbwn_repro.paper.criteria import Alike, Better, Costs, Grows, MostlyBest

_OURS = ("pbwn-riem", "pbwn", "pbwn-epoch")
_BASELINES = ("normal", "wn")
_CONSISTENT = "our methods consistently achieve better performance when using different depths"
_GAINS = "with the depth increasing, our methods obtain more performance gains"
_SAME = "there is no significant difference among the performance of different norm projection methods"
_EPOCH_BEST = "`PBWN-Epoch' works the best for most cases"
_VARIANTS_MARGIN = 0.5  # points; a little more than the largest difference between variants in tables 3 and 4

_TABLES_1_2 = (
    Claim(
        "table-1-better",
        "table-1",
        "our methods also can achieve significant improvements over the baselines",
        "the test error is lower than that of Normal and WN",
        Better(_OURS, _BASELINES),
    ),
    Claim(
        "table-2-better",
        "table-2",
        "our model can significantly boost the test performance of the baselines",
        "the test error is lower than that of Normal and WN",
        Better(_OURS, _BASELINES),
        remark="By the paper's own means and spreads, PBWN-Riem against Normal on CIFAR-100 (27.49 and 27.80) is no "
        "significant difference; the others are.",
    ),
)
_TABLES_3_4 = (
    Claim(
        "table-3-better",
        "table-3",
        _CONSISTENT,
        "the test error is lower than that of Normal and WN",
        Better(_OURS, _BASELINES),
        contradicted=(("pbwn-riem", "Res-20"), ("pbwn", "Res-20"), ("pbwn", "Res-44")),
        remark="At Res-20 BaseLine (7.94) is better than PBWN-Riem (8.03) and PBWN (8.08); at Res-44 WN (6.86) is "
        "better than PBWN (6.89).",
    ),
    Claim(
        "table-3-grows",
        "table-3",
        _GAINS,
        "the gain over Normal is larger in the deepest network than in the shallowest",
        Grows(_OURS, "normal"),
        contradicted=(
            *(("pbwn-riem", "Res-44"), ("pbwn", "Res-44"), ("pbwn-epoch", "Res-44")),
            *(("pbwn-riem", "Res-110"), ("pbwn-epoch", "Res-110")),
        ),
        remark="The gain does not grow at every step: it is smaller at Res-44 than at Res-32 for all three, and "
        "smaller at Res-110 than at Res-56 for PBWN-Riem and PBWN-Epoch.",
    ),
    Claim(
        "table-3-alike",
        "table-3",
        _SAME,
        "the three variants differ by less than 0.5 points",
        Alike(_OURS, _VARIANTS_MARGIN),
        contradicted=(("pbwn", "Res-44"), ("pbwn-epoch", "Res-44")),
        remark="At Res-44 PBWN (6.89 ± 0.17) and PBWN-Epoch (6.59 ± 0.17) differ significantly by Welch's test.",
    ),
    Claim(
        "table-3-epoch",
        "table-3",
        _EPOCH_BEST,
        "PBWN-Epoch has the lowest mean of the three in more than half of the columns",
        MostlyBest("pbwn-epoch", _OURS),
        contradicted=(("pbwn-epoch", "Res-110"),),
    ),
    Claim(
        "table-4-better",
        "table-4",
        _CONSISTENT,
        "the test error is lower than that of Normal and WN",
        Better(_OURS, _BASELINES),
        contradicted=(("pbwn", "Res-20"),),
        remark="At Res-20 WN (31.90) is better than PBWN (31.99).",
    ),
    Claim(
        "table-4-grows",
        "table-4",
        _GAINS,
        "the gain over Normal is larger in the deepest network than in the shallowest",
        Grows(_OURS, "normal"),
        contradicted=(("pbwn", "Res-56"), ("pbwn-epoch", "Res-56")),
        remark="The gain does not grow at every step: it is smaller at Res-56 than at Res-44 for PBWN and PBWN-Epoch.",
    ),
    Claim(
        "table-4-alike",
        "table-4",
        _SAME,
        "the three variants differ by less than 0.5 points",
        Alike(_OURS, _VARIANTS_MARGIN),
        contradicted=(
            *(("pbwn", "Res-32"), ("pbwn-epoch", "Res-32")),
            *(("pbwn-riem", "Res-44"), ("pbwn-epoch", "Res-44")),
        ),
        remark="By Welch's test PBWN-Epoch differs significantly from PBWN at Res-32 (29.85 ± 0.17 and 30.21 ± 0.20) "
        "and from PBWN-Riem at Res-44 (28.83 ± 0.09 and 29.15 ± 0.18).",
    ),
    Claim(
        "table-4-epoch",
        "table-4",
        _EPOCH_BEST,
        "PBWN-Epoch has the lowest mean of the three in more than half of the columns",
        MostlyBest("pbwn-epoch", _OURS),
        contradicted=(("pbwn-epoch", "Res-56"), ("pbwn-epoch", "Res-110")),
    ),
)
_TABLE_5 = (
    Claim(
        "table-5-epoch",
        "table-5",
        "`PBWN-epoch' costs almost the same time as `Normal' on all architectures",
        "PBWN-Epoch takes at most 2 % more time than Normal",
        Costs("pbwn-epoch", None, 2.0),
    ),
    Claim(
        "table-5-pbwn",
        "table-5",
        "`PBWN' also requires little extra time cost",
        "PBWN takes at most 10 % more time than Normal",
        Costs("pbwn", None, 10.0),
    ),
    Claim(
        "table-5-riem",
        "table-5",
        "`PBWN-Riem' needs non-ignorable extra time",
        "PBWN-Riem takes at least 10 % more time than Normal",
        Costs("pbwn-riem", 10.0, None),
        remark="The authors' code forms the whole n x n product of weight and gradient and takes its diagonal, which "
        "costs more than the method needs.",
    ),
    Claim(
        "table-5-wn",
        "table-5",
        "our method outperforms weight normalization, in terms of both the effectiveness and computation efficiency",
        "the time is shorter than that of WN",
        Better(_OURS, ("wn",), "cost"),
        contradicted=(("pbwn-riem", "Inception"), ("pbwn-riem", "Res-110")),
        remark="PBWN-Riem takes longer than WN on Inception (23.92 and 23.33 hours) and on Res-110 (7.49 and 6.42).",
    ),
)
_TABLES_6_7_8 = (
    Claim(
        "table-6-better",
        "table-6",
        "our method can further improves WRN by simply executing the efficient norm projection operation for each "
        "epoch",
        "the test error is lower than that of the network without projection",
        Better(("pbwn-epoch",), ("normal",)),
    ),
    Claim(
        "table-7-better",
        "table-7",
        "`PBWN-Epoch' achieves lower test errors compared to the original residual network and pre-activation residual "
        "networks",
        "top-1 and top-5 error at the best epoch are lower than those of the network without projection",
        Better(("pbwn-epoch",), ("normal",), "best_test_error"),
        remark="One number each, without a spread.",
    ),
    Claim(
        "table-8-better",
        "table-8",
        "our method significantly improves the performance of the original Ladder network",
        "the test error is lower than that of the Ladder network without projection",
        Better(("pbwn",), ("normal",), interval="bootstrap"),
        remark="By Welch's test none of the three differences is significant with the paper's spreads and ten seeds. "
        "At 100 labels Triple-GAN, quoted in the same table, has the same 0.91.",
    ),
)

TABLE_CLAIMS = (*_TABLES_1_2, *_TABLES_3_4, *_TABLE_5, *_TABLES_6_7_8)
