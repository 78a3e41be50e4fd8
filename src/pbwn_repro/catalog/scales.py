"""How the paper's protocol becomes shorter: the same shape, fewer epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn_repro.models import recipe


def shortened(model: str, epochs: int) -> Mapping[str, Any]:
    """The recipe's schedule squeezed into fewer epochs: the numbers of the epochs with a drop shrink with the run.

    Epochs count from 1, so that each drop comes up to an epoch sooner than its share of the run.
    """
    full = recipe(model)
    wishes: dict[str, Any] = {"epochs": epochs}
    if full.get("schedule", {}).get("kind") == "steps":
        share = epochs / full["epochs"]
        wishes["schedule.drops"] = [max(1, round(drop * share)) for drop in full["schedule"]["drops"]]
    return wishes
