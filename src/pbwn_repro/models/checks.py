"""Argument checks shared by the networks: each error names the network, the argument and what to pass."""

from collections.abc import Sequence

from pbwn_repro.errors import UsageError


def positive(network: str, **arguments: int) -> None:
    """Raise UsageError unless every argument is a positive integer."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{network}: {name} must be a positive integer, got {value!r}")


def at_least(network: str, name: str, value: int, smallest: int, *, reason: str) -> None:
    """Raise UsageError, with the reason, if a value is too small for the network."""
    if value < smallest:
        raise UsageError(f"{network}: {name}={value} is too small ({reason}): pass {smallest} or more")


def one_of(network: str, name: str, value: object, choices: Sequence[object]) -> None:
    """Raise UsageError unless a value is one of the choices."""
    if value not in choices:
        raise UsageError(f"{network}: {name}={value!r} is unknown: choose from {', '.join(map(repr, choices))}")


def blocks_per_stage(network: str, depth: int, *, offset: int) -> int:
    """Return n for a depth of 6n + offset: the blocks in each of three stages, with two convolutions per block."""
    num_blocks, remainder = divmod(depth - offset, 6)
    if remainder or num_blocks < 1:
        lower = 6 * max(num_blocks, 1) + offset
        raise UsageError(
            f"{network}: depth {depth} is not of the form 6n+{offset} with n >= 1: "
            f"the nearest are {lower} and {lower + 6}"
        )
    return num_blocks
