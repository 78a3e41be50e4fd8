"""The names of the networks, what each name builds and how it starts."""

import difflib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from pbwn_repro.models.imagenet_resnet import DEPTHS, ImageNetPreResNet, ImageNetResNet
from pbwn_repro.models.inception import Inception
from pbwn_repro.models.initialisation import Scheme, initialise
from pbwn_repro.models.ladder import Ladder
from pbwn_repro.models.mlp import MLP
from pbwn_repro.models.resnet import ResNet
from pbwn_repro.models.vgg import VGG
from pbwn_repro.models.wide_resnet import WideResNet


@dataclass(frozen=True)
class Family:
    """Networks that one constructor builds; the groups of `pattern` are its positional arguments.

    `paper` is the initialisation that the paper states, with BN scale 1, for all methods alike. `authors` is the one of
    the published code's 'Normal' networks.
    """

    pattern: str
    members: tuple[str, ...]
    constructor: Callable[..., nn.Module]
    paper: Scheme
    authors: Scheme


HE = Scheme(convolution="he-fan-out", linear_bias="zero")
UNIFORM = Scheme(convolution="uniform-fan-in", linear_bias="uniform-fan-in")
UNIFORM_ZERO_BIAS = Scheme(convolution="uniform-fan-in", linear_bias="zero")


def members(prefix: str, *depths: int) -> tuple[str, ...]:
    return tuple(f"{prefix}-{depth}" for depth in depths)


def torch7_scale(scheme: Scheme) -> Scheme:
    return replace(scheme, bn_scale="uniform")


FAMILIES = (
    Family(r"mlp", ("mlp",), MLP, UNIFORM, UNIFORM),
    Family(r"inception", ("inception",), Inception, UNIFORM_ZERO_BIAS, torch7_scale(UNIFORM_ZERO_BIAS)),
    Family(r"vgg-e", ("vgg-e",), VGG, HE, torch7_scale(HE)),
    Family(r"resnet-(\d+)", members("resnet", 20, 32, 44, 56, 110), ResNet, HE, HE),
    Family(r"wrn-(\d+)-(\d+)", ("wrn-16-4",), WideResNet, HE, torch7_scale(HE)),
    Family(r"imagenet-resnet-(\d+)", members("imagenet-resnet", *DEPTHS), ImageNetResNet, HE, HE),
    Family(r"imagenet-preresnet-(\d+)", members("imagenet-preresnet", *DEPTHS), ImageNetPreResNet, HE, HE),
    Family(r"ladder", ("ladder",), Ladder, UNIFORM, torch7_scale(UNIFORM)),
)


def names() -> tuple[str, ...]:
    """The networks by name; resnet-<6n+2> and wrn-<6n+4>-<width> build too."""
    return tuple(name for family in FAMILIES for name in family.members)


def scheme(name: str, init: str = "paper") -> Scheme:
    """The initialisation of the network `name`.

    'paper', or 'authors' for the published code's 'Normal' network; 'lecun' is the paper's, but LeCun's for weights.
    """
    family, _ = _find(name)
    known = {
        "paper": family.paper,
        "authors": family.authors,
        "lecun": replace(family.paper, convolution="lecun", linear="lecun"),
    }
    if init not in known:
        raise ValueError(f"init={init!r} is unknown: choose 'paper', 'authors' or 'lecun', or pass a Scheme")
    return known[init]


def build(
    name: str,
    *,
    num_classes: int | None = None,
    in_channels: int | None = None,
    image_size: int | None = None,
    init: str | Scheme = "paper",
    **options: object,
) -> nn.Module:
    """The network `name`, initialised from torch's default generator.

    What is None takes the value of the network's experiment in the paper. `options` are the network's own:
    `sizes` (mlp), `convolution_bias` (resnet), `dropout` (wrn), `hidden_sizes`, `noise`, `denoising_weights`,
    `denoising` (ladder).

    >>> sum(parameter.numel() for parameter in build("resnet-20").parameters())
    269722
    """
    family, positional = _find(name)
    start = init if isinstance(init, Scheme) else scheme(name, init)
    common = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    arguments = inspect.signature(family.constructor).parameters.values()
    own = [each.name for each in arguments if each.kind is each.KEYWORD_ONLY and each.name not in common]
    for option in options:
        if option not in own:
            raise TypeError(f"{name} has no option {option!r}: {_listed(option, own) if own else 'it has none'}")
    given = {argument: value for argument, value in common.items() if value is not None}
    model = family.constructor(*positional, **given, **options)
    initialise(model, start)
    return model


def _find(name: str) -> tuple[Family, tuple[int, ...]]:
    for family in FAMILIES:
        match = re.fullmatch(family.pattern, name)
        if match:
            return family, tuple(map(int, match.groups()))
    general = "also resnet-<6n+2> and wrn-<6n+4>-<width>"
    raise ValueError(f"unknown network {name!r}: {_listed(name, names())}, {general}")


def _listed(wanted: str, choices: tuple[str, ...] | list[str]) -> str:
    nearest = difflib.get_close_matches(wanted, choices, n=1)
    guess = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{guess}There is {', '.join(choices)}"
