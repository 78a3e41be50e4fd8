"""Which weights of a model are constrained, over which axes, and why not the others."""

from pbwn.selection.selector import held_by, select
from pbwn.selection.weights import ConstrainedWeight, LeftAlone, Selection

__all__ = ["ConstrainedWeight", "LeftAlone", "Selection", "held_by", "select"]
