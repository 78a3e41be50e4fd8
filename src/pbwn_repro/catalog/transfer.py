"""Transfer: does a learning rate that is good for a narrow model carry over to a wide one?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.catalog.artefact import Axis, Labels, Scale, TrainedArtefact
from pbwn_repro.catalog.step_rules import DECAYS, RATES, STEP_RULES_GPT, WIDTH, gpt

# One rate further up than the step rules': a whole matrix bears larger angles than each of its rows.
OWN_RATES = (*RATES[1:], 0.1)
WIDTHS = (WIDTH // 2, WIDTH, 2 * WIDTH)
ROWS = Axis("method", ("normal", "pbwn-angle-matrix"), "row")
# By angle, the norms of the matrices are fixed anyway, and they have no decay whatever the configuration says.
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
    """The step rules have the runs of AdamW at their width and rates."""
    is_theirs = (labels["method"], labels["width"]) == ("normal", WIDTH) and labels["lr"] in RATES
    return STEP_RULES_GPT.name if is_theirs else "transfer"


TRANSFER = TrainedArtefact(
    name="transfer",
    title="Does a learning rate carry over between widths?",
    about="Test cross entropy of a character-level GPT over the learning rate at three widths: AdamW, and AdamW with "
    "each whole matrix on the sphere of its initial norm and steps by angle.",
    protocol="As the step rules on the GPT, at three widths and the rates 0.001, 0.003, 0.01, 0.03, 0.1; weight decay "
    "0.1 for AdamW, 0 by angle; one seed.",
    departures=(
        "An experiment of ours: the paper has none like it.",
        "Weights start with the same standard deviation at every width, as in GPT-2; the rate of embeddings, output "
        "layer and scales of normalisations, which are not constrained, is that of the matrices.",
        "The rates were moved up, for both methods, after a probe (width 96, one seed, 200 steps, training loss): "
        "steps by angle were best at the upper edge, 0.03 at first, and 0.1 now, where AdamW is poor.",
    ),
    axes=_axes,
    overrides=_overrides,
    seeds={"smoke": 1, "short": 1, "paper": 1},
    metric="test_bits_per_character",
    curves="search",
    home=_home,
    compared=("carries-over", "good-range"),
)
