"""What torch's compiler makes of the functional form equals it: inductor on the CPU."""

import pytest
import torch
from torch import nn

import pbwn
from drawing import constrained, laid_out
from pbwn import Axes
from pbwn.functional import project_, tangent_
from pbwn.paths.batch import Batch, paths
from twins import units_in_last_place

pytestmark = pytest.mark.long
KINDS = [
    (Axes((0,)), (20, 300), "contiguous", torch.float32),
    (Axes((1,)), (20, 300), "contiguous", torch.float32),
    (Axes((0,)), (8, 4, 3, 3), "channels last", torch.float32),
    (Axes((1,), groups=2), (8, 4, 3, 3), "contiguous", torch.float64),
    (Axes((0,)), (12, 64), "contiguous", torch.bfloat16),
]


def entries():
    generator = torch.Generator().manual_seed(0)
    found = []
    for index, (axes, shape, layout, dtype) in enumerate(KINDS):
        weight = laid_out(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype), layout)
        axes.rows(weight)[1] = 0
        found.append(constrained(weight, axes, str(index)))
    return found


@pytest.mark.parametrize("constraint", [pbwn.UnitNorm(), pbwn.UnitNorm(2.5), pbwn.MaxNorm(1.0)], ids=str)
def test_weights_of_every_kind_are_projected_as_by_the_functional_form(constraint):
    weights = entries()
    assert paths(weights, "compile") == ["compile"] * len(weights)
    expected = [project_(weight.tensor.detach().double(), weight.axes, constraint) for weight in weights]
    batch = Batch(weights, constraint, backend="compile")
    batch.project_()
    for weight, one in zip(weights, expected, strict=True):
        assert units_in_last_place(weight.tensor, one) <= 1
    batch.project_()  # kernels that are there already
    assert all(weight.tensor.isfinite().all() for weight in weights)


def test_gradients_are_made_tangent_as_by_the_functional_form():
    weights = entries()
    expected = []
    for weight in weights:
        weight.tensor.grad = torch.randn_like(weight.tensor)
        expected.append(tangent_(weight.tensor.grad.double(), weight.tensor.double(), weight.axes))
    Batch(weights, pbwn.UnitNorm(), backend="compile").tangent_()
    for weight, one in zip(weights, expected, strict=True):
        tolerance = 2 * torch.finfo(weight.tensor.dtype).eps * float(one.abs().max())
        torch.testing.assert_close(weight.tensor.grad.double(), one, rtol=0, atol=tolerance)


def test_a_model_trains_on_the_sphere():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    projection = pbwn.attach(model, optimizer, gradient="riemannian", backend="compile")
    before = model[0].weight._version
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().sum().backward()
        optimizer.step()
    assert projection.check().ok
    assert model[0].weight._version > before
    assert "backend compile\n" in str(projection)
