"""What sets are called."""

from __future__ import annotations

_ENCODINGS = ("-jpeg", "-png", "-webp")


def original(name: str) -> str:
    """The set that a copy of it stands for: the same pictures, to within the compression of JPEG.

    >>> original("cifar10-jpeg"), original("mnist-png"), original("cifar10")
    ('cifar10', 'mnist', 'cifar10')
    """
    for encoding in _ENCODINGS:
        name = name.removesuffix(encoding)
    return name.replace("synthetic:", "synthetic-")
