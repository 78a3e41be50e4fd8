"""Methods that compute weights from other parameters in each forward pass."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from pbwn_repro.errors import UsageError
from pbwn_repro.methods.method import Method, constrained_weights
from pbwn_repro.models.family import Layers

LARGEST_GROUP = 64
_SMALLEST = 1e-12  # lower bound on eigenvalues, relative to the largest


class WeightNormalization(Method):
    """Weights are normalised in the forward pass, with a learned scale per neuron."""

    reparametrizes = True
    about = "rows normalised in each forward pass, with a learned scale"

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Parametrize the weights; scales start at 1, as in the paper, not at the norms of the weights as in torch."""
        for weight in constrained_weights(model, layers):
            [dim] = weight.axes.neurons
            parametrizations.weight_norm(weight.module, weight.attribute, dim=dim)
            with torch.no_grad():
                weight.module.get_parameter(f"parametrizations.{weight.attribute}.original0").fill_(1.0)


class OrthogonalWeightNormalization(Method):
    """Rows are made orthonormal in the forward pass, in groups if the layer is wide (Huang et al. 2018).

    The fixed or learned scale that the authors apply to the rows of some networks is left out: rows have norm 1, as in
    PBWN.
    """

    reparametrizes = True
    about = "rows made orthonormal in each forward pass, by an eigendecomposition"

    def __init__(self, title: str, largest_group: int = LARGEST_GROUP) -> None:
        """`largest_group` is the maximum number of rows that are made orthogonal to each other."""
        super().__init__(title)
        self._largest_group = largest_group

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Parametrize the weights; the underlying parameters keep their values."""
        for weight in constrained_weights(model, layers):
            if weight.axes.neurons != (0,) or weight.axes.groups > 1:
                raise UsageError(
                    f"own: {weight.name!r} has its neurons along {weight.axes}, but only layers with neurons along the "
                    "first dimension are supported, such as linear layers and ungrouped convolutions"
                )
            rows, fan_in = len(weight.tensor), weight.axes.fan_in(tuple(weight.tensor.shape))
            # Centred rows of p elements span p - 1 dimensions: no more of them can be orthonormal.
            groups = num_groups(rows, min(self._largest_group, fan_in - 1))
            parametrize.register_parametrization(weight.module, weight.attribute, OrthonormalRows(groups), unsafe=True)


def num_groups(rows: int, largest: int) -> int:
    """Return the number of groups of at most `largest` rows, preferring equal groups to fewer ones.

    The groups are equal if that takes fewer than twice the minimum number.

    >>> num_groups(250, 64), num_groups(10, 64), num_groups(97, 64)
    (5, 1, 2)
    """
    if largest < 1:
        raise UsageError("own: rows of one element vanish when centred: choose another method")
    least = -(-rows // largest)
    return next((count for count in range(least, 2 * least) if rows % count == 0), least)


class OrthonormalRows(nn.Module):
    """W = (V_c V_c^T)^(-1/2) V_c for each group of rows, where V_c is V minus the mean of each row."""

    def __init__(self, groups: int = 1) -> None:
        """`groups` is the number of groups of rows; the last group may be smaller."""
        super().__init__()
        self.groups = groups

    def forward(self, weight: Tensor) -> Tensor:
        rows = weight.flatten(1)
        groups = (rows - rows.mean(dim=1, keepdim=True)).split(-(-len(rows) // self.groups))
        if len(groups[-1]) == len(groups[0]):
            return orthonormal(torch.stack(groups)).reshape(weight.shape)
        return torch.cat([orthonormal(group) for group in groups]).reshape(weight.shape)


def orthonormal(rows: Tensor) -> Tensor:
    """Return the nearest matrices with orthonormal rows, (V V^T)^(-1/2) V, by the eigendecomposition of V V^T.

    >>> w = orthonormal(torch.tensor([[[3.0, 0.0, 0.0], [3.0, 2.0, 0.0]]]))
    >>> torch.allclose(w @ w.mT, torch.eye(2), atol=1e-6)
    True
    """
    return _Whitening.apply(rows)  # type: ignore[no-any-return, no-untyped-call]


class _Whitening(torch.autograd.Function):
    """W = S^(-1/2) V with S = V V^T = D diag(l) D^T, with a closed-form gradient through S^(-1/2).

    In D's basis, the derivative of S^(-1/2) for a pair of eigenvalues a and b is the divided difference of l^(-1/2),
    -1 / (sqrt(a b) (sqrt(a) + sqrt(b))), which is finite for equal eigenvalues; torch would differentiate the
    eigenvectors, whose derivative is not. Computed in float64, because S has the squared condition number of V.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor) -> Tensor:
        v = rows.detach().double()
        values, vectors = torch.linalg.eigh(v @ v.mT)
        # Linearly dependent rows give an eigenvalue of 0: the bound keeps the result finite, though not orthonormal.
        largest = values[..., -1:]
        roots = values.maximum(_SMALLEST * largest.where(largest > 0, 1.0)).sqrt()
        inverse_root = (vectors / roots.unsqueeze(-2)) @ vectors.mT
        ctx.save_for_backward(v, vectors, roots, inverse_root)
        w: Tensor = (inverse_root @ v).to(rows.dtype)
        return w

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad_output: Tensor) -> Tensor:
        v, vectors, roots, inverse_root = ctx.saved_tensors  # type: ignore[attr-defined]
        grad_w = grad_output.double()
        column, row = roots.unsqueeze(-1), roots.unsqueeze(-2)
        divided_difference = -1 / (column * row * (column + row))
        grad_s = vectors @ (divided_difference * (vectors.mT @ (grad_w @ v.mT) @ vectors)) @ vectors.mT
        grad_v: Tensor = inverse_root @ grad_w + (grad_s + grad_s.mT) @ v
        return grad_v.to(grad_output.dtype)


METHODS: Mapping[str, Method] = {
    "wn": WeightNormalization("WN"),
    "own": OrthogonalWeightNormalization("OWN"),
}
