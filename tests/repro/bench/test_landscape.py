"""Figure 1: closed forms against automatic differentiation, and what the projection takes away."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, hessian

from pbwn_repro.bench.landscape import Moments, condition, loss, projected_loss
from pbwn_repro.bench.measuring import folder_of, measure
from pbwn_repro.catalog import find

weights = st.floats(0.1, 5) | st.floats(-5, -0.1)


def data():
    x = torch.linspace(-2, 1, 17, dtype=torch.float64)
    return x, 0.7 * x + x.square() / 5  # no line goes through these points


def at(w1, w2):
    return torch.tensor([w1, w2], dtype=torch.float64)


def closed_loss(w1, w2):
    x, t = data()
    moments, product = Moments.of(x, t), w1 * w2
    return (moments.xx * product**2 - 2 * moments.xt * product + t.square().mean().item()) / 2


def closed_gradient(w1, w2):
    moments = Moments.of(*data())
    residual = moments.xx * w1 * w2 - moments.xt
    return residual * w2, residual * w1


@given(weights, weights)
def test_the_closed_forms_are_what_automatic_differentiation_finds(w1, w2):
    x, t = data()
    moments, point = Moments.of(x, t), at(w1, w2)
    scale = moments.xx * (w1**2 + w2**2) + abs(moments.xt)
    assert closed_loss(w1, w2) == pytest.approx(loss(point, x, t).item(), rel=1e-12)
    assert closed_gradient(w1, w2) == pytest.approx(grad(loss)(point, x, t).tolist(), rel=1e-9, abs=1e-12 * scale)
    measured = torch.linalg.eigvalsh(hessian(loss)(point, x, t)).tolist()
    assert moments.eigenvalues(w1, w2) == pytest.approx(measured, rel=1e-9, abs=1e-13 * scale)


@given(weights)
def test_at_every_minimum_the_hessian_is_singular(w1):
    x, t = data()
    best = Moments.of(x, t).best_product
    assert grad(loss)(at(w1, best / w1), x, t).abs().max() < 1e-12
    smaller, larger = torch.linalg.eigvalsh(hessian(loss)(at(w1, best / w1), x, t)).tolist()
    assert condition((smaller, larger)) is None


@given(weights, st.floats(1.5, 20))
def test_scaling_leaves_the_loss_and_the_determinant_and_changes_the_gradients_inversely(w, alpha):
    x, t = data()
    moments = Moments.of(x, t)
    scaled = (alpha * w, w / alpha)
    assert closed_loss(*scaled) == pytest.approx(closed_loss(w, w), rel=1e-9)
    assert math.prod(moments.eigenvalues(*scaled)) == pytest.approx(
        math.prod(moments.eigenvalues(w, w)), rel=1e-6, abs=1e-9
    )
    before, after = closed_gradient(w, w), closed_gradient(*scaled)
    assert after == pytest.approx((before[0] / alpha, before[1] * alpha), rel=1e-9, abs=1e-12)


@given(weights, weights)
def test_after_the_projection_the_loss_is_flat_along_the_hidden_weight(w1, w2):
    x, t = data()
    slope = grad(projected_loss)(at(w1, w2), x, t)
    assert abs(slope[0]) < 1e-12 * (1 + abs(slope[1]))


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    artefact = find("figure-1")
    options = artefact.options("smoke")
    folder = folder_of(tmp_path_factory.mktemp("out"), artefact.name, "smoke", artefact.measurement, options)
    return measure(artefact.measurement, options, folder)


def test_measured_values_agree_with_the_closed_forms_to_rounding(figure):
    assert figure["largest_difference"] < 1e-10


def test_the_condition_number_grows_like_the_fourth_power_of_alpha(figure):
    alphas, found = figure["alpha"], figure["general"]["condition"]["measured"]
    power = math.log(found[-1] / found[-2]) / math.log(alphas[-1] / alphas[-2])
    assert power == pytest.approx(4, abs=0.01)
    assert found == sorted(found)


def test_the_gradient_of_the_small_weight_is_alpha_squared_times_that_of_the_large_one(figure):
    assert figure["general"]["gradient_ratio"] == pytest.approx([alpha**2 for alpha in figure["alpha"]])


def test_after_the_projection_nothing_depends_on_alpha(figure):
    projected = figure["projected"]
    assert projected["condition"]["measured"] == [1.0] * len(figure["alpha"])
    assert len(set(projected["largest_eigenvalue"]["measured"])) == 1
    assert set(projected["directions_left"]) == {1}


def test_the_minima_lie_on_the_surfaces_and_are_their_lowest_places(figure):
    assert [surface["name"] for surface in figure["surfaces"]] == ["equal", "scaled", "projected"]
    for surface in figure["surfaces"]:
        points = len(surface["w1"])
        assert [len(row) for row in surface["loss"]] == [points] * points
        assert surface["minima"]
        middle = surface["loss"][points // 2][points // 2]
        assert middle == min(min(row) for row in surface["loss"])


def test_the_scaled_surface_is_the_steepest(figure):
    highest = {surface["name"]: max(map(max, surface["loss"])) for surface in figure["surfaces"]}
    assert highest["scaled"] > 2 * highest["equal"] > 2 * highest["projected"]


def test_the_papers_scale_fits_a_small_file(tmp_path):
    artefact = find("figure-1")
    options = artefact.options("paper")
    folder = folder_of(tmp_path, artefact.name, "paper", artefact.measurement, options)
    measure(artefact.measurement, options, folder)
    assert folder.result.stat().st_size < 100_000
