"""Building a network that cannot work is an error that says what there is."""

import pytest
import torch
from torch import nn

from pbwn_repro.models import Family, Network, build


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("resnet-21", {}, ValueError, r"depth 21 is not of the form 6n\+2 .* nearest are 20 and 26"),
        ("resnet-2", {}, ValueError, r"6n\+2 with n >= 1: the nearest are 8 and 14"),
        ("wrn-17-4", {}, ValueError, r"depth 17 is not of the form 6n\+4 .* nearest are 16 and 22"),
        ("wrn-16-0", {}, ValueError, "width must be a positive integer"),
        ("imagenet-resnet-35", {}, ValueError, "imagenet-resnet: depth=35 is unknown: choose from 18, 34, 50"),
        (
            "resnet20",
            {},
            ValueError,
            r"unknown model 'resnet20': did you mean 'resnet-20'\? Choose from char-gpt, imagenet-resnet-18, ",
        ),
        (
            "transformer-xxl",
            {},
            ValueError,
            r"unknown model 'transformer-xxl': choose from char-gpt, imagenet-resnet-18, .*ladder",
        ),
        ("mlp", {"sizes": "caption"}, ValueError, "sizes='caption' is unknown: choose from 'paper', 'authors'"),
        ("mlp", {"image_size": 0}, ValueError, "image_size must be a positive integer"),
        ("vgg-e", {"image_size": 15}, ValueError, "image_size=15 is too small .* pass 16 or more"),
        ("inception", {"image_size": 7}, ValueError, "image_size=7 is too small .* pass 8 or more"),
        ("wrn-16-4", {"dropout": 1.0}, ValueError, r"dropout must be a probability in \[0, 1\), got 1.0"),
        ("wrn-16-4", {"dropuot": 0.1}, TypeError, "wrn-16-4 has no option 'dropuot': did you mean 'dropout'"),
        ("vgg-e", {"dropout": 0.1}, TypeError, "vgg-e has no option 'dropout': it takes no options"),
        ("resnet-20", {"init": "paper's"}, ValueError, "is unknown: choose 'paper', 'authors' or 'lecun'"),
        ("resnet-20", {"num_classes": 2.0}, ValueError, "num_classes must be a positive integer, got 2.0"),
    ],
)
def test_a_build_that_cannot_work_says_what_there_is(
    name: str, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(name, **options)


def test_a_network_s_options_need_not_be_keyword_only() -> None:
    def layer(depth: int, num_classes: int = 10, bias: bool = True) -> nn.Module:
        return nn.Linear(depth, num_classes, bias=bias)

    network = Network("layer-3", Family(r"layer-(\d+)", ("layer-3",), layer, {}), (3,))
    told = network.accepted({"num_classes": 5, "in_channels": 1})
    assert str(network.build(**told, bias=False)) == "Linear(in_features=3, out_features=5, bias=False)"
    with pytest.raises(TypeError, match="has no option 'depth': choose from bias"):
        network.build(depth=2)


@pytest.mark.parametrize("name", ["mlp", "ladder"])
def test_images_of_another_size_than_built_for_are_refused(name: str) -> None:
    model = build(name, image_size=8)
    with pytest.raises(ValueError, match=r"expects 64 pixels per image, got a batch of shape \(2, 1, 9, 9\)"):
        model(torch.rand(2, 1, 9, 9))


def test_the_smallest_image_sizes_are_the_true_limits() -> None:
    for name, smallest in (("vgg-e", 16), ("inception", 8)):
        model = build(name, image_size=smallest).eval()
        assert model(torch.rand(1, 3, smallest, smallest)).isfinite().all()
        with pytest.raises(RuntimeError):
            model(torch.rand(1, 3, smallest // 2, smallest // 2))
