"""The Ladder's parts: combinator, encoder layer, denoising cost, prediction."""

import copy

import torch
from torch import nn

from pbwn_repro.models.ladder import Combinator, EncoderLayer
from repro.models.ladder_problem import WEIGHTS, batches, small_ladder


def test_the_combinator_starts_as_z_plus_sigmoid_z() -> None:
    z, u = torch.randn(2, 5, 4)
    torch.testing.assert_close(Combinator(4)(z, u), z + torch.sigmoid(z))


def test_the_combinator_is_its_formula_at_any_values() -> None:
    combinator = Combinator(4).double()
    torch.manual_seed(0)
    for parameter in combinator.parameters():
        nn.init.normal_(parameter)
    z, u = torch.randn(2, 5, 4, dtype=torch.float64)
    a1, a2 = (part.w * z + part.v * u + part.m * z * u + part.b for part in (combinator.direct, combinator.gate))
    torch.testing.assert_close(combinator(z, u), a1 + combinator.c * torch.sigmoid(a2))


def test_an_encoder_layer_adds_the_shift_before_it_multiplies_by_the_scale() -> None:
    layer = EncoderLayer(3, 2)
    with torch.no_grad():
        layer.shift.fill_(1.0)
        layer.scale.fill_(2.0)
    z = torch.tensor([[-3.0, 0.5]])
    assert torch.equal(layer.activate(z), torch.tensor([[0.0, 3.0]]))


def test_the_clean_statistics_are_those_of_the_batch() -> None:
    layer = EncoderLayer(3, 2).double()
    h = torch.rand(6, 3, dtype=torch.float64)
    with torch.no_grad():
        pre = layer.linear(h)
        z, mean, inverse_std = layer.clean(h)
    torch.testing.assert_close(mean, pre.mean(0))
    torch.testing.assert_close(inverse_std, (pre.var(0, unbiased=False) + 1e-5).rsqrt())
    torch.testing.assert_close(z, (pre - mean) * inverse_std)


def test_the_two_normalisations_multiply_and_divide_by_the_clean_deviation() -> None:
    _, _, unlabeled = batches()
    pixels = unlabeled.flatten(1)
    found = {}
    for denoising in ("authors", "rasmus"):
        ladder = small_ladder(denoising=denoising)
        clean = ladder._clean_pass(pixels)
        above = torch.full((10, 3), 1 / 3, dtype=torch.float64)
        found[denoising] = ladder._denoising(pixels, clean, [pixels, *(layer.z for layer in clean)], above)
    for number, layer in enumerate(clean, start=1):
        # At the start the combinator is z + sigmoid(z), whatever comes from above.
        guess = layer.z + torch.sigmoid(layer.z) - layer.mean
        for denoising, scaled in (("authors", guess / layer.inverse_std), ("rasmus", guess * layer.inverse_std)):
            expected = WEIGHTS[number] * ((scaled - layer.z) ** 2).mean()
            torch.testing.assert_close(found[denoising][number], expected)
    torch.testing.assert_close(found["authors"][0], WEIGHTS[0] * (torch.sigmoid(pixels) ** 2).mean())
    assert torch.equal(found["authors"][0], found["rasmus"][0])


def test_in_evaluation_mode_it_predicts_from_running_statistics_and_draws_no_noise() -> None:
    ladder = small_ladder()
    labeled, labels, unlabeled = batches()
    ladder.loss(labeled, labels, unlabeled)
    ladder.eval()
    state = copy.deepcopy(ladder.state_dict())
    before = torch.get_rng_state()
    torch.testing.assert_close(ladder(unlabeled)[:3], ladder(unlabeled[:3]))
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(ladder.state_dict(), state, rtol=0, atol=0)
