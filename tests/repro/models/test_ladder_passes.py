"""The three passes of a Ladder iteration: what each sees, what each updates, where gradients flow."""

import copy

import pytest
import torch
from torch import Tensor, nn

from pbwn_repro.models import Ladder
from pbwn_repro.models.ladder import EncoderLayer
from repro.models.ladder_problem import WEIGHTS, batches, shake_parameters, small_ladder


def inputs_of(module: nn.Module) -> list[Tensor]:
    """A list that grows by the input of each call of the module."""
    inputs: list[Tensor] = []
    module.register_forward_hook(lambda _, arguments, __: inputs.append(arguments[0].detach()))
    return inputs


def test_the_clean_pass_has_no_noise_and_no_gradient() -> None:
    ladder = small_ladder()
    _, _, unlabeled = batches()
    clean = ladder._clean_pass(unlabeled.flatten(1))
    again = small_ladder(noise=100.0)._clean_pass(unlabeled.flatten(1))
    for layer, other in zip(clean, again, strict=True):
        assert torch.equal(layer.z, other.z)
        assert not layer.z.requires_grad


def test_the_clean_pass_is_what_the_network_computes_in_training_mode() -> None:
    ladder = small_ladder()
    _, _, unlabeled = batches()
    clean = ladder._clean_pass(unlabeled.flatten(1))
    h = ladder.encoder[-1].activate(clean[-1].z)
    torch.testing.assert_close(ladder.output_normalisation(ladder.classifier(h)), small_ladder()(unlabeled))


def test_gradients_reach_the_encoder_by_the_noisy_passes_only() -> None:
    """With targets held fixed, a step of finite difference in any encoder weight moves the loss by its gradient."""
    ladder = small_ladder()
    shake_parameters(ladder)
    labeled, labels, unlabeled = (batch.flatten(1) if batch.is_floating_point() else batch for batch in batches())
    noise = ladder.draw_noise(16)
    targets = ladder._clean_pass(unlabeled)
    ladder._clean_pass = lambda _: targets  # type: ignore[method-assign]

    def loss() -> Tensor:
        costs = ladder.costs_given_noise(labeled, labels, unlabeled, noise)
        return costs.classification + costs.denoising.sum()

    loss().backward()
    held = copy.deepcopy({name: parameter.grad for name, parameter in ladder.named_parameters()})
    weight = ladder.encoder[0].linear.weight
    with torch.no_grad():
        weight[2, 5] += 1e-6
        above = loss()
        weight[2, 5] -= 2e-6
        below = loss()
        weight[2, 5] += 1e-6
    assert ((above - below) / 2e-6).item() == pytest.approx(held["encoder.0.linear.weight"][2, 5].item(), rel=1e-5)
    del ladder._clean_pass
    ladder.zero_grad()
    loss().backward()
    torch.testing.assert_close({name: parameter.grad for name, parameter in ladder.named_parameters()}, held)


def test_batch_statistics_are_per_pass() -> None:
    layer = EncoderLayer(5, 4).double()
    torch.manual_seed(0)
    rows = torch.cat([torch.rand(7, 5), 10 + 3 * torch.rand(9, 5)]).double()
    z = layer.noisy(rows, [7, 9], torch.zeros((), dtype=torch.float64))
    for part, pre in zip(z.split([7, 9]), layer.linear(rows).split([7, 9]), strict=True):
        expected = (pre - pre.mean(0)) / (pre.var(0, unbiased=False) + 1e-5).sqrt()
        torch.testing.assert_close(part, expected)


def test_the_labeled_loss_does_not_depend_on_the_unlabeled_images() -> None:
    labeled, labels, unlabeled = batches()
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    one, _ = small_ladder().costs(labeled, labels, unlabeled, generator=generators[0])
    other, _ = small_ladder().costs(labeled, labels, 5 * unlabeled**2, generator=generators[1])
    torch.testing.assert_close(one, other)


def test_running_statistics_see_clean_noisy_and_labeled_in_turn_and_the_output_the_two_noisy() -> None:
    ladder = small_ladder(noise=0.0)
    labeled, labels, unlabeled = batches()
    first = ladder.encoder[0]
    parts = [first.linear(images.flatten(1)) for images in (unlabeled, unlabeled, labeled)]
    mean = torch.zeros(12, dtype=torch.float64)
    variance = torch.ones(12, dtype=torch.float64)
    for part in parts:
        mean = 0.9 * mean + 0.1 * part.mean(0)
        variance = 0.9 * variance + 0.1 * part.var(0)
    ladder.loss(labeled, labels, unlabeled)
    torch.testing.assert_close(first.normalisation.running_mean, mean)
    torch.testing.assert_close(first.normalisation.running_var, variance)
    assert [layer.normalisation.num_batches_tracked.item() for layer in ladder.encoder] == [3, 3]
    assert ladder.output_normalisation.num_batches_tracked.item() == 2


def test_the_labeled_pass_runs_no_decoder() -> None:
    ladder = small_ladder()
    inputs = [inputs_of(layer.linear) for layer in ladder.decoder]
    labeled, labels, unlabeled = batches(num_labeled=6, num_unlabeled=10)
    ladder.loss(labeled, labels, unlabeled)
    assert [[len(rows) for rows in calls] for calls in inputs] == [[10], [10], [10]]


def test_the_decoder_starts_from_the_softmax_of_the_noisy_scores() -> None:
    ladder = small_ladder()
    inputs = inputs_of(ladder.decoder[0].linear)
    labeled, labels, unlabeled = batches()
    ladder.loss(labeled, labels, unlabeled)
    (top,) = inputs
    torch.testing.assert_close(top.sum(1), torch.ones(10, dtype=torch.float64))
    assert (top > 0).all()


def test_noise_stands_on_the_pixels_and_on_each_z_with_the_given_deviation() -> None:
    ladder = Ladder(hidden_sizes=(50, 40), denoising_weights=WEIGHTS)
    blocks = ladder.draw_noise(200, generator=torch.Generator().manual_seed(0))
    assert [tuple(block.shape) for block in blocks] == [(200, 784), (200, 50), (200, 40)]
    for block in blocks:
        assert block.std().item() == pytest.approx(0.3, rel=0.03)
        assert abs(block.mean().item()) < 0.3 * 5 / block.numel() ** 0.5
