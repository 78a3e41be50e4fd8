"""Weights of fixed norm for any PyTorch model and optimizer: projection based weight normalization (PBWN).

projection = pbwn.attach(model, optimizer)

This implements Lei Huang, Xianglong Liu, Bo Lang and Bo Li, "Projection Based Weight Normalization for Deep Neural
Networks", 2017, arXiv:1710.02338. "Equation (n)", "Algorithm 1" and section numbers in this package are those of that
paper:

- equation (3), the constraint: the incoming weights of every neuron have norm 1, ddiag(W Wᵀ) = I;
- equation (7), the Riemannian gradient: g - (w·g) w for each neuron;
- equation (10), the projection: w / |w| for each neuron;
- Algorithm 1: an ordinary optimizer, and a projection after every T of its steps.
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
