"""Conditioning during training: the paper's argument for the constraint, measured. Not a figure of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import MeasuredArtefact, Scale
from pbwn_repro.catalog.claims import Better, Claim

METHODS = ("normal", "wn", "pbwn")
WN_WEIGHTS = "wn-weights"  # the weights that WN computes from its directions and scales
QUOTE = "optimize neural networks over Oblique manifold, which can alleviate the ill-conditioned problem"
WN_QUOTE = (
    "it solves the problem via re-parameterization and can not guarantee whether the conditioning of Hessian matrix "
    "over proxy parameter will be improved; while our method performs normalization via projection and optimization "
    "over the original parameter space, which ensures the improvement of conditioning"
)
NOTE = "Our test: the paper shows the conditioning of a two-weight model only (figure 1), and the loss of networks."
# The networks and learning rates of figure 2 and table 3.
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
    title="Conditioning during training",
    about="The largest eigenvalues of the Hessian and the ratio of gradient norms between layers, at the start, in the "
    "middle and at the end of training, for figure 2's MLP and ResNet-20 with Normal, WN and PBWN.",
    protocol="Lanczos iterations on Hessian-vector products of the training loss on fixed examples (1024 for the MLP, "
    "64 for ResNet-20), in training mode, with respect to the parameters that the optimizer updates: for WN its "
    "directions and scales. Ten eigenvalues, each to 5 %; three seeds.",
    departures=(
        "The paper has no such figure. The paper scale is the same as the short one.",
        "The condition number of a network's Hessian is infinite, because the loss is flat in many directions. The "
        "ratio of the largest to the tenth eigenvalue (smoke scale: to the third) is used instead.",
        "For PBWN the Hessian is restricted to directions tangent to the spheres, because the projection undoes a step "
        "along a weight.",
        "For WN the Hessian with respect to the weights that it computes is shown as well, as 'WN, its weights'. A "
        "layer's gradient is that with respect to direction and scale together.",
        "The MLP trains for 5 epochs, ResNet-20 for 2, the second at a tenth of the learning rate, so that all 18 runs "
        "and their spectra take one core about two hours. The networks have not converged at the end.",
    ),
    claims=(
        Claim(
            "conditioning-spectrum",
            QUOTE,
            "at the end of training, the ratio of the largest to the tenth eigenvalue is smaller than Normal's",
            Better(("pbwn",), ("normal",), "spectrum"),
            note=NOTE,
        ),
        Claim(
            "conditioning-wn",
            WN_QUOTE,
            "at the end of training, the ratio of the largest to the tenth eigenvalue is smaller than WN's with "
            "respect to its directions and scales",
            Better(("pbwn",), ("wn",), "spectrum"),
            note=NOTE,
        ),
        Claim(
            "conditioning-proxy",
            WN_QUOTE,
            "at the end of training, WN's ratio of the largest to the tenth eigenvalue is larger with respect to its "
            "directions and scales than with respect to its weights",
            Better((WN_WEIGHTS,), ("wn",), "spectrum"),
            note="Our test: the paper says that WN does not guarantee an improvement, not that it never brings one.",
        ),
        Claim(
            "conditioning-gradients",
            QUOTE,
            "at the end of training, the ratio of the largest to the smallest gradient norm of a layer is smaller than "
            "that of Normal and WN",
            Better(("pbwn",), ("normal", "wn"), "gradients"),
            note=NOTE,
        ),
    ),
    measurement="conditioning",
    options=_options,
)
