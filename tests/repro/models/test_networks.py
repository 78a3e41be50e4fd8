"""Every network: its output, a training step, memory formats, compilation, and what sets it apart."""

import math

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
OF_IMAGES = [name for name in names() if name != "char-gpt"]
CONVOLUTIONAL = [case for case in SMALL if case[0] not in ("mlp", "ladder")]


@pytest.mark.parametrize("name", OF_IMAGES)
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


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(*case, marks=pytest.mark.long) if case[0] in ("inception", "imagenet-resnet-50") else case
        for case in SMALL
    ],
)
def test_compiled_without_code_generation_it_gives_the_same_scores(name: str, size: int) -> None:
    torch.manual_seed(0)
    model = build(name, num_classes=4, in_channels=1, image_size=size).eval()
    images = torch.rand(2, 1, size, size)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)(images)
        torch.testing.assert_close(compiled, model(images))


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


def test_every_network_of_images_calls_its_output_layer_classifier() -> None:
    for name in OF_IMAGES:
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


def test_inside_an_inception_block_a_relu_stands_on_both_sides_of_bn_and_outside_only_behind_it() -> None:
    features = build("inception").features
    stem, first_block = [type(module) for module in features[:3]], features[6]
    assert stem == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    convolution = [nn.Conv2d, nn.ReLU, nn.BatchNorm2d, nn.ReLU]
    found = [[type(module) for module in branch] for branch in first_block.branches]
    assert found == [convolution, 2 * convolution, 3 * convolution, [nn.AvgPool2d, *convolution]]


def test_a_wide_block_feeds_its_shortcut_convolution_the_activated_input() -> None:
    changing, keeping = build("wrn-16-1", in_channels=16).blocks[2:4]
    x = torch.randn(2, 16, 4, 4)
    with torch.no_grad():
        # All of the branch's input is cut off by the first ReLU: only a shortcut around it can tell inputs apart.
        changing.bn1.bias.fill_(-100.0)
        keeping.bn1.bias.fill_(-100.0)
        assert torch.equal(changing.eval()(x), changing(2 * x))
        y = torch.randn(2, 32, 4, 4)
        torch.testing.assert_close(keeping.eval()(2 * y) - keeping(y), y)
