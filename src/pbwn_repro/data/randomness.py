"""Random numbers as a function of where they are used, so that nothing has to be stored to resume."""

from __future__ import annotations

import hashlib

import torch


def random_seed(seed: int, purpose: str, epoch: int = 0, step: int = 0, rank: int = 0) -> int:
    """Return a seed of 63 bits that is a pure function of its arguments, the same on every machine."""
    place = f"{seed}/{purpose}/{epoch}/{step}/{rank}".encode()
    return int.from_bytes(hashlib.blake2b(place, digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, epoch: int = 0, step: int = 0, rank: int = 0) -> torch.Generator:
    """Return a fresh CPU generator for one purpose at one place of a run."""
    return torch.Generator().manual_seed(random_seed(seed, purpose, epoch, step, rank))
