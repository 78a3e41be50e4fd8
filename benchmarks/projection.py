"""Time the projection alone, by network and path: `python benchmarks/projection.py [NETWORK ...]`.

The same as `pbwn bench --part projection --part riemannian`, which also measures whole training steps.
"""

import sys
from itertools import groupby
from operator import itemgetter

from rich.console import Console

from pbwn_repro.bench.suite import Extent, measure
from pbwn_repro.commands.bench import table


def main() -> None:
    """Measure the networks that were named, or all of them, and print the tables."""
    networks = tuple(sys.argv[1:]) or Extent().networks
    for part, ends in groupby(measure(Extent(networks=networks), ("projection", "riemannian")), key=itemgetter(0)):
        *_, (_, results) = ends
        Console().print(table(part, results[part]), "")


if __name__ == "__main__":
    main()
