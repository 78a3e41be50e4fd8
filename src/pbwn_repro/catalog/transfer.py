"""Transfer: whether a good learning rate for a narrow model carries over to a wide one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import Axis, Labels, Scale, TrainedArtefact
from pbwn_repro.catalog.step_rules import DECAYS, RATES, STEP_RULES_GPT, WIDTH, gpt

# Shifted up by one rate from the step rules: a whole matrix tolerates larger angles than each of its rows.
OWN_RATES = (*RATES[1:], 0.1)
WIDTHS = (WIDTH // 2, WIDTH, 2 * WIDTH)
ROWS = Axis("method", ("normal", "pbwn-angle-matrix"), "row")
# With steps by angle, the norms of the matrices are fixed, and they have no decay whatever the configuration says.
DECAY_OF = {"normal": DECAYS[0], "pbwn-angle-matrix": 0.0}


def _axes(scale: Scale) -> tuple[Axis, ...]:
    rates = OWN_RATES[:2] if scale == "smoke" else OWN_RATES
    return (ROWS, Axis("width", WIDTHS, "column"), Axis("lr", rates, "searched"))


def _overrides(labels: Labels, scale: Scale) -> Mapping[str, Any]:
    method = str(labels["method"])
    return {
        **gpt(scale, int(labels["width"])),
        **{"method": method, "lr": labels["lr"], "weight_decay": DECAY_OF[method]},
    }


def _home(labels: Labels) -> str:
    """`step-rules-gpt` holds the runs of AdamW at its width and rates."""
    is_shared = (labels["method"], labels["width"]) == ("normal", WIDTH) and labels["lr"] in RATES
    return STEP_RULES_GPT.name if is_shared else "transfer"


TRANSFER = TrainedArtefact(
    name="transfer",
    title="Does the learning rate carry over between widths?",
    about="Test cross entropy of a character-level GPT over the learning rate at three widths: AdamW, and AdamW with "
    "each whole matrix on the sphere of its initial norm and steps by angle.",
    protocol="As step-rules-gpt, at three widths and learning rates 0.001, 0.003, 0.01, 0.03, 0.1; weight decay 0.1 "
    "for AdamW, 0 for steps by angle; one seed.",
    departures=(
        "The paper has no such experiment.",
        "Weights are initialised with the same standard deviation at every width, as in GPT-2. Embeddings, output "
        "layer and normalisation scales, which are not constrained, use the learning rate of the matrices.",
        "The learning rates were shifted up for both methods after a trial (width 96, one seed, 200 steps, training "
        "loss): steps by angle were best at the upper edge of the first grid, 0.03, and are best at that of this one, "
        "0.1, where AdamW is poor.",
    ),
    axes=_axes,
    overrides=_overrides,
    seeds={"smoke": 1, "short": 1, "paper": 1},
    metric="test_bits_per_character",
    curves="search",
    home=_home,
    compared=("carries-over", "good-range"),
)
