"""Being told of an optimizer's steps: each real step once, whatever the optimizer does inside."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class StepHooks:
    """Calls `on_gradient` when the gradient of a step is complete, and `on_step` after each real step.

    With a closure the gradient appears inside the step, so the closure is wrapped. A step that an optimizer takes by
    calling its parent's step fires torch's hooks twice: only the outermost counts. A step that a gradient scaler
    skipped inside a fused optimizer does not count.
    """

    def __init__(
        self, optimizer: Optimizer, on_step: Callable[[], None], on_gradient: Callable[[], None] | None, exact: bool
    ) -> None:
        """`exact` allows to wait for the device in order to tell skipped steps."""
        self._optimizer = weakref.ref(optimizer)  # its hooks hold this object: a strong reference would be a cycle
        self._on_step = on_step
        self._on_gradient = on_gradient
        self._exact = exact
        self._outermost: FrameType | None = None
        self._depth = 0
        # A compiled step must not trace into the hooks. (torch's compiler is loaded already: making an optimizer does.)
        self._hooks = torch.compiler.disable(self._before), torch.compiler.disable(self._after)
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._hooks[0]),
            optimizer.register_step_post_hook(self._hooks[1]),
        ]

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
            and self._hooks[0] in optimizer._optimizer_step_pre_hooks.values()
            and self._hooks[1] in optimizer._optimizer_step_post_hooks.values()
        )

    def remove(self) -> None:
        """Take the hooks off the optimizer."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A step that raised has left its frame here; it is no longer on the stack.
        if self._outermost is None or not _is_running(self._outermost):
            self._outermost, self._depth = _calling_step(), 0
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

    def _wrapped(self, closure: Callable[[], Any]) -> _Closure:
        assert self._on_gradient is not None
        return closure if isinstance(closure, _Closure) else _Closure(closure, self._on_gradient)

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth -= 1
        if self._depth > 0 and _calling_step() is not self._outermost:
            return
        self._outermost, self._depth = None, 0
        if not self._was_skipped(optimizer):
            self._on_step()

    def _was_skipped(self, optimizer: Optimizer) -> bool:
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is None or not (self._exact or found_inf.device.type == "cpu"):
            return False
        return bool(found_inf)


class _Closure:
    """A closure that completes the gradient after each of its evaluations."""

    def __init__(self, closure: Callable[[], Any], on_gradient: Callable[[], None]) -> None:
        self._closure = closure
        self._on_gradient = on_gradient

    def __call__(self) -> Any:
        loss = self._closure()
        self._on_gradient()
        return loss


def _calling_step() -> FrameType | None:
    """The call of an optimizer's step that has called the hook."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller.f_globals.get("__name__") != Optimizer.__module__:
        caller = caller.f_back
    return caller


def _is_running(frame: FrameType) -> bool:
    """Whether a call is still on the stack of this thread."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None:
        if caller is frame:
            return True
        caller = caller.f_back
    return False
