"""The equations of the paper, one test each, in float64."""

import pytest
import torch
from torch import nn

import pbwn
from pbwn import Axes
from pbwn.functional import project_, row_norms, tangent_

ROWS = Axes((0,))


def on_sphere(n=6, p=9):
    return project_(torch.randn(n, p, dtype=torch.float64), ROWS)


def test_equation_3_the_diagonal_of_w_wt_is_one_after_projection():
    W = on_sphere()
    torch.testing.assert_close((W @ W.T).diagonal(), torch.ones(6, dtype=torch.float64))


def test_equation_5_the_riemannian_gradient_is_the_matrix_form_and_is_tangent():
    W, G = on_sphere(), torch.randn(6, 9, dtype=torch.float64)
    matrix_form = G - torch.diag((W @ G.T).diagonal()) @ W
    tangent = tangent_(G.clone(), W, ROWS)
    torch.testing.assert_close(tangent, matrix_form)
    assert (W * tangent).sum(1).abs().max() < 1e-14


def test_equation_5_holds_at_any_radius():
    W, G = 3.7 * on_sphere(), torch.randn(6, 9, dtype=torch.float64)
    tangent = tangent_(G.clone(), W, ROWS)
    assert (W * tangent).sum(1).abs().max() < 1e-13
    torch.testing.assert_close(tangent, tangent_(G.clone(), W / 3.7, ROWS))


def test_equation_6_the_retraction_is_a_step_and_a_projection():
    W, G, rate = on_sphere(), torch.randn(6, 9, dtype=torch.float64), 0.3
    riemannian = G - torch.diag((W @ G.T).diagonal()) @ W
    moved = W - rate * riemannian
    M = moved @ moved.T
    retracted = torch.diag(M.diagonal().rsqrt()) @ moved  # on the left: neurons are rows
    torch.testing.assert_close(project_(W - rate * tangent_(G.clone(), W, ROWS), ROWS), retracted)


def test_equation_8_the_subtracted_term_is_no_longer_than_the_gradient():
    W, G = on_sphere(), torch.randn(6, 9, dtype=torch.float64)
    subtracted = G - tangent_(G.clone(), W, ROWS)
    assert (row_norms(subtracted, ROWS) <= row_norms(G, ROWS) * (1 + 1e-15)).all()


def test_equations_9_and_10_are_what_attach_does_to_sgd():
    model = nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    pbwn.attach(model, optimizer)
    W = model[0].weight.detach().clone()
    model(torch.randn(5, 9, dtype=torch.float64)).square().sum().backward()
    moved = W - 0.3 * model[0].weight.grad
    optimizer.step()
    torch.testing.assert_close(model[0].weight.detach(), moved / moved.norm(dim=1, keepdim=True))


def test_equation_16_the_projection_is_an_adaptive_weight_decay():
    W, G, rate = on_sphere(), torch.randn(6, 9, dtype=torch.float64), 0.3
    scale = (W - rate * G).norm(dim=1, keepdim=True)
    adaptive = W - (scale - 1) / scale * W - rate / scale * G
    torch.testing.assert_close(project_(W - rate * G, ROWS), adaptive)


# Batch normalisation directly behind the layer: equations (11) to (14).


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(9, 6, bias=False)
        self.norm = nn.BatchNorm1d(6, eps=1e-30)  # the paper's BN has no epsilon, torch demands one
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.hidden(x))))


@pytest.fixture
def problem():
    model = Normalised().double()
    return model, torch.randn(16, 9, dtype=torch.float64), torch.randint(0, 2, (16,))


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def test_equation_12_projecting_changes_neither_output_nor_loss_in_training_mode(problem):
    model, x, y = problem
    before = model(x), loss_of(model, x, y)
    pbwn.project_(model)
    torch.testing.assert_close((model(x), loss_of(model, x, y)), before)


def test_in_evaluation_mode_it_does_until_the_statistics_are_estimated_again(problem):
    model, x, _ = problem
    torch.optim.swa_utils.update_bn([x], model)
    before = model.eval()(x)
    pbwn.project_(model)
    assert (model(x) - before).abs().max() > 0.01
    torch.optim.swa_utils.update_bn([x], model)
    torch.testing.assert_close(model.eval()(x), before)


def test_equations_13_and_14_the_gradient_scales_by_one_over_alpha(problem):
    model, x, y = problem
    loss_of(model, x, y).backward()
    gradient = model.hidden.weight.grad.clone()
    with torch.no_grad():
        model.hidden.weight.mul_(2.5)
    model.zero_grad()
    loss_of(model, x, y).backward()
    torch.testing.assert_close(model.hidden.weight.grad, gradient / 2.5)


def test_the_riemannian_gradient_equals_the_ordinary_one_behind_batch_normalisation(problem):
    model, x, y = problem
    loss_of(model, x, y).backward()
    gradient = model.hidden.weight.grad.clone()
    torch.testing.assert_close(tangent_(gradient.clone(), model.hidden.weight, ROWS), gradient, rtol=0, atol=1e-14)


def test_with_interval_one_and_batch_normalisation_behind_both_gradients_train_alike(problem):
    model, x, y = problem
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ends = []
    for gradient in ("ordinary", "riemannian"):
        model.load_state_dict(start)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        projection = pbwn.attach(model, optimizer, gradient=gradient)
        for _ in range(20):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        ends.append(model.hidden.weight.detach().clone())
        projection.detach()
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-8)
