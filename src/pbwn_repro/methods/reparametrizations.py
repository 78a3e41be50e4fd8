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
_SMALLEST = 1e-12  # eigenvalue, as a share of the largest


class WeightNormalization(Method):
    """Weights are normalised inside the forward pass, each neuron with a learned scale."""

    reparametrizes = True
    about = "rows normalised in each pass, with a learned scale"

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Parametrize the weights; the scales start at 1, as in the paper, where torch takes the weights' norms."""
        for weight in constrained_weights(model, layers):
            [dim] = weight.axes.neurons
            parametrizations.weight_norm(weight.module, weight.attribute, dim=dim)
            with torch.no_grad():
                weight.module.get_parameter(f"parametrizations.{weight.attribute}.original0").fill_(1.0)


class OrthogonalWeightNormalization(Method):
    """Rows are made orthonormal inside the forward pass, in groups where a layer is wide (Huang et al. 2018).

    Without the fixed or learned scale that the authors multiply some networks' rows by: rows have norm 1, as PBWN's.
    """

    reparametrizes = True
    about = "rows made orthonormal in each pass, by an eigendecomposition"

    def __init__(self, title: str, largest_group: int = LARGEST_GROUP) -> None:
        """`largest_group` is the most rows that are made orthogonal to each other."""
        super().__init__(title)
        self._largest_group = largest_group

    def prepare(self, model: nn.Module, layers: Layers) -> None:
        """Parametrize the weights; they stay as they are as parameters."""
        for weight in constrained_weights(model, layers):
            if weight.axes.neurons != (0,) or weight.axes.groups > 1:
                raise UsageError(
                    f"own: the neurons of {weight.name!r} lie along {weight.axes}: layers that are stored with "
                    "neurons first are known, such as linear layers and convolutions"
                )
            rows, fan_in = len(weight.tensor), weight.axes.fan_in(tuple(weight.tensor.shape))
            # Centred rows of p elements span p - 1 dimensions: no more of them can be orthonormal.
            groups = num_groups(rows, min(self._largest_group, fan_in - 1))
            parametrize.register_parametrization(weight.module, weight.attribute, OrthonormalRows(groups), unsafe=True)


def num_groups(rows: int, largest: int) -> int:
    """How many groups of at most `largest` rows: equal ones where that takes less than twice as many as are needed.

    >>> num_groups(250, 64), num_groups(10, 64), num_groups(97, 64)
    (5, 1, 2)
    """
    if largest < 1:
        raise UsageError("own: rows of one element have nothing left when they are centred: choose another method")
    least = -(-rows // largest)
    return next((count for count in range(least, 2 * least) if rows % count == 0), least)


class OrthonormalRows(nn.Module):
    """W = (V_c V_c^T)^(-1/2) V_c for each group of rows, V_c being V with the mean of each row subtracted."""

    def __init__(self, groups: int = 1) -> None:
        """`groups` is the number of groups that the rows are split into, the last of which may be smaller."""
        super().__init__()
        self.groups = groups

    def forward(self, weight: Tensor) -> Tensor:
        rows = weight.flatten(1)
        groups = (rows - rows.mean(dim=1, keepdim=True)).split(-(-len(rows) // self.groups))
        if len(groups[-1]) == len(groups[0]):
            return orthonormal(torch.stack(groups)).reshape(weight.shape)
        return torch.cat([orthonormal(group) for group in groups]).reshape(weight.shape)


def orthonormal(rows: Tensor) -> Tensor:
    """The nearest matrices with orthonormal rows: (V V^T)^(-1/2) V, by the eigendecomposition of V V^T.

    >>> made = orthonormal(torch.tensor([[[3.0, 0.0, 0.0], [3.0, 2.0, 0.0]]]))
    >>> torch.allclose(made @ made.mT, torch.eye(2), atol=1e-6)
    True
    """
    return _Whitening.apply(rows)  # type: ignore[no-any-return, no-untyped-call]


class _Whitening(torch.autograd.Function):
    """With S = V V^T = D diag(l) D^T and W = S^(-1/2) V, the gradient through S^(-1/2) has a closed form.

    In D's basis, the derivative of l^(-1/2) between two eigenvalues a and b is the divided difference
    -1 / (sqrt(a b) (sqrt(a) + sqrt(b))), which stays finite where they agree; that of the eigenvectors alone,
    which torch would take, does not. In float64: S squares the condition number of V.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor) -> Tensor:
        wide = rows.detach().double()
        values, vectors = torch.linalg.eigh(wide @ wide.mT)
        # Rows that depend on each other have an eigenvalue of 0: they get rows that are finite, and not orthonormal.
        largest = values[..., -1:]
        roots = values.maximum(_SMALLEST * largest.where(largest > 0, 1.0)).sqrt()
        inverse_root = (vectors / roots.unsqueeze(-2)) @ vectors.mT
        ctx.save_for_backward(wide, vectors, roots, inverse_root)
        made: Tensor = (inverse_root @ wide).to(rows.dtype)
        return made

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        wide, vectors, roots, inverse_root = ctx.saved_tensors  # type: ignore[attr-defined]
        upper = gradient.double()
        column, row = roots.unsqueeze(-1), roots.unsqueeze(-2)
        divided = -1 / (column * row * (column + row))
        of_root = vectors @ (divided * (vectors.mT @ (upper @ wide.mT) @ vectors)) @ vectors.mT
        of_rows: Tensor = inverse_root @ upper + (of_root + of_root.mT) @ wide
        return of_rows.to(gradient.dtype)


METHODS: Mapping[str, Method] = {
    "wn": WeightNormalization("WN"),
    "own": OrthogonalWeightNormalization("OWN"),
}
