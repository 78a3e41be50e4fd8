"""Hooks around an optimizer's steps: each real step counts once, whatever the optimizer calls or is wrapped in."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

_ZERO_PARTITIONS = ("single_partition_of_fp32_groups", "fp32_groups_flat_partition")  # of DeepSpeed's stages
_FRAMEWORKS = ("accelerate", "deepspeed", "lightning", "lightning_fabric", "pytorch_lightning")
# The advice where nothing calls step hooks after the weights have moved.
_STAND_IN = (
    "attach to a stand-in that moves nothing, stand_in = torch.optim.SGD(model.parameters(), lr=0), and call "
    "stand_in.step() after each {}"
)


class StepHooks:
    """Call `on_begin` before each step, `on_gradient` when its gradient is complete, `on_step` after each real step.

    With a closure the gradient appears inside the step, so the closure is wrapped. A step that an optimizer takes by
    calling its parent's step fires torch's hooks twice: only the outermost counts. A step that a gradient scaler
    skipped inside a fused optimizer does not count, nor one that torch takes to create an optimizer's state.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        on_begin: Callable[[], bool],
        on_gradient: Callable[[], None],
        on_step: Callable[[], None],
        exact: bool,
    ) -> None:
        """Register the hooks.

        Args:
            optimizer: the optimizer.
            on_begin: called before each step; returns whether `on_gradient` is to be called in it.
            on_gradient: called when the gradient is complete.
            on_step: called after each real step.
            exact: whether to check for skipped steps even where that waits for the device.
        """
        self._optimizer = weakref.ref(optimizer)  # its hooks hold this object, so this reference is weak
        self._on_begin = on_begin
        self._on_step = on_step
        # A compiled step must not trace into the hooks. Creating an optimizer has already loaded torch's compiler.
        self._on_gradient = torch.compiler.disable(on_gradient)
        self._sees_gradient = False
        self._exact = exact
        self._depth = 0
        self._handles: tuple[RemovableHandle, RemovableHandle] = (
            optimizer.register_step_pre_hook(torch.compiler.disable(self._before)),
            optimizer.register_step_post_hook(torch.compiler.disable(self._after)),
        )

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, while it is alive."""
        return self._optimizer()

    @property
    def in_place(self) -> bool:
        """Whether the optimizer is alive and still calls both hooks: copying or pickling it loses them."""
        return self.optimizer is not None and all(
            handle.id in (handle.hooks_dict_ref() or ()) for handle in self._handles
        )

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._depth > 0 and not _is_inside_step(optimizer):
            self._depth = 0  # the last step raised
        self._depth += 1
        if self._depth == 1:
            self._sees_gradient = not _is_setting_up() and self._on_begin()
        if not self._sees_gradient:
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
        """Wrap a closure, once, so that it completes the gradient; other projections may have wrapped it too."""
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
    """Whether the step that called the hook was itself called by a step of the same optimizer.

    This is read from the stack, and no frame is kept: it would keep alive whatever its callers hold.
    """
    callers = islice(_steps_on_the_stack(), 1, None)
    return any(frame.f_locals.get("self") is optimizer for frame in callers)


def _is_setting_up() -> bool:
    """Whether the step is one that torch takes itself, with gradients and rates of zero.

    `torch.distributed.checkpoint.state_dict` takes it to create the state of an optimizer that has none yet, before it
    reads or writes a checkpoint.
    """
    module = sys.modules.get("torch.distributed.checkpoint.state_dict")
    maker = getattr(module, "_init_optim_state", None)
    if maker is None:
        return False
    return any(frame.f_code is maker.__code__ for frame in callers())


def _steps_on_the_stack() -> Iterator[FrameType]:
    """Return the frames of torch's wrapper around optimizers' steps, innermost first."""
    return (frame for frame in callers() if frame.f_globals.get("__name__") == Optimizer.__module__)


def callers() -> Iterator[FrameType]:
    """Yield the frames on the stack, innermost first. Keeping a frame keeps alive what it holds."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def hookable(optimizer: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    """Return the optimizers as a list, without wrappers that have no step hooks of their own."""
    if isinstance(optimizer, nn.Module):
        raise TypeError(f"the model comes first, then the optimizer; got {type(optimizer).__name__} in its place")
    if isinstance(optimizer, Mapping):
        raise TypeError("several optimizers must be passed as a list: write list(optimizers.values())")
    if isinstance(optimizer, Iterable) and not hasattr(optimizer, "param_groups") and not isinstance(optimizer, str):
        found = [_unwrapped(each) for each in optimizer]
    else:
        found = [_unwrapped(optimizer)]
    if not found:
        raise ValueError("attach needs an optimizer; got an empty list")
    if len(set(map(id, found))) < len(found):
        raise ValueError("an optimizer was passed twice: pass each once")
    return found


def _unwrapped(optimizer: Any) -> Optimizer:
    """Return the torch optimizer inside: frameworks' wrappers keep it in an attribute `optimizer`."""
    if not hasattr(optimizer, "param_groups") and not hasattr(optimizer, "optimizer"):
        got = "a parameter" if isinstance(optimizer, Tensor) else repr(optimizer)
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, or a list of them; got {got}")
    inner, seen = optimizer, []
    _refuse_by_kind(optimizer)
    while not _fires_hooks(inner):
        if any(hasattr(inner, name) for name in _ZERO_PARTITIONS):
            raise TypeError(
                f"{type(inner).__name__} moves flat partitions of the weights, which have no rows, and copies them "
                "back after its step: use torch.distributed.fsdp.fully_shard (FSDP2) instead of DeepSpeed ZeRO"
            )
        seen.append(inner)
        inner = getattr(inner, "optimizer", None)
        if not _is_transparent(seen[-1], inner):
            raise TypeError(
                f"{type(seen[-1]).__name__} never calls step hooks, so nothing would be projected, or too early: "
                "attach to the optimizer inside with every=None, and call projection.project() after each step. "
                "every=None can be left out only if nothing moves the weights after that optimizer's step. A second "
                "set of weights, as Lookahead keeps, is never projected"
            )
        if inner is None or any(inner is other for other in seen):
            raise TypeError(f"{type(optimizer).__name__} has no step hooks: pass the torch.optim.Optimizer inside")
    return cast(Optimizer, inner)


def _refuse_by_kind(optimizer: Any) -> None:
    """Refuse optimizers whose steps cannot be followed, though some of them have step hooks."""
    kind = type(optimizer).__name__
    if callable(getattr(optimizer, "fused_backward", None)):
        raise TypeError(
            f"{kind} moves the weights inside the backward pass and takes no step after which they could be projected: "
            + _STAND_IN.format("fused_backward(...)")
        )
    if callable(getattr(optimizer, "second_step", None)):
        if hasattr(optimizer, "base_optimizer"):
            raise TypeError(
                f"{kind} takes its real step with the optimizer inside: attach to that one, "
                "pbwn.attach(model, optimizer.base_optimizer)"
            )
        raise TypeError(f"{kind} takes its real step in second_step(): " + _STAND_IN.format("second_step()"))
    if "ScheduleFree" in kind and hasattr(optimizer, "base"):
        raise TypeError(
            f"{kind} trains an average of two iterates, and switches the weights between them after each step of the "
            "optimizer inside: projecting one leaves the other unprojected. Train with the optimizer inside alone"
        )


def _fires_hooks(optimizer: object) -> bool:
    """Whether an optimizer has hooks, and a step that `Optimizer.__init__` has made to call them."""
    if _own_hooks(optimizer) is None:
        return False
    if any(getattr(vars(kind).get("step"), "hooked", False) for kind in type(optimizer).__mro__):
        return True
    # The class's step was replaced after construction, and `Optimizer.__init__` still ran. Wrappers such as Fabric's
    # copy the attributes of the optimizer inside, and this mark with them: hence the second test.
    return "_zero_grad_profile_name" in vars(optimizer) and not hasattr(optimizer, "optimizer")


def _is_transparent(wrapper: object, inner: object) -> bool:
    """Whether the last thing that moves weights in a wrapper's step is the step of the optimizer inside.

    That is assumed of frameworks' wrappers and of those that share the hooks of the optimizer inside; an optimizer of
    its own, such as Lookahead, moves the weights once more.
    """
    if _own_hooks(wrapper) is not None:
        return _own_hooks(wrapper) is _own_hooks(inner)
    return not isinstance(wrapper, Optimizer) or type(wrapper).__module__.partition(".")[0] in _FRAMEWORKS


def _own_hooks(optimizer: Any) -> Any:
    """Return the hooks that an optimizer itself holds, found by adding one: a wrapper may forward its attributes."""
    try:
        handle = Optimizer.register_step_post_hook(optimizer, lambda *_: None)
    except AttributeError:
        return None
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return hooks if any(value is hooks for value in getattr(optimizer, "__dict__", {}).values()) else None
