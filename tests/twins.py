"""The slow, obvious twins that the library is tested against: plain loops over neurons in float64."""

import itertools
import math

import torch


def neurons_of(shape, neuron_dims, groups=1):
    """The neurons of a weight, each as the list of the indices of its entries, found by visiting every entry."""
    found = {}
    block = shape[0] // groups
    for index in itertools.product(*(range(size) for size in shape)):
        key = (index[0] // block if groups > 1 else 0, *(index[dim] for dim in neuron_dims))
        found.setdefault(key, []).append(index)
    return list(found.values())


def entries(tensor, neuron):
    return [float(tensor[index]) for index in neuron]


def projected(weight, neurons, radius=1.0):
    """Every neuron divided by its norm; zero rows and rows that are not finite as they are."""
    result = weight.detach().to(torch.float64).clone()
    for neuron in neurons:
        numbers = entries(weight.detach(), neuron)
        norm = math.hypot(*numbers)
        if norm > 0 and all(map(math.isfinite, numbers)):
            for index, number in zip(neuron, numbers, strict=True):
                result[index] = number / norm * radius
    return result


def tangent(gradient, weight, neurons):
    """Every neuron's gradient less its component along the neuron's weights."""
    result = gradient.detach().to(torch.float64).clone()
    for neuron in neurons:
        w, g = entries(weight.detach(), neuron), entries(gradient, neuron)
        norm = math.hypot(*w)
        if norm > 0 and all(map(math.isfinite, w + g)):
            along = sum(a / norm * b for a, b in zip(w, g, strict=True))
            for index, a, b in zip(neuron, w, g, strict=True):
                result[index] = b - along * a / norm
    return result


def units_in_last_place(found, expected):
    """The distance of a tensor from float64 values, in units in the last place of the larger of the two."""
    found64 = found.detach().to(torch.float64)
    epsilon = torch.finfo(found.dtype).eps
    scale = torch.maximum(found64.abs(), expected.abs()).clamp(min=torch.finfo(found.dtype).tiny)
    spacing = epsilon * torch.exp2(scale.log2().floor())
    return float(((found64 - expected).abs() / spacing).max()) if found.numel() else 0.0
