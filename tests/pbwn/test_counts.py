"""What a projection asks of an accelerator: operations, bytes, allocations, and never to wait for the device."""

from math import prod

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import pbwn
from counting import LAYOUTS, Counting, fake_weights
from pbwn.paths.batch import Batch

PER_WEIGHT, PER_CALL = 3, 12
CONSTRAINTS = {
    "unit": (pbwn.UnitNorm(), None),
    "radius": (pbwn.UnitNorm(2.5), None),
    "ball": (pbwn.MaxNorm(3.0), None),
    "own radius": (pbwn.UnitNorm({"*": 1.5}), 1.5),
    "own radii": (pbwn.UnitNorm("initial"), "one per neuron"),
}
BYTES_PER_ELEMENT = {torch.float64: 24.5, torch.float32: 12.5, torch.bfloat16: 6.5, torch.float16: 6.5}


def counted(batch, operation):
    getattr(batch, operation)()  # makes the plan
    with Counting() as counting:
        getattr(batch, operation)()
    return counting.counts


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_a_projection_reads_each_element_twice_and_writes_it_once(kind, dtype, layout, monkeypatch):
    constraint, radius = CONSTRAINTS[kind]
    monkeypatch.setattr("pbwn.paths.batch.has_usual_radii", lambda entry: True)  # reads radii, once for a plan
    with FakeTensorMode():
        weights = fake_weights([LAYOUTS[layout]] * 5, dtype)
        radii = {} if radius is None else {weight.name: radius for weight in weights}
        if radius == "one per neuron":
            shape = weights[0].axes.neuron_shape(weights[0].shape)
            radii = {weight.name: torch.empty(shape, device="cuda", dtype=torch.float64) for weight in weights}
        counts = counted(Batch(weights, constraint, radii), "project_")
    elements, neurons = sum(prod(weight.shape) for weight in weights), sum(weight.neurons for weight in weights)
    assert len(counts.operations) <= PER_WEIGHT * len(weights) + PER_CALL
    assert counts.bytes_moved <= BYTES_PER_ELEMENT[dtype] * elements
    assert counts.largest_allocation <= 8 * neurons


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_riemannian_gradient_takes_five_operations_and_one_workspace(dtype, layout):
    with FakeTensorMode():
        weights = fake_weights([LAYOUTS[layout]] * 5, dtype)
        for weight in weights:
            weight.tensor.grad = torch.empty_like(weight.tensor)
        counts = counted(Batch(weights, pbwn.UnitNorm()), "tangent_")
    elements, largest = sum(prod(weight.shape) for weight in weights), max(prod(weight.shape) for weight in weights)
    assert len(counts.operations) <= 5 * len(weights) + PER_CALL
    assert counts.bytes_moved <= 32.5 * elements
    assert counts.largest_allocation <= 4 * largest


def test_a_mixed_model_costs_what_its_parts_do():
    with FakeTensorMode():
        dtypes = (torch.float32, torch.bfloat16, torch.float64)
        every = [weight for dtype in dtypes for weight in fake_weights(LAYOUTS.values(), dtype)]
        counts = counted(Batch(every, pbwn.UnitNorm()), "project_")
    groups = 2  # norms in float32, for float32 and bfloat16, and in float64
    assert len(counts.operations) <= PER_WEIGHT * len(every) + PER_CALL * groups
    assert counts.bytes_moved <= sum(BYTES_PER_ELEMENT[one.tensor.dtype] * prod(one.shape) for one in every)
    assert counts.largest_allocation <= 8 * sum(one.neurons for one in every)


def test_reading_a_value_would_have_been_noticed():
    with FakeTensorMode():
        batch = Batch(fake_weights([LAYOUTS["rows"]], torch.float32), pbwn.UnitNorm())
        batch.project_()
        with pytest.raises(Exception, match="_local_scalar_dense"):
            batch.project_(synchronize=True)
