"""The size of every network, against numbers computed from its description alone."""

from itertools import pairwise

import pytest
import torch

from pbwn_repro.models import build


def num_parameters(name: str, **options: object) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(name, **options).parameters())


def conv(kernel: int, below: int, out: int, *, bias: bool = False) -> int:
    return kernel * kernel * below * out + bias * out


def dense(*sizes: int) -> int:
    return sum((below + 1) * out for below, out in pairwise(sizes))


def vgg_size() -> int:
    widths = [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8
    convolutions = sum(conv(3, below, out) + 2 * out for below, out in zip([3, *widths], widths, strict=False))
    return convolutions + dense(512, 10)


def inception_size() -> int:
    # Each row: input, 1x1, 1x1 before 3x3, 3x3, 1x1 before 3x3-3x3, each of these two, 1x1 behind the pooling.
    blocks = [
        (192, 64, 64, 64, 64, 96, 32),
        (256, 64, 64, 96, 64, 96, 64),
        (320, 0, 128, 160, 64, 96, 0),
        (576, 224, 64, 96, 96, 128, 128),
        (576, 192, 96, 128, 96, 128, 128),
        (576, 160, 128, 160, 128, 160, 96),
        (576, 96, 128, 192, 160, 192, 96),
        (576, 0, 128, 192, 192, 256, 0),
        (1024, 352, 192, 320, 160, 224, 128),
        (1024, 352, 192, 320, 192, 224, 128),
    ]
    layers = [(3, 3, 64), (3, 64, 192), (2, 576, 576), (2, 1024, 1024)]
    for below, single, reduce, triple, reduce2, triple2, pooled in blocks:
        layers += [(1, below, single), (1, below, reduce), (3, reduce, triple), (1, below, reduce2)]
        layers += [(3, reduce2, triple2), (3, triple2, triple2), (1, below, pooled)]
    return sum(conv(*layer, bias=True) + 2 * layer[2] for layer in layers) + dense(1024, 10)


def resnet_size(depth: int) -> int:
    n = (depth - 2) // 6
    widths = [16] * (2 * n + 1) + [32] * 2 * n + [64] * 2 * n
    return sum(conv(3, below, out) + 2 * out for below, out in zip([3, *widths], widths, strict=False)) + dense(64, 10)


def pre_activation_size(blocks: tuple[int, ...], bottleneck: bool) -> int:
    total, below = conv(7, 3, 64) + 2 * 64, 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        out = 4 * width if bottleneck else width
        for block in range(count):
            inner = [(1, below, width), (3, width, width), (1, width, out)]
            convolutions = inner if bottleneck else [(3, below, width), (3, width, out)]
            total += sum(conv(*layer) + 2 * layer[1] for layer in convolutions)
            total += conv(1, below, out) if below != out else 0
            # The very first block finds its input normalised by the stem.
            total -= 2 * below if stage == block == 0 else 0
            below = out
    return total + 2 * below + dense(below, 1000)


def ladder_size() -> int:
    sizes = [784, 1000, 500, 250, 250, 250]
    encoder = dense(*sizes) + 2 * sum(sizes[1:])
    return encoder + dense(250, 10) + 2 * 10 + dense(10, *reversed(sizes)) + 9 * sum(sizes)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("mlp", {}, dense(1024, 750, 250, 250, 10)),
        ("mlp", {"sizes": "authors"}, dense(1024, 1000, 750, 250, 250, 250, 10)),
        ("inception", {}, inception_size()),
        ("vgg-e", {}, vgg_size()),
        ("resnet-20", {}, 269_722),
        ("resnet-32", {}, resnet_size(32)),
        ("resnet-44", {}, resnet_size(44)),
        ("resnet-56", {}, resnet_size(56)),
        ("resnet-110", {}, 1_727_962),
        ("resnet-20", {"convolution_bias": True}, 269_722 + 16 * 7 + 32 * 6 + 64 * 6),
        ("wrn-16-4", {}, 2_748_890),
        ("wrn-28-10", {}, 36_479_194),
        ("imagenet-resnet-18", {}, 11_689_512),
        ("imagenet-resnet-34", {}, 21_797_672),
        ("imagenet-resnet-50", {}, 25_557_032),
        ("imagenet-preresnet-18", {}, pre_activation_size((2, 2, 2, 2), bottleneck=False)),
        ("imagenet-preresnet-34", {}, pre_activation_size((3, 4, 6, 3), bottleneck=False)),
        ("imagenet-preresnet-50", {}, pre_activation_size((3, 4, 6, 3), bottleneck=True)),
        ("ladder", {}, ladder_size()),
    ],
)
def test_a_network_has_the_number_of_parameters_that_its_description_gives(
    name: str, options: dict[str, object], expected: int
) -> None:
    assert num_parameters(name, **options) == expected
