"""How the networks start: the paper's initialisation, the authors', and the parts to build others from."""

import pytest
import torch
from torch import nn

from pbwn_repro.models import Scheme, build, find, initialise, names

HE, UNIFORM = "he-fan-out", "uniform-fan-in"


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


def batch_normalisations(model: nn.Module) -> list[nn.Module]:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    return [module for module in model.modules() if isinstance(module, kinds) and module.affine]


@pytest.mark.parametrize(
    ("name", "init", "expected"),
    [
        ("mlp", "paper", Scheme(UNIFORM, UNIFORM, "one")),
        ("mlp", "authors", Scheme(UNIFORM, UNIFORM, "one")),
        ("mlp", "lecun", Scheme("lecun", UNIFORM, "one", "lecun")),
        ("inception", "paper", Scheme(UNIFORM, "zero", "one")),
        ("inception", "authors", Scheme(UNIFORM, "zero", "uniform")),
        ("vgg-e", "paper", Scheme(HE, "zero", "one")),
        ("vgg-e", "authors", Scheme(HE, "zero", "uniform")),
        ("resnet-56", "paper", Scheme(HE, "zero", "one")),
        ("resnet-56", "authors", Scheme(HE, "zero", "one")),
        ("wrn-16-4", "paper", Scheme(HE, "zero", "one")),
        ("wrn-16-4", "authors", Scheme(HE, "zero", "uniform")),
        ("imagenet-resnet-34", "authors", Scheme(HE, "zero", "one")),
        ("imagenet-preresnet-34", "authors", Scheme(HE, "zero", "one")),
        ("ladder", "paper", Scheme(UNIFORM, UNIFORM, "one")),
        ("ladder", "authors", Scheme(UNIFORM, UNIFORM, "uniform")),
    ],
)
def test_each_network_has_the_scheme_of_its_source(name: str, init: str, expected: Scheme) -> None:
    assert find(name).scheme(init) == expected


def test_the_papers_scheme_starts_every_bn_scale_at_one() -> None:
    schemes = [scheme for name in names() if (scheme := find(name).scheme()) is not None]
    assert {scheme.bn_scale for scheme in schemes} == {"one"}


def test_he_fan_out_has_the_standard_deviation_of_its_formula_and_no_bias() -> None:
    torch.manual_seed(0)
    for module in convolutions(build("resnet-20", convolution_bias=True)):
        area = module.kernel_size[0] * module.kernel_size[1]
        expected = (2 / (area * module.out_channels)) ** 0.5
        # The standard error of a standard deviation of n numbers is sigma / sqrt(2n).
        assert abs(module.weight.std() / expected - 1) < 5 / (2 * module.weight.numel()) ** 0.5
        assert not module.bias.any()


def test_lecuns_start_has_rows_of_norm_one_and_torch7s_of_norm_058() -> None:
    for init, expected in (("lecun", 1.0), ("paper", 3**-0.5)):
        torch.manual_seed(0)
        norms = torch.cat(
            [each.weight.norm(dim=1) for each in build("mlp", init=init).modules() if hasattr(each, "weight")]
        )
        assert norms.square().mean().sqrt().item() == pytest.approx(expected, rel=0.01)


def test_uniform_fan_in_fills_the_interval_of_its_formula_for_weight_and_bias() -> None:
    torch.manual_seed(0)
    for module in convolutions(build("inception")):
        bound = module.weight[0].numel() ** -0.5
        assert 0.95 * bound < module.weight.max() <= bound
        assert -bound <= module.weight.min() < -0.95 * bound
        assert 0.5 * bound < module.bias.abs().max() <= bound
        assert module.weight.flatten(1).norm(dim=1).mean().item() == pytest.approx(3**-0.5, rel=0.05)


@pytest.mark.parametrize("name", ["mlp", "ladder", "vgg-e", "resnet-8"])
def test_linear_weights_are_uniform_and_biases_as_the_scheme_says(name: str) -> None:
    torch.manual_seed(0)
    for module in build(name).modules():
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            assert 0.9 * bound < module.weight.abs().max() <= bound
            assert bool(module.bias.any()) == (find(name).scheme().linear_bias == UNIFORM)
            assert module.bias.abs().max() <= bound


def test_bn_scales_are_all_one_or_spread_over_the_unit_interval() -> None:
    torch.manual_seed(0)
    for init, (low, high) in (("paper", (1.0, 1.0)), ("authors", (0.0, 1.0))):
        model = build("vgg-e", image_size=16, init=init)
        scales = torch.cat([module.weight for module in batch_normalisations(model)])
        assert scales.min().item() == pytest.approx(low, abs=0.01)
        assert scales.max().item() == pytest.approx(high, abs=0.01)
        assert not any(module.bias.any() for module in batch_normalisations(model))


def test_the_authors_pbwn_resnet_can_be_put_together_from_the_parts() -> None:
    torch.manual_seed(0)
    model = build("resnet-8", init=Scheme(convolution=UNIFORM), convolution_bias=True)
    assert all(module.bias.any() for module in convolutions(model))
    norms = torch.cat([module.weight.flatten(1).norm(dim=1) for module in convolutions(model)])
    assert norms.mean().item() == pytest.approx(3**-0.5, rel=0.05)
    assert not model.classifier.bias.any()


def test_the_same_seed_starts_the_same_network_from_either_generator() -> None:
    def weights(seed: int, generator: torch.Generator | None) -> torch.Tensor:
        torch.manual_seed(seed)
        model = build("resnet-8")
        initialise(model, find("resnet-8").scheme(), generator=generator)
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    assert torch.equal(weights(1, None), weights(1, None))
    assert not torch.equal(weights(1, None), weights(2, None))
    explicit = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert torch.equal(weights(1, explicit[0]), weights(2, explicit[1]))


def test_the_ladders_own_parameters_are_no_business_of_the_scheme() -> None:
    model = build("ladder", init="authors")
    assert all((layer.scale == 1).all() and not layer.shift.any() for layer in model.encoder)


def test_a_scheme_refuses_an_unknown_word() -> None:
    with pytest.raises(ValueError, match="convolution='he' is unknown: choose from 'he-fan-out', 'uniform-fan-in'"):
        Scheme(convolution="he")
