"""Sums of losses for the metrics, and the first value that is not finite, kept on the device.

Reading a value makes the host wait for a GPU. Both are therefore computed on the device in each step and read only
where a line is logged, a model evaluated or a checkpoint saved, so that no non-finite value gets into any of these.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class NonFiniteError(Exception):
    """The loss, a gradient or the final evaluation is NaN or infinite, at a step counted from 1."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class LossWatch:
    """Sum finite losses in float64, count the others, and remember the first step that was not finite."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._names = [name for name, _ in model.named_parameters()]
        self._parameters = [parameter for _, parameter in model.named_parameters()]
        self._device = device
        self.reset()

    def reset(self, loss_sum: float = 0.0, losses_lost: int = 0) -> None:
        """Forget everything and start from the given sums, by default or those of a checkpoint."""
        self._sums = torch.tensor([loss_sum, losses_lost], dtype=torch.float64, device=self._device)
        self._bad_step = torch.zeros((), dtype=torch.float64, device=self._device)  # counted from 1
        self._bad_loss = torch.zeros((), dtype=torch.float64, device=self._device)
        self._bad_norms = torch.zeros(len(self._names), device=self._device)

    @torch.no_grad()
    def add(self, step: int, loss: Tensor, mean_loss: Tensor, *, gradients: bool) -> None:
        """Record a step, counted from 1: the loss of this process, and its mean over all processes.

        With `gradients=False` only the loss is checked, as when a gradient scaler handles overflowing gradients.
        """
        is_finite = mean_loss.isfinite()
        self._sums += torch.stack([torch.where(is_finite, mean_loss.double(), 0.0), (~is_finite).double()])
        norms = self._norms() if gradients else torch.zeros_like(self._bad_norms)
        # The norms are checked one by one: their sum can overflow although every gradient is finite.
        is_first = (self._bad_step == 0) & ~(loss.isfinite() & norms.isfinite().all())
        self._bad_step = torch.where(is_first, float(step), self._bad_step)
        self._bad_loss = torch.where(is_first, loss.double(), self._bad_loss)
        self._bad_norms = torch.where(is_first, norms, self._bad_norms)

    def read(self) -> tuple[float, int]:
        """Return the sum of the finite losses and the number of the others. Waits for the device."""
        loss_sum, lost = self._sums.tolist()
        return loss_sum, int(lost)

    def first_problem(self) -> tuple[int, str] | None:
        """Return the first step that was not finite and a description, or None. Waits for the device."""
        step, loss = torch.stack([self._bad_step, self._bad_loss]).tolist()
        if not step:
            return None
        norms = self._bad_norms.tolist()
        layers = [name for name, norm in zip(self._names, norms, strict=True) if not math.isfinite(norm)]
        more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""
        problems = [] if math.isfinite(loss) else [f"the loss is {loss}"]
        if layers:
            problems.append(f"the gradient of {', '.join(layers[:3])}{more} is not finite")
        return int(step), ", ".join(problems)

    def clear_problem(self) -> None:
        """Forget the problem, so that the next one is recorded."""
        self._bad_step = torch.zeros_like(self._bad_step)

    def _norms(self) -> Tensor:
        """The norm of each parameter's gradient, 0 without a gradient; of the local shard if it is sharded."""
        gradients = [parameter.grad for parameter in self._parameters]
        norms = iter(torch._foreach_norm([_local(each) for each in gradients if each is not None]))
        zero = self._bad_norms.new_zeros(())
        return torch.stack([zero if each is None else next(norms).float() for each in gradients])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
