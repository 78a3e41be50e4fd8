"""The networks of the paper's experiments. `build` is the one way in; every network's last layer is `classifier`."""

from pbwn_repro.models.initialisation import Scheme, initialise
from pbwn_repro.models.ladder import Ladder
from pbwn_repro.models.registry import build, names, scheme

__all__ = ["Ladder", "Scheme", "build", "initialise", "names", "scheme"]
