"""The selection of the weights to constrain, over which axes, and why the others are left alone."""

from pbwn.selection.reuse import chosen, unconstrained
from pbwn.selection.selector import select
from pbwn.selection.weights import ConstrainedWeight, LeftAlone, Selection, held_by

__all__ = ["ConstrainedWeight", "LeftAlone", "Selection", "chosen", "held_by", "select", "unconstrained"]
