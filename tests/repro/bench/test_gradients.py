"""What is measured of gradients is what the formulas say, and the measurement resumes where it was interrupted."""

import pytest
import torch
from torch import nn

import pbwn
from pbwn.functional import tangent_
from pbwn_repro.bench.gradients import GradientWatch, along_weights, gradients
from pbwn_repro.bench.parts import Parts

OPTIONS = {
    **{"networks": ["mlp", "mlp-bn"], "methods": ["normal", "pbwn"], "data": "digits", "batch_size": 64, "lr": 0.3},
    **{"steps": 6, "every": 3, "seeds": 2},
}


def test_the_share_is_what_the_riemannian_gradient_takes_out():
    weight, gradient = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    tangent = tangent_(gradient.clone(), weight, pbwn.Axes((0,)))
    left = tangent.square().sum() / gradient.square().sum()
    assert along_weights(weight, gradient).item() == pytest.approx(1 - left.item())
    assert along_weights(weight, weight.clone()).item() == pytest.approx(1.0)


def test_what_is_passed_back_is_compared_with_what_came():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    watch = GradientWatch(model)
    targets = torch.randn(8, 3, dtype=torch.float64)
    for on in (False, True):
        with watch.watching(on=on):
            scores = model(torch.randn(8, 4, dtype=torch.float64))
            scores.retain_grad()
            (scores - targets).square().sum().backward()
    [(name, ratio)] = watch.means()["passed_back"].items()
    expected = (scores.grad @ model[2].weight).norm() / scores.grad.norm()
    assert (name, ratio) == ("2", pytest.approx(expected.item()))


def test_a_layer_with_orthonormal_columns_keeps_the_norm():
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(3, 5))
    watch = GradientWatch(model)
    with watch.watching(on=True):
        model(torch.randn(2, 4, dtype=torch.float64)).square().sum().backward()
    assert watch.means()["passed_back"]["1"] == pytest.approx(1.0)


def test_each_network_and_method_has_its_layers_and_nothing_is_measured_twice(tmp_path):
    told = []
    found = gradients(OPTIONS, Parts(tmp_path), lambda *doing: told.append(doing))
    part = found["networks"]["mlp-bn"]["pbwn"]
    assert len(part["gradient_share"]) == 4
    assert len(part["passed_back"]) == 3
    assert {len(values) for values in part["gradient_share"].values()} == {2}
    assert all(0 <= share <= 1 for values in part["gradient_share"].values() for share in values)
    # Batch normalisation makes the gradient of the layer before it orthogonal to its weights, but for epsilon.
    assert max(part["gradient_share"]["features.0"]) < 1e-6
    told.clear()
    assert gradients(OPTIONS, Parts(tmp_path), lambda *doing: told.append(doing)) == found
    assert told == [(8, 8, "done")]
