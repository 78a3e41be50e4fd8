"""What sets are called."""

from __future__ import annotations

LOSSLESS = "-lossless"  # a copy that was recognised by its content
LOSSY = ("-jpeg", "-webp")  # a copy that can be known by its name alone


def original(name: str) -> str:
    """The set that a copy of it stands for: the same images, to within the compression of JPEG.

    >>> original("cifar10-jpeg"), original("cifar100-lossless"), original("cifar10")
    ('cifar10', 'cifar100', 'cifar10')
    """
    for kind in (LOSSLESS, *LOSSY):
        name = name.removesuffix(kind)
    return name.replace("synthetic:", "synthetic-")
