"""Conditioning: the paper's reason for the constraint, measured on networks that train. Not a figure of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import MeasuredArtefact, Scale
from pbwn_repro.catalog.claims import Better, Claim

METHODS = ("normal", "wn", "pbwn")
WN_WEIGHTS = "wn-weights"  # what WN computes from its directions and scales
QUOTE = "optimize neural networks over Oblique manifold, which can alleviate the ill-conditioned problem"
WN_QUOTE = (
    "it solves the problem via re-parameterization and can not guarantee whether the conditioning of Hessian matrix "
    "over proxy parameter will be improved; while our method performs normalization via projection and optimization "
    "over the original parameter space, which ensures the improvement of conditioning"
)
NOTE = "A test of ours: the paper shows conditioning for two weights alone (figure 1), and for networks the loss."
# The networks as in figure 2 and table 3, at their learning rates.
SMOKE: Mapping[str, Any] = {
    "mlp": {"lr": 0.3, "data": "digits", "epochs": 1, "batch_size": 64},
    "resnet-20": {"data": "synthetic:tiny10", "steps": 3, "batch_size": 4, "log_every": 1},
}
SHORT: Mapping[str, Any] = {
    "mlp": {"lr": 0.3, "epochs": 5},
    "resnet-20": {"data": "cifar10", "epochs": 2, "schedule.drops": [2]},
}


def _options(scale: Scale) -> Mapping[str, Any]:
    is_smoke = scale == "smoke"
    return {
        "networks": SMOKE if is_smoke else SHORT,
        "methods": list(METHODS),
        "seeds": 1 if is_smoke else 3,
        "moments": [0.0, 0.5, 1.0],
        "examples": {"mlp": 32, "resnet-20": 4} if is_smoke else {"mlp": 1024, "resnet-20": 64},
        "top": 3 if is_smoke else 10,
        "tolerance": 0.1 if is_smoke else 0.05,
    }


CONDITIONING = MeasuredArtefact(
    name="conditioning",
    title="Conditioning of networks that train",
    about="The top of the Hessian's spectrum and the ratio of gradient norms over layers, at the start, in the middle "
    "and at the end of training: figure 2's MLP and the residual network with 20 layers, Normal, WN and PBWN.",
    protocol="Lanczos iterations on Hessian-vector products of the training loss on fixed examples (1024 for the MLP, "
    "64 for the residual network), in training mode, with respect to what the optimizer moves: for WN its directions "
    "and scales. Ten eigenvalues, each to 5 %; three seeds.",
    departures=(
        "The paper has no such figure. There is no paper scale: it is the short one.",
        "The condition number of a network's Hessian is infinite, because the loss is flat in many directions: the "
        "ratio of the largest to the tenth eigenvalue (smoke: the third) stands for it.",
        "For PBWN the Hessian is that between directions tangent to the spheres: a step along a weight is undone.",
        "For WN the Hessian with respect to the weights that it computes stands beside, as 'WN, its weights'. A "
        "layer's gradient is that of its direction and scale together.",
        "The MLP trains for 5 epochs, the residual network for 2, the second with a tenth of the rate: all 18 runs and "
        "their spectra then take a core about two hours, and the end is not that of a network that has converged.",
    ),
    claims=(
        Claim(
            "conditioning-spectrum",
            QUOTE,
            "at the end, the largest eigenvalue over the tenth is smaller than that of Normal",
            Better(("pbwn",), ("normal",), "spectrum"),
            note=NOTE,
        ),
        Claim(
            "conditioning-wn",
            WN_QUOTE,
            "at the end, the largest eigenvalue over the tenth is smaller than that over WN's directions and scales",
            Better(("pbwn",), ("wn",), "spectrum"),
            note=NOTE,
        ),
        Claim(
            "conditioning-proxy",
            WN_QUOTE,
            "at the end, the largest eigenvalue over the tenth is larger over WN's directions and scales than over the "
            "weights that they make",
            Better((WN_WEIGHTS,), ("wn",), "spectrum"),
            note="A test of ours: the paper says that WN guarantees no improvement, not that it never has one.",
        ),
        Claim(
            "conditioning-gradients",
            QUOTE,
            "at the end, the largest gradient norm of a layer over the smallest is smaller than that of Normal and WN",
            Better(("pbwn",), ("normal", "wn"), "gradients"),
            note=NOTE,
        ),
    ),
    measurement="conditioning",
    options=_options,
)
