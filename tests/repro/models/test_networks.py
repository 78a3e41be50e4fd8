"""Every network: its size, its output, a training step, memory formats, compilation, and the errors of wrong builds."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from pbwn_repro.models import build, names

# name, and an image size on which the network is cheap to run
SMALL = [
    ("mlp", 8),
    ("inception", 16),
    ("vgg-e", 16),
    ("resnet-8", 8),
    ("wrn-10-2", 8),
    ("imagenet-resnet-50", 32),
    ("imagenet-preresnet-18", 32),
    ("ladder", 8),
]
CONVOLUTIONAL = [case for case in SMALL if case[0] not in ("mlp", "ladder")]


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


@pytest.mark.parametrize("name", names())
def test_a_network_maps_a_batch_of_its_own_images_to_class_scores(name: str) -> None:
    size = 32 if name in ("mlp", "inception", "vgg-e") or name.startswith(("resnet", "wrn")) else 224
    channels, classes = (1 if name in ("mlp", "ladder") else 3), (1000 if name.startswith("imagenet") else 10)
    size = 28 if name == "ladder" else size
    with torch.device("meta"):
        scores = build(name)(torch.empty(4, channels, size, size))
    assert scores.shape == (4, classes)


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_classes_channels_and_image_size_are_free(name: str, size: int) -> None:
    with torch.device("meta"):
        model = build(name, num_classes=7, in_channels=2, image_size=size)
        assert model(torch.empty(3, 2, size, size)).shape == (3, 7)


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_one_training_step_lowers_the_loss_and_reaches_every_parameter(name: str, size: int) -> None:
    torch.manual_seed(0)
    model = build(name, num_classes=4, in_channels=1, image_size=size).double()
    images, labels = torch.rand(8, 1, size, size, dtype=torch.float64), torch.arange(8) % 4

    def loss() -> torch.Tensor:
        torch.manual_seed(1)
        if name == "ladder":
            return model.loss(images, labels, images)
        return functional.cross_entropy(model(images), labels)

    before = loss()
    before.backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []
    # Down the gradient by so little that the loss has to fall; float64 shows it.
    torch.optim.SGD(model.parameters(), lr=1e-7).step()
    assert loss().item() < before.item()


@pytest.mark.parametrize(("name", "size"), CONVOLUTIONAL)
def test_channels_last_gives_the_same_scores_and_stays_channels_last(name: str, size: int) -> None:
    torch.manual_seed(0)
    model = build(name, num_classes=4, image_size=size).double().eval()
    images = torch.rand(2, 3, size, size, dtype=torch.float64)
    expected = model(images)
    model = model.to(memory_format=torch.channels_last)
    seen: list[bool] = []
    last_convolution = [module for module in model.modules() if isinstance(module, nn.Conv2d)][-1]
    last_convolution.register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    torch.testing.assert_close(model(images.contiguous(memory_format=torch.channels_last)), expected)
    assert seen == [True]


@pytest.mark.parametrize("name", ["mlp", "ladder"])
def test_a_flat_network_reads_channels_last_images_alike(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, in_channels=3, image_size=8).eval()
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(model(images.contiguous(memory_format=torch.channels_last)), model(images))


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_compiled_without_code_generation_it_gives_the_same_scores(name: str, size: int) -> None:
    torch.manual_seed(0)
    model = build(name, num_classes=4, in_channels=1, image_size=size).eval()
    images = torch.rand(2, 1, size, size)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)(images)
        torch.testing.assert_close(compiled, model(images))


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("resnet-21", {}, ValueError, r"depth 21 is not of the form 6n\+2 .* nearest are 20 and 26"),
        ("resnet-2", {}, ValueError, r"6n\+2 with n >= 1: the nearest are 8 and 14"),
        ("wrn-17-4", {}, ValueError, r"depth 17 is not of the form 6n\+4 .* nearest are 16 and 22"),
        ("wrn-16-0", {}, ValueError, "width must be a positive whole number"),
        ("imagenet-resnet-35", {}, ValueError, "imagenet-resnet: depth=35 is unknown: choose from 18, 34, 50"),
        ("resnet20", {}, ValueError, r"unknown network 'resnet20': did you mean 'resnet-20'\? There is mlp, inception"),
        ("transformer-xxl", {}, ValueError, r"unknown network 'transformer-xxl': There is mlp, .*ladder"),
        ("mlp", {"sizes": "caption"}, ValueError, "sizes='caption' is unknown: choose from 'paper', 'authors'"),
        ("mlp", {"image_size": 0}, ValueError, "image_size must be a positive whole number"),
        ("vgg-e", {"image_size": 15}, ValueError, "image_size=15 is too small .* pass 16 or more"),
        ("inception", {"image_size": 7}, ValueError, "image_size=7 is too small .* pass 8 or more"),
        ("wrn-16-4", {"dropout": 1.0}, ValueError, "dropout is the share of zeroed activations and was 1.0"),
        ("wrn-16-4", {"dropuot": 0.1}, TypeError, "wrn-16-4 has no option 'dropuot': did you mean 'dropout'"),
        ("vgg-e", {"dropout": 0.1}, TypeError, "vgg-e has no option 'dropout': it has none"),
        ("resnet-20", {"init": "paper's"}, ValueError, "init=\"paper's\" is unknown: choose 'paper' or 'authors'"),
        ("resnet-20", {"num_classes": 2.0}, ValueError, "num_classes must be a positive whole number, got 2.0"),
    ],
)
def test_a_build_that_cannot_work_says_what_there_is(
    name: str, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(name, **options)


@pytest.mark.parametrize("name", ["mlp", "ladder"])
def test_images_of_another_size_than_built_for_are_refused(name: str) -> None:
    model = build(name, image_size=8)
    with pytest.raises(ValueError, match=r"built for 64 pixels an image, got a batch of shape \(2, 1, 9, 9\)"):
        model(torch.rand(2, 1, 9, 9))


def test_the_smallest_image_sizes_are_the_true_limits() -> None:
    for name, smallest in (("vgg-e", 16), ("inception", 8)):
        model = build(name, image_size=smallest).eval()
        assert model(torch.rand(1, 3, smallest, smallest)).isfinite().all()
        with pytest.raises(RuntimeError):
            model(torch.rand(1, 3, smallest // 2, smallest // 2))


def test_an_option_a_shortcut_keeps_every_second_pixel_and_pads_new_channels_with_zeros() -> None:
    model = build("resnet-8", image_size=8)
    shortcuts = [block.shortcut for block in model.blocks if not isinstance(block.shortcut, nn.Identity)]
    assert len(shortcuts) == 2
    x = torch.rand(2, 16, 8, 8)
    assert torch.equal(shortcuts[0](x), torch.cat([x[:, :, ::2, ::2], torch.zeros(2, 16, 4, 4)], dim=1))


def test_batch_normalisation_has_the_epsilon_of_each_network() -> None:
    for name, epsilon in (("inception", 1e-3), ("vgg-e", 1e-3), ("resnet-20", 1e-5), ("wrn-16-4", 1e-5)):
        with torch.device("meta"):
            found = {module.eps for module in build(name).modules() if isinstance(module, nn.BatchNorm2d)}
        assert found == {epsilon}, name


def test_dropout_is_the_papers_unless_asked_otherwise() -> None:
    for options, share in (({}, 0.4), ({"dropout": 0.3}, 0.3)):
        model = build("wrn-10-1", **options)
        assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {share}


def test_every_network_calls_its_output_layer_classifier() -> None:
    for name in names():
        with torch.device("meta"):
            model = build(name, num_classes=11)
        assert isinstance(model.classifier, nn.Linear), name
        assert model.classifier.out_features == 11, name


def test_a_pre_activation_network_normalises_before_each_convolution_but_the_stem() -> None:
    model = build("imagenet-preresnet-18", image_size=32)
    first, second, third = model.features[0], model.features[1], model.features[2]
    assert isinstance(first.activate_input, nn.Identity)
    assert isinstance(first.branch[0], nn.Conv2d)
    assert isinstance(second.branch[0], nn.BatchNorm2d)
    assert isinstance(third.activate_input[0], nn.BatchNorm2d)
    assert isinstance(third.shortcut, nn.Conv2d)
    assert math.prod(third.shortcut.stride) == 4
