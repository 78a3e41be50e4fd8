"""The Ladder, part by part, and the whole against its plain twin in the benchmark."""

import copy
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from pbwn_repro.models import Ladder, build
from pbwn_repro.models.ladder.decoder import Combinator
from pbwn_repro.models.ladder.encoder import EncoderLayer

WEIGHTS = (1000.0, 10.0, 0.1)


def small(**options: object) -> Ladder:
    """A ladder of two hidden layers on 4x4 images, in float64."""
    torch.manual_seed(0)
    sizes = {"image_size": 4, "num_classes": 3, "hidden_sizes": (12, 8), "denoising_weights": WEIGHTS}
    return Ladder(**{**sizes, **options}).double()


def batches(num_labeled: int = 6, num_unlabeled: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(num_labeled + num_unlabeled, 1, 4, 4, generator=generator, dtype=torch.float64)
    return images[:num_labeled], torch.arange(num_labeled) % 3, images[num_labeled:]


def shake_parameters(ladder: Ladder) -> None:
    """Move every parameter off its initial value, so that none hides behind a zero or a one."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in ladder.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "ladder.py"
    specification = importlib.util.spec_from_file_location("ladder_benchmark", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Calls:
    """Counts the calls of modules and keeps their inputs."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self.inputs: dict[str, list[Tensor]] = {name: [] for name in modules}
        for name, module in modules.items():
            module.register_forward_hook(lambda _, inputs, __, name=name: self.inputs[name].append(inputs[0].detach()))


# The whole ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("denoising", ["authors", "rasmus"])
@pytest.mark.parametrize(("num_labeled", "num_unlabeled"), [(6, 6), (3, 10), (12, 5)])
def test_the_ladder_equals_its_plain_twin(
    benchmark: ModuleType, denoising: str, num_labeled: int, num_unlabeled: int
) -> None:
    fast = small(denoising=denoising)
    shake_parameters(fast)
    plain = small(denoising=denoising)
    plain.__class__ = benchmark.PlainLadder
    plain.load_state_dict(fast.state_dict())
    labeled, labels, unlabeled = batches(num_labeled, num_unlabeled)
    noise = fast.draw_noise(num_labeled + num_unlabeled)
    results = []
    for ladder in (fast, plain):
        costs = ladder.costs_given_noise(labeled.flatten(1), labels, unlabeled.flatten(1), noise)
        (costs.classification + costs.denoising.sum()).backward()
        gradients = {name: parameter.grad for name, parameter in ladder.named_parameters()}
        results.append((costs._asdict(), gradients, dict(ladder.named_buffers())))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-11)
    # The biases in front of BN have no effect; every other parameter has one, or the comparison would show little.
    without_effect = ("linear.bias", "classifier.bias")
    largest = {name: gradient.abs().max() for name, gradient in results[1][1].items()}
    assert min(value for name, value in largest.items() if not name.endswith(without_effect)) > 1e-6


def test_the_loss_is_the_sum_of_its_parts_each_with_its_weight() -> None:
    labeled, labels, unlabeled = batches()
    ladder = small()
    torch.manual_seed(1)
    loss = ladder.loss(labeled, labels, unlabeled)
    torch.manual_seed(1)
    classification, denoising = small().costs(labeled, labels, unlabeled, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(loss, classification + denoising.sum())
    torch.manual_seed(1)
    _, unweighted = small(denoising_weights=(1.0, 1.0, 1.0)).costs(
        labeled, labels, unlabeled, generator=torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(denoising, unweighted * torch.tensor(WEIGHTS, dtype=torch.float64))


def test_the_defaults_are_those_of_table_8() -> None:
    with torch.device("meta"):
        ladder = build("ladder")
    assert ladder.sizes == (784, 1000, 500, 250, 250, 250)
    assert ladder.denoising_weights == (1000.0, 10.0, 0.1, 0.1, 0.1, 0.1)
    assert (ladder.noise, ladder.denoising) == (0.3, "authors")
    shapes = [tuple(layer.linear.weight.shape) for layer in ladder.decoder]
    assert shapes == [(250, 10), (250, 250), (250, 250), (500, 250), (1000, 500), (784, 1000)]


@pytest.mark.parametrize("denoising", ["authors", "rasmus"])
def test_the_denoising_cost_falls_on_a_fixed_small_problem(denoising: str) -> None:
    labeled, labels, unlabeled = batches(num_unlabeled=20)
    ladder = small(denoising=denoising)
    optimizer = torch.optim.Adam(ladder.parameters(), lr=0.01)
    history = []
    for step in range(150):
        torch.manual_seed(step)
        classification, denoising_costs = ladder.costs(labeled, labels, unlabeled)
        optimizer.zero_grad()
        (classification + denoising_costs.sum()).backward()
        optimizer.step()
        history.append(denoising_costs.detach())
    first, last = torch.stack(history[:10]).mean(0), torch.stack(history[-10:]).mean(0)
    assert last.sum() < 0.5 * first.sum()
    assert last[0] < 0.5 * first[0]


def test_noise_is_a_function_of_the_seed_set_before_the_step() -> None:
    labeled, labels, unlabeled = batches()

    def loss(seed: int, generator: torch.Generator | None = None) -> float:
        ladder = small()
        torch.manual_seed(seed)
        return ladder.loss(labeled, labels, unlabeled, generator=generator).item()

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)
    assert loss(1, torch.Generator().manual_seed(3)) == loss(2, torch.Generator().manual_seed(3))


# Importing inductor makes torch warn of its own use of a deprecated function, once a process.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_the_compiled_loss_has_the_same_noise_value_and_gradients(backend: str) -> None:
    labeled, labels, unlabeled = batches()
    results = []
    for compiled in (False, True):
        ladder = small()
        shake_parameters(ladder)
        torch.compiler.reset()
        loss_of = torch.compile(ladder.loss, backend=backend) if compiled else ladder.loss
        torch.manual_seed(1)
        loss = loss_of(labeled, labels, unlabeled)
        loss.backward()
        results.append((loss, [parameter.grad for parameter in ladder.parameters()], dict(ladder.named_buffers())))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)


# The passes ---------------------------------------------------------------------------------------------------------


def test_the_clean_pass_has_no_noise_and_no_gradient() -> None:
    ladder = small()
    _, _, unlabeled = batches()
    clean = ladder._clean_pass(unlabeled.flatten(1))
    again = small(noise=100.0)._clean_pass(unlabeled.flatten(1))
    for layer, other in zip(clean, again, strict=True):
        assert torch.equal(layer.z, other.z)
        assert not layer.z.requires_grad


def test_the_clean_pass_is_what_the_network_computes_in_training_mode() -> None:
    ladder = small()
    _, _, unlabeled = batches()
    clean = ladder._clean_pass(unlabeled.flatten(1))
    h = ladder.encoder[-1].activate(clean[-1].z)
    torch.testing.assert_close(ladder.output_normalisation(ladder.classifier(h)), small()(unlabeled))


def test_gradients_reach_the_encoder_by_the_noisy_passes_only() -> None:
    """With targets held fixed, a step of finite difference in any encoder weight moves the loss by its gradient."""
    ladder = small()
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
    one, _ = small().costs(labeled, labels, unlabeled, generator=generators[0])
    other, _ = small().costs(labeled, labels, 5 * unlabeled**2, generator=generators[1])
    torch.testing.assert_close(one, other)


def test_running_statistics_see_clean_noisy_and_labeled_in_turn_and_the_output_the_two_noisy() -> None:
    ladder = small(noise=0.0)
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
    ladder = small()
    calls = Calls({f"decoder.{number}": layer.linear for number, layer in enumerate(ladder.decoder)})
    labeled, labels, unlabeled = batches(num_labeled=6, num_unlabeled=10)
    ladder.loss(labeled, labels, unlabeled)
    assert {name: [len(rows) for rows in inputs] for name, inputs in calls.inputs.items()} == {
        "decoder.0": [10],
        "decoder.1": [10],
        "decoder.2": [10],
    }


def test_the_decoder_starts_from_the_softmax_of_the_noisy_scores() -> None:
    ladder = small()
    calls = Calls({"top": ladder.decoder[0].linear})
    labeled, labels, unlabeled = batches()
    ladder.loss(labeled, labels, unlabeled)
    (top,) = calls.inputs["top"]
    torch.testing.assert_close(top.sum(1), torch.ones(10, dtype=torch.float64))
    assert (top > 0).all()


def test_noise_stands_on_the_pixels_and_on_each_z_with_the_given_deviation() -> None:
    with torch.device("cpu"):
        ladder = Ladder(hidden_sizes=(50, 40), denoising_weights=WEIGHTS)
    blocks = ladder.draw_noise(200, generator=torch.Generator().manual_seed(0))
    assert [tuple(block.shape) for block in blocks] == [(200, 784), (200, 50), (200, 40)]
    for block in blocks:
        assert block.std().item() == pytest.approx(0.3, rel=0.03)
        assert abs(block.mean().item()) < 0.3 * 5 / block.numel() ** 0.5


# The parts ----------------------------------------------------------------------------------------------------------


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
        ladder = small(denoising=denoising)
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
    ladder = small()
    labeled, labels, unlabeled = batches()
    ladder.loss(labeled, labels, unlabeled)
    ladder.eval()
    state = copy.deepcopy(ladder.state_dict())
    before = torch.get_rng_state()
    torch.testing.assert_close(ladder(unlabeled)[:3], ladder(unlabeled[:3]))
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(ladder.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"denoising": "divide"}, "denoising='divide' is unknown: choose from 'authors', 'rasmus'"),
        ({"denoising_weights": (1.0,)}, "1 denoising_weights for 2 hidden_sizes"),
        ({"hidden_sizes": (), "denoising_weights": (1.0,)}, "1 denoising_weights for 0 hidden_sizes"),
        ({"hidden_sizes": (5, 0)}, r"hidden_sizes\[1\] must be a positive whole number"),
        ({"noise": -0.1}, "noise is a standard deviation and was -0.1"),
    ],
)
def test_a_ladder_that_cannot_work_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_the_loss_in_evaluation_mode_is_refused() -> None:
    labeled, labels, unlabeled = batches()
    with pytest.raises(RuntimeError, match=r"call train\(\) before it"):
        small().eval().loss(labeled, labels, unlabeled)


def test_the_benchmark_trains_what_it_times(benchmark: ModuleType) -> None:
    step = benchmark.training_step(Ladder(), fused=True)
    before = step()
    assert benchmark.median_times({"ladder": step}, iterations=1)["ladder"] > 0
    assert step() < before
