"""The Ladder as a whole: against its plain twin in the benchmark, learning, reproducible, compiled, misused."""

import pytest
import torch

from pbwn_repro.models import Ladder, build
from repro.models.ladder_problem import WEIGHTS, batches, load_benchmark, shake_parameters, small_ladder

BENCHMARK = load_benchmark()


@pytest.mark.parametrize("denoising", ["authors", "rasmus"])
@pytest.mark.parametrize(("num_labeled", "num_unlabeled"), [(6, 6), (3, 10), (12, 5)])
def test_the_ladder_equals_its_plain_twin(denoising: str, num_labeled: int, num_unlabeled: int) -> None:
    fast = small_ladder(denoising=denoising)
    shake_parameters(fast)
    plain = small_ladder(BENCHMARK.PlainLadder, denoising=denoising)
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
    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(1)

    data = batches()
    classification, denoising = small_ladder().costs(*data, generator=seeded())
    _, unweighted = small_ladder(denoising_weights=(1.0, 1.0, 1.0)).costs(*data, generator=seeded())
    torch.testing.assert_close(small_ladder().loss(*data, generator=seeded()), classification + denoising.sum())
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
    ladder = small_ladder(denoising=denoising)
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
        ladder = small_ladder()
        torch.manual_seed(seed)
        return ladder.loss(labeled, labels, unlabeled, generator=generator).item()

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)
    assert loss(1, torch.Generator().manual_seed(3)) == loss(2, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_the_compiled_loss_has_the_same_noise_value_and_gradients(backend: str) -> None:
    labeled, labels, unlabeled = batches()
    results = []
    for compiled in (False, True):
        ladder = small_ladder()
        shake_parameters(ladder)
        torch.compiler.reset()
        loss_of = torch.compile(ladder.loss, backend=backend) if compiled else ladder.loss
        torch.manual_seed(1)
        loss = loss_of(labeled, labels, unlabeled)
        loss.backward()
        results.append((loss, [parameter.grad for parameter in ladder.parameters()], dict(ladder.named_buffers())))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"denoising": "divide"}, "denoising='divide' is unknown: choose from 'authors', 'rasmus'"),
        ({"denoising_weights": (1.0,)}, "1 denoising_weights for 2 hidden_sizes"),
        ({"hidden_sizes": (), "denoising_weights": (1.0,)}, "1 denoising_weights for 0 hidden_sizes"),
        ({"hidden_sizes": (5, 0)}, r"hidden_sizes\[1\] must be a positive integer"),
        ({"noise": -0.1}, "noise must be a standard deviation >= 0, got -0.1"),
    ],
)
def test_a_ladder_that_cannot_work_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_ladder(**options)


def test_the_loss_in_evaluation_mode_is_refused() -> None:
    labeled, labels, unlabeled = batches()
    with pytest.raises(RuntimeError, match=r"call train\(\) first"):
        small_ladder().eval().loss(labeled, labels, unlabeled)


def test_the_benchmark_trains_what_it_times() -> None:
    step = BENCHMARK.training_step(Ladder(), fused=True)
    before = step()
    assert BENCHMARK.median_times({"ladder": step}, iterations=1)["ladder"] > 0
    assert step() < before
