"""Weights of every layer type's shape, layout, dtype and size of numbers, for property tests."""

import torch
from hypothesis import strategies as st
from torch import nn

from pbwn import Axes
from pbwn.selection import ConstrainedWeight
from twins import neurons_of

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SCALES = {
    torch.float64: (1e-250, 1e-160, 1e-30, 1.0, 1e30, 1e160, 1e250),
    torch.float32: (1e-42, 1e-30, 1e-18, 1.0, 1e18, 1e30, 1e37),
    torch.bfloat16: (1e-30, 1.0, 1e30),
    torch.float16: (1e-6, 1.0, 1e3),
}
LAYOUTS = ["contiguous", "channels last", "transposed", "sliced"]


@st.composite
def weights(draw):
    """A weight of any layer type's shape, in any layout, with rows of any size, and its axes."""
    axes, shape = draw(
        st.one_of(
            st.tuples(st.just(Axes((0,))), st.tuples(*[st.integers(1, 4)] * 2)),
            st.tuples(st.just(Axes((1,))), st.tuples(*[st.integers(1, 4)] * 2)),
            st.tuples(st.just(Axes((0, 1))), st.tuples(*[st.integers(1, 3)] * 3)),
            st.tuples(st.just(Axes((0,))), st.tuples(*[st.integers(1, 3)] * 4)),
            st.tuples(st.just(Axes((1,))), st.tuples(*[st.integers(1, 3)] * 4)),
            st.integers(1, 3).flatmap(
                lambda groups: st.tuples(
                    st.just(Axes((1,), groups=groups)),
                    st.tuples(st.integers(1, 2).map(lambda n: n * groups), *[st.integers(1, 3)] * 3),
                )
            ),
        )
    )
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    neurons = neurons_of(shape, axes.neurons, axes.groups)
    for neuron in neurons:
        scale = draw(st.sampled_from([*SCALES[dtype], 0.0]))
        for index in neuron:
            values[index] *= scale
    return laid_out(values.to(dtype), draw(st.sampled_from(LAYOUTS))), axes, neurons


def laid_out(weight, layout):
    if layout == "channels last" and weight.ndim == 4:
        return weight.to(memory_format=torch.channels_last)
    if layout == "transposed":
        return weight.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "sliced":
        wide = torch.zeros(*weight.shape[:-1], 2 * weight.shape[-1], dtype=weight.dtype)
        wide[..., ::2] = weight
        return wide[..., ::2]
    return weight


def constrained(weight, axes, name="weight"):
    module = nn.Module()
    module.weight = nn.Parameter(weight)
    return ConstrainedWeight(name, module, "weight", axes, tuple(weight.shape))
