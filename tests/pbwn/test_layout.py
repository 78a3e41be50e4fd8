"""Where the numbers of each neuron lie, against a visit to every number."""

import pytest
import torch
from hypothesis import given

from drawing import weights
from pbwn import Axes
from pbwn.layout import overlapping, row_layout


def places(layout):
    """The place of every number, neuron by neuron, as the two levels give them."""
    (outer, outer_stride), (inner, inner_stride) = layout.neurons
    (blocks, block_stride), (count, stride) = layout.fan_in
    return [
        {
            a * outer_stride + b * inner_stride + c * block_stride + d * stride
            for c in range(blocks)
            for d in range(count)
        }
        for a in range(outer)
        for b in range(inner)
    ]


@given(weights())
def test_the_levels_lead_to_every_number_of_each_neuron(drawn):
    weight, axes, _ = drawn
    layout = row_layout(weight, axes)
    if layout is None:
        return
    size = 1 + sum((count - 1) * stride for count, stride in zip(weight.shape, weight.stride(), strict=True))
    numbered = torch.arange(size).as_strided(weight.shape, weight.stride())
    rows = axes.rows(numbered).flatten(axes.neuron_dims).flatten(0, -2)
    assert places(layout) == [set(row) for row in rows.tolist()]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_is_one_stretch_per_neuron_in_both_memory_formats(memory_format):
    weight = torch.empty(8, 4, 3, 3).to(memory_format=memory_format)
    assert row_layout(weight, Axes((0,))).fan_in == ((1, 0), (36, 1))


@pytest.mark.parametrize(
    ("weight", "axes"),
    [
        (torch.empty(4, 1).expand(4, 4), Axes((0,))),
        (torch.empty(2, 3, 2, 3, 4, 4)[:, :2, :, :2, :3], Axes((0,))),
        (torch.empty(4, 4, 4, 4)[:, :2, :2, :2], Axes((0, 1, 2))),
    ],
)
def test_rows_that_share_numbers_or_are_scattered_have_no_layout(weight, axes):
    assert row_layout(weight, axes) is None


def test_tensors_that_meet_in_memory_are_found_and_neighbours_are_not():
    memory = torch.zeros(100)
    pieces = [memory[50:60], memory[:20], memory[20:40], memory[30:45], memory[31:32], torch.zeros(5), memory[60:]]
    assert overlapping(pieces) == {2, 3, 4}
    assert overlapping([memory, memory[3:4]]) == {0, 1}
    assert overlapping([]) == set()
