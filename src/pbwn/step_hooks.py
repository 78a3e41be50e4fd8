"""Being told of an optimizer's steps: each real step once, whatever the optimizer does inside."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class StepHooks:
    """Calls `on_gradient` when the gradient of a step is complete, and `on_step` after each real step.

    With a closure the gradient appears inside the step, so the closure is wrapped. A step that an optimizer takes by
    calling its parent's step fires torch's hooks twice: only the outermost counts. A step that a gradient scaler
    skipped inside a fused optimizer does not count, nor one that torch takes to make an optimizer's state.
    """

    def __init__(
        self, optimizer: Optimizer, on_step: Callable[[], None], on_gradient: Callable[[], None] | None, exact: bool
    ) -> None:
        """`exact`: ask whether a step was skipped even where that waits for the device, so that it is not counted."""
        self._optimizer = weakref.ref(optimizer)  # its hooks hold this object, which must hold neither in turn
        self._on_step = on_step
        # A compiled step must not trace into the hooks. (torch's compiler is loaded already: making an optimizer does.)
        self._on_gradient = None if on_gradient is None else torch.compiler.disable(on_gradient)
        self._exact = exact
        self._depth = 0
        self._handles: tuple[RemovableHandle, RemovableHandle] = (
            optimizer.register_step_pre_hook(torch.compiler.disable(self._before)),
            optimizer.register_step_post_hook(torch.compiler.disable(self._after)),
        )

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, while it lives."""
        return self._optimizer()

    @property
    def in_place(self) -> bool:
        """Whether the optimizer lives and still calls both hooks: copying and pickling one loses them."""
        optimizer = self.optimizer
        return (
            optimizer is not None
            and self._handles[0].id in optimizer._optimizer_step_pre_hooks
            and self._handles[1].id in optimizer._optimizer_step_post_hooks
        )

    def remove(self) -> None:
        """Take the hooks off the optimizer."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._depth > 0 and not _is_inside_step(optimizer):
            self._depth = 0  # the last step raised
        self._depth += 1
        if self._on_gradient is None:
            return None
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._wrapped(kwargs["closure"])}
        for position, argument in enumerate(args[1:], start=1):  # the optimizer itself comes first
            if callable(argument):
                return (*args[:position], self._wrapped(argument), *args[position + 1 :]), kwargs
        if self._depth == 1:
            self._on_gradient()
        return None

    def _wrapped(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure completes the gradient, once; other projections may have wrapped it too."""
        assert self._on_gradient is not None
        inner = closure
        while isinstance(inner, _Closure):
            if inner.on_gradient is self._on_gradient:
                return closure
            inner = inner.closure
        return _Closure(closure, self._on_gradient)

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth -= 1
        if self._depth > 0 and _is_inside_step(optimizer):  # if not, a step inside this one raised
            return
        self._depth = 0
        if not self._was_skipped(optimizer) and not _is_setting_up():
            self._on_step()

    def _was_skipped(self, optimizer: Optimizer) -> bool:
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is None or not (self._exact or found_inf.device.type == "cpu"):
            return False
        return bool(found_inf)


class _Closure:
    """A closure that completes the gradient after each of its evaluations."""

    def __init__(self, closure: Callable[[], Any], on_gradient: Callable[[], None]) -> None:
        self.closure = closure
        self.on_gradient = on_gradient

    def __call__(self) -> Any:
        loss = self.closure()
        self.on_gradient()
        return loss


def _is_inside_step(optimizer: Optimizer) -> bool:
    """Whether the step that has called the hook is itself called by a step of the same optimizer.

    That is seen on the stack, and no frame is kept: one would keep alive whatever its callers hold.
    """
    callers = islice(_steps_on_the_stack(), 1, None)
    return any(frame.f_locals.get("self") is optimizer for frame in callers)


def _is_setting_up() -> bool:
    """Whether the step is one of torch's own, with gradients and rates of zero.

    `torch.distributed.checkpoint.state_dict` takes it to make the state of an optimizer that has none yet, before it
    reads or writes a checkpoint.
    """
    module = sys.modules.get("torch.distributed.checkpoint.state_dict")
    maker = getattr(module, "_init_optim_state", None)
    if maker is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not maker.__code__:
        frame = frame.f_back
    return frame is not None


def _steps_on_the_stack() -> Iterator[FrameType]:
    """The calls of what torch wraps around each optimizer's step, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == Optimizer.__module__:
            yield frame
        frame = frame.f_back
