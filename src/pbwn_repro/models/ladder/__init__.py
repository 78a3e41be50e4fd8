"""The Ladder network of the paper's semi-supervised experiment (table 8)."""

from pbwn_repro.models.ladder.network import Ladder

__all__ = ["Ladder"]
