"""Which weights of a model are constrained, over which axes, and why not the others."""

from pbwn.selection.reuse import chosen, unconstrained
from pbwn.selection.selector import select
from pbwn.selection.weights import ConstrainedWeight, LeftAlone, Selection, held_by

__all__ = ["ConstrainedWeight", "LeftAlone", "Selection", "chosen", "held_by", "select", "unconstrained"]
