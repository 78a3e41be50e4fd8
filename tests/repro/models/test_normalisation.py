"""What stands in batch normalisation's place, and the Ladder's other combinator: as written, and in known limits."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import pbwn
from pbwn_repro import models
from pbwn_repro.errors import UsageError
from pbwn_repro.models.ladder import AugmentedMLP
from pbwn_repro.models.normalisation import DivisiveNorm, normalise_channels


def doubles(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def divided(z, neighbours, sigma):
    """Divisive normalisation of one unit after the other; `neighbours` gives the indices of each one's."""
    means = torch.stack([z[:, neighbours(unit)].mean(1) for unit in range(z.shape[1])], dim=1)
    centred = z - means
    variances = [centred[:, neighbours(unit)].square().mean(1) for unit in range(z.shape[1])]
    return centred / (sigma**2 + torch.stack(variances, dim=1)).sqrt()


def test_hidden_units_are_divided_by_those_around_them():
    z = doubles(4, 9)
    found = DivisiveNorm(9, window=5, sigma=0.7).double()(z)
    expected = divided(z, lambda unit: list(range(max(0, unit - 2), min(9, unit + 3))), 0.7)
    torch.testing.assert_close(found, expected)


def test_pixels_are_divided_by_all_channels_of_those_around_them():
    z = doubles(2, 3, 6, 5)
    found = DivisiveNorm(3, window=3, sigma=0.4).double()(z)

    def around(values, row, column):
        return values[:, :, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2].flatten(1)

    centred = torch.empty_like(z)
    for row in range(6):
        for column in range(5):
            centred[:, :, row, column] = z[:, :, row, column] - around(z, row, column).mean(1, keepdim=True)
    for row in range(6):
        for column in range(5):
            variance = around(centred, row, column).square().mean(1, keepdim=True)
            torch.testing.assert_close(
                found[:, :, row, column], centred[:, :, row, column] / (0.4**2 + variance).sqrt()
            )


def test_with_all_units_as_neighbours_and_no_smoothing_it_is_layer_normalisation():
    z = doubles(4, 8)
    torch.testing.assert_close(DivisiveNorm(8, window=17, sigma=0.0).double()(z), nn.LayerNorm(8, eps=0.0).double()(z))


def test_layer_normalisation_of_images_is_over_channels_and_pixels():
    z = torch.randn(2, 4, 5, 5)
    made = normalise_channels("layer", 4)(z)
    torch.testing.assert_close(made, functional.layer_norm(z, z.shape[1:]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("network", ["mlp", "resnet-8"])
@pytest.mark.parametrize("kind", ["none", "batch", "layer", "divisive"])
def test_each_network_trains_with_each_normalisation_under_pbwn(network, kind):
    model = models.build(network, normalisation=kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    projection = pbwn.attach(model, optimizer, **models.find(network).layers())
    inputs = torch.randn(4, 1 if network == "mlp" else 3, 32, 32)
    functional.cross_entropy(model(inputs), torch.arange(4)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    optimizer.step()
    assert projection.check().ok
    assert len(projection.selection.constrained) == {"mlp": 4, "resnet-8": 7}[network]


@pytest.mark.parametrize(("network", "usual"), [("mlp", "none"), ("resnet-8", "batch")])
def test_the_paper_s_normalisation_is_what_is_built_without_a_word(network, usual):
    torch.manual_seed(0)
    plain = models.build(network)
    torch.manual_seed(0)
    named = models.build(network, normalisation=usual)
    assert plain.state_dict().keys() == named.state_dict().keys()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, named.state_dict()[name]), name


def test_all_normalisations_start_from_the_same_weights():
    weights = []
    for kind in ("none", "batch", "layer", "divisive"):
        torch.manual_seed(0)
        weights.append(models.build("resnet-8", normalisation=kind).blocks[2].conv2.weight)
    assert all(torch.equal(weights[0], other) for other in weights[1:])


@pytest.mark.parametrize("network", ["mlp", "resnet-20"])
def test_an_unknown_normalisation_lists_what_there_is(network):
    with pytest.raises(UsageError, match=f"{network}: normalisation='group' is unknown: choose from 'none', 'batch'"):
        models.build(network, normalisation="group")


def test_the_amlp_combinator_is_a_small_network_for_each_unit():
    torch.manual_seed(0)
    combinator = AugmentedMLP(5).double()
    nn.init.normal_(combinator.shift)
    z, u = doubles(3, 5), doubles(3, 5, seed=1)
    found = combinator(z, u)
    for unit in range(5):
        inputs = torch.stack([z[:, unit], u[:, unit], (z * u)[:, unit]], dim=1)
        hidden = functional.leaky_relu(inputs @ combinator.inner[:, :, unit] + combinator.shift[:, unit])
        torch.testing.assert_close(found[:, unit], hidden @ combinator.outer[:, unit] + combinator.b[unit])


def test_the_amlp_combinator_without_randomness_starts_as_a_leaky_z():
    z, u = doubles(3, 5), doubles(3, 5, seed=1)
    torch.testing.assert_close(AugmentedMLP(5, std=0.0).double()(z, u), functional.leaky_relu(z))


def test_the_ladder_with_amlp_learns_and_has_the_weights_of_the_other_beside():
    options = {"image_size": 8, "hidden_sizes": (12, 8), "denoising_weights": (1000.0, 10.0, 0.1)}
    vanilla, model = (models.build("ladder", combinator=name, **options) for name in ("vanilla", "amlp"))
    names = [{name for name, _ in each.named_parameters() if "combinator" not in name} for each in (vanilla, model)]
    assert names[0] == names[1]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    projection = pbwn.attach(model, optimizer, **models.find("ladder").layers())
    images, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model.loss(images, labels, images, generator=torch.Generator().manual_seed(0))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert projection.check().ok
    with pytest.raises(UsageError, match="ladder: combinator='mlp' is unknown: choose from 'vanilla', 'amlp'"):
        models.build("ladder", combinator="mlp")
