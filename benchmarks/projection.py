"""Times of the projection alone, by network and path: `python benchmarks/projection.py [NETWORK ...]`.

The same as `pbwn bench --part projection --part riemannian`, which also measures whole training steps.
"""

import sys

from rich.console import Console

from pbwn_repro.bench.suite import Extent, measure
from pbwn_repro.bench.tables import tables


def main() -> None:
    """Measure the networks that were named, or all of them, and print the tables."""
    networks = tuple(sys.argv[1:]) or Extent().networks
    for table in tables(measure(Extent(networks=networks), ("projection", "riemannian"))):
        Console().print(table, "")


if __name__ == "__main__":
    main()
