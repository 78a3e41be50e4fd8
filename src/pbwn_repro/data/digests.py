"""Digests of files, tensors and sets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from io import BufferedIOBase
from pathlib import Path

import torch

CHUNK = 1 << 20


def stream_digest(stream: BufferedIOBase, algorithm: str) -> str:
    """Return the hexadecimal digest of what is left in a stream."""
    digest = hashlib.new(algorithm)
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def file_digest(path: Path, algorithm: str) -> str:
    """Return the hexadecimal digest of a file."""
    with path.open("rb") as stream:
        return stream_digest(stream, algorithm)


def tensor_digest(tensor: torch.Tensor) -> str:
    """Return the sha256 of a tensor's type, shape and elements."""
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def content_digest(images: torch.Tensor, labels: torch.Tensor) -> str:
    """Return the sha256 that images with their labels have in any order."""
    pairs = zip(labels.tolist(), images.numpy(), strict=True)
    digests = (hashlib.sha256(b"%d " % label + image.tobytes()).hexdigest() for label, image in pairs)
    return combined_digest(sorted(digests))


def combined_digest(parts: Iterable[str] | Mapping[str, str]) -> str:
    """Return one sha256 for many; of a mapping the keys count too, their order does not."""
    lines = [f"{key}={value}" for key, value in sorted(parts.items())] if isinstance(parts, Mapping) else list(parts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
