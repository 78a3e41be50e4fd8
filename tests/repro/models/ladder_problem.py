"""A small ladder and its data, on which the tests can look at every number; and the benchmark with the plain twin."""

import importlib.util
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from pbwn_repro.models import Ladder

WEIGHTS = (1000.0, 10.0, 0.1)


def small_ladder(kind: type[Ladder] = Ladder, **options: object) -> Ladder:
    """A ladder of two hidden layers on 4x4 images, in float64, always the same one."""
    torch.manual_seed(0)
    sizes = {"image_size": 4, "num_classes": 3, "hidden_sizes": (12, 8), "denoising_weights": WEIGHTS}
    return kind(**{**sizes, **options}).double()


def batches(num_labeled: int = 6, num_unlabeled: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    """Labeled images, their labels, unlabeled images."""
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(num_labeled + num_unlabeled, 1, 4, 4, generator=generator, dtype=torch.float64)
    return images[:num_labeled], torch.arange(num_labeled) % 3, images[num_labeled:]


def shake_parameters(ladder: Ladder) -> None:
    """Move every parameter off its initial value, so that none hides behind a zero or a one."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in ladder.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)


def load_benchmark() -> ModuleType:
    """The benchmark script as a module."""
    path = Path(__file__).parents[3] / "benchmarks" / "ladder.py"
    specification = importlib.util.spec_from_file_location("ladder_benchmark", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
