"""Weight initialisation: named schemes, and the function that applies them."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pbwn_repro.models.checks import one_of


@dataclass(frozen=True)
class Scheme:
    """A named initialisation of convolutions, linear layers and batch normalisation.

    Args:
        convolution: 'he-fan-out' is normal with standard deviation sqrt(2 / (kernel area * output channels)) and zero
            bias (He et al. 2015); 'uniform-fan-in' is uniform within +-1/sqrt(fan_in), as is the bias: the default of
            Torch7 and torch, with rows of norm 0.58; 'lecun' is normal with standard deviation 1/sqrt(fan_in) (LeCun
            et al. 1998, which the paper cites for Torch7's), with rows of norm 1.
        linear_bias: 'zero' or 'uniform-fan-in'.
        bn_scale: 'one', or Torch7's default 'uniform' within (0, 1). BN's shift is initialised to zero.
        linear: 'uniform-fan-in', as in every network of the authors' code, or 'lecun'.
    """

    convolution: Literal["he-fan-out", "uniform-fan-in", "lecun"] = "he-fan-out"
    linear_bias: Literal["zero", "uniform-fan-in"] = "zero"
    bn_scale: Literal["one", "uniform"] = "one"
    linear: Literal["uniform-fan-in", "lecun"] = "uniform-fan-in"

    def __post_init__(self) -> None:
        one_of("Scheme", "convolution", self.convolution, ("he-fan-out", "uniform-fan-in", "lecun"))
        one_of("Scheme", "linear_bias", self.linear_bias, ("zero", "uniform-fan-in"))
        one_of("Scheme", "bn_scale", self.bn_scale, ("one", "uniform"))
        one_of("Scheme", "linear", self.linear, ("uniform-fan-in", "lecun"))


HE = Scheme(convolution="he-fan-out", linear_bias="zero")
UNIFORM = Scheme(convolution="uniform-fan-in", linear_bias="uniform-fan-in")
UNIFORM_ZERO_BIAS = Scheme(convolution="uniform-fan-in", linear_bias="zero")


def torch7_scale(scheme: Scheme) -> Scheme:
    """Return the scheme with BN's scales initialised as in Torch7."""
    return replace(scheme, bn_scale="uniform")


@torch.no_grad()
def initialise(model: nn.Module, scheme: Scheme, *, generator: torch.Generator | None = None) -> None:
    """Initialise every convolution, linear layer and BN of `model` by `scheme`, in the order of `model.modules()`.

    BN's running statistics and the parameters of other modules are unchanged. Random numbers come from `generator`,
    or from torch's default one.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            if scheme.convolution == "he-fan-out":
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
            else:
                _initialise_weight(module.weight, scheme.convolution, generator)
            if module.bias is not None:
                kind = "uniform-fan-in" if scheme.convolution == "uniform-fan-in" else "zero"
                _initialise_bias(module.bias, module.weight, kind, generator)
        elif isinstance(module, nn.Linear):
            _initialise_weight(module.weight, scheme.linear, generator)
            _initialise_bias(module.bias, module.weight, scheme.linear_bias, generator)
        elif isinstance(module, _BatchNorm) and module.affine:
            if scheme.bn_scale == "one":
                module.weight.fill_(1.0)
            else:
                module.weight.uniform_(0.0, 1.0, generator=generator)
            module.bias.zero_()


def _initialise_weight(weight: torch.Tensor, kind: str, generator: torch.Generator | None) -> None:
    if kind == "lecun":
        weight.normal_(0.0, weight[0].numel() ** -0.5, generator=generator)
    else:
        _uniform_fan_in(weight, weight, generator)


def _initialise_bias(bias: torch.Tensor, weight: torch.Tensor, kind: str, generator: torch.Generator | None) -> None:
    if kind == "zero":
        bias.zero_()
    else:
        _uniform_fan_in(bias, weight, generator)


def _uniform_fan_in(target: torch.Tensor, weight: torch.Tensor, generator: torch.Generator | None) -> None:
    bound = weight[0].numel() ** -0.5
    target.uniform_(-bound, bound, generator=generator)
