"""Losses since the last line of metrics, and the first value that was not finite, kept where they are computed.

Reading a value makes the host wait for a GPU. So all of this is computed on the device in each step, and read where a
line is logged, a model evaluated or a checkpoint saved: nothing that is not finite gets into any of these.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class NonFiniteError(Exception):
    """The loss, a gradient or the final evaluation is NaN or infinite, at a step counted from 1."""

    def __init__(self, message: str, step: int) -> None:
        """Say what and where."""
        super().__init__(message)
        self.step = step


class LossWatch:
    """Adds up finite losses in float64, counts the others, and remembers the first step that was not finite."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        """Nothing was seen yet."""
        self._names = [name for name, _ in model.named_parameters()]
        self._parameters = [parameter for _, parameter in model.named_parameters()]
        self._device = device
        self.reset()

    def reset(self, loss_sum: float = 0.0, losses_lost: int = 0) -> None:
        """Start from these, as a line or a checkpoint does."""
        self._sums = torch.tensor([loss_sum, losses_lost], dtype=torch.float64, device=self._device)
        self._bad_step = torch.zeros((), dtype=torch.float64, device=self._device)  # counted from 1
        self._bad_loss = torch.zeros((), dtype=torch.float64, device=self._device)
        self._bad_norms = torch.zeros(len(self._names), device=self._device)

    @torch.no_grad()
    def add(self, step: int, own: Tensor, mean: Tensor, *, gradients: bool) -> None:
        """Note a step, counted from 1: the loss of this process, and the mean over all of them.

        Without gradients the loss alone is looked at: those that overflow are the business of a gradient scaler.
        """
        is_finite = mean.isfinite()
        self._sums += torch.stack([torch.where(is_finite, mean.double(), 0.0), (~is_finite).double()])
        norms = self._norms() if gradients else torch.zeros_like(self._bad_norms)
        # Every gradient may be finite where only their sum is not.
        is_first = (self._bad_step == 0) & ~(own.isfinite() & norms.isfinite().all())
        self._bad_step = torch.where(is_first, float(step), self._bad_step)
        self._bad_loss = torch.where(is_first, own.double(), self._bad_loss)
        self._bad_norms = torch.where(is_first, norms, self._bad_norms)

    def read(self) -> tuple[float, int]:
        """The sum of finite losses, and the number of the others. Waits for the device."""
        loss_sum, lost = self._sums.tolist()
        return loss_sum, int(lost)

    def problem(self) -> tuple[int, str] | None:
        """The first step that was not finite, and what was: the loss, the first layers. Waits for the device."""
        step, loss = torch.stack([self._bad_step, self._bad_loss]).tolist()
        if not step:
            return None
        norms = self._bad_norms.tolist()
        layers = [name for name, norm in zip(self._names, norms, strict=True) if not math.isfinite(norm)]
        more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""
        found = [] if math.isfinite(loss) else [f"the loss is {loss}"]
        if layers:
            found.append(f"the gradient of {', '.join(layers[:3])}{more} is not finite")
        return int(step), ", ".join(found)

    def forget_problem(self) -> None:
        """Look for the next one."""
        self._bad_step = torch.zeros_like(self._bad_step)

    def _norms(self) -> Tensor:
        """The norm of each parameter's gradient, 0 where there is none; of sharded ones, of this process's part."""
        gradients = [parameter.grad for parameter in self._parameters]
        found = iter(torch._foreach_norm([_local(each) for each in gradients if each is not None]))
        none = self._bad_norms.new_zeros(())
        return torch.stack([none if each is None else next(found).float() for each in gradients])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
