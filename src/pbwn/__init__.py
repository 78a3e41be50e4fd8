"""Unit-norm weights for any PyTorch model and optimizer: projection based weight normalization.

projection = pbwn.attach(model, optimizer)
"""

from pbwn.axes import Axes, register
from pbwn.certificate import Certificate
from pbwn.constraint import MaxNorm, UnitNorm
from pbwn.flops import Cost, cost
from pbwn.invariance import Invariance, invariance
from pbwn.norm_projection import NormProjection, attach, project_
from pbwn.selection import Selection, select

__all__ = [
    "Axes",
    "Certificate",
    "Cost",
    "Invariance",
    "MaxNorm",
    "NormProjection",
    "Selection",
    "UnitNorm",
    "attach",
    "cost",
    "invariance",
    "project_",
    "register",
    "select",
]
__version__ = "0.1.0"
