"""Algorithm 1 of the paper on any torch optimizer: attach() and NormProjection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from html import escape
from numbers import Integral
from threading import RLock
from typing import Any, Literal
from weakref import WeakMethod, WeakSet, ref

from torch import Tensor, nn
from torch.optim import Optimizer

from pbwn import state as states
from pbwn.axes import Axes
from pbwn.batch_statistics import BatchStatistics
from pbwn.certificate import Certificate, certify
from pbwn.constraint import Constraint, MaxNorm, UnitNorm
from pbwn.driver import Driver, moved_by, nothing
from pbwn.functional import wide_dtype
from pbwn.masters import has_second_iterate
from pbwn.monitor import Monitor, StepMeasurement
from pbwn.optimizer_hooks import StepHooks, hookable
from pbwn.paths import batch as paths
from pbwn.paths import dtensor
from pbwn.paths.batch import Backend, Batch
from pbwn.radii import chosen_radii, keeps_initial_norms, measure_radii, schedules
from pbwn.selection import ConstrainedWeight, Selection, chosen, held_by, unconstrained
from pbwn.selection.names import check_word, named_parameters
from pbwn.selection.rules import OUTPUT_LAYER
from pbwn.selection.table import plural, wrapped
from pbwn.warning import warn

_UNIT = UnitNorm()
_attached: WeakSet[NormProjection] = WeakSet()
_attaching = RLock()  # guards that set
_LARGEST_CHANGE = 0.01  # of the initial norms between attach and the first step, relative to themselves


def attach(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer],
    *,
    every: int | None = 1,
    gradient: Literal["ordinary", "riemannian"] = "ordinary",
    step: Literal["plain", "tangent", "angle"] = "plain",
    constraint: Constraint = _UNIT,
    only: Sequence[str] = (),
    also: Sequence[str] = (),
    skip: Sequence[str] = (),
    axes: Mapping[str, Axes | tuple[int, ...]] | None = None,
    output_layer: str | Sequence[str] | None = "auto",
    direction: Literal["incoming", "outgoing"] = "incoming",
    per: Literal["neuron", "matrix"] = "neuron",
    selection: Selection | None = None,
    initial: bool | Literal["fold"] = True,
    follow: Any = "auto",
    state: Mapping[str, Any] | None = None,
    strict: bool = False,
    backend: Backend = "auto",
) -> NormProjection:
    """Keep the weights of every neuron on the unit sphere while the optimizer trains the model (Algorithm 1).

    After each real step of an optimizer its weights are projected: `w / |w|`, equation (10). Several optimizers
    each drive the weights that they hold.

    Args:
        model: any module, wrapped or not; its weights keep their names, storage, strides and dtype.
        optimizer: the optimizer that trains it, or several; weights that none of them holds are left alone.
        every: the number of steps between projections (the paper's interval T); None: only in `projection.project()`.
        gradient: "riemannian" makes gradients tangent to the spheres before each step, equation (7).
        step: how the optimizer's update is applied: "plain" leaves it as it is, "tangent" removes its part along each
            neuron's weights, "angle" takes only its direction and turns each neuron by about the learning rate, in
            radians. The last two keep a copy of the constrained weights.
        constraint: `UnitNorm()`, `UnitNorm(radius="initial")` for a pretrained model, or `MaxNorm(limit)`. With
            `UnitNorm`, rows that are zero at attach stay free. A radius that is a function of the step must be passed
            again when resuming; the step count comes from the state.
        only: patterns of weights: constrain only these.
        also: patterns of weights to constrain that would be left alone, such as embeddings.
        skip: patterns of weights to leave alone. All patterns match the names of parameters and of modules.
        axes: neuron axes of weights in custom layers, by pattern of their name.
        output_layer: "auto" finds it and leaves it alone, None constrains it too, names of modules choose others.
        direction: "incoming" weights of each neuron, or "outgoing" ones.
        per: one norm for each "neuron", or one for each whole "matrix": stacked experts are a matrix each, and so are
            the matrices that attention and recurrent layers pack into one weight.
        selection: what `pbwn.select(model, ...)` returned; it replaces `strict` and the arguments from `only` to `per`.
        initial: project once at attach, which rescales the weights; rows on the sphere stay unchanged bit for bit.
            "fold" keeps the model's function: the batch normalisation or the gain right after a weight absorbs its
            neurons' norms. It needs `follow=` with example inputs, and raises an error where nothing can absorb them.
        follow: whether the running statistics of a batch normalisation right after a weight are rescaled with it, so
            that evaluation does not change: "auto" does so in calls of `project()` and at intervals of at least
            5 / momentum steps, never at `every=1`; None never does. Which layer feeds which is observed in the first
            forward passes; with example inputs (a tuple if the model takes several) it is observed at attach, so
            that the statistics follow the initial projection too.
        state: a saved `projection.state_dict()`: resume from there, without an initial projection. Load the model's and
            the optimizer's state first.
        strict: raise an error, rather than warn, for a weight with unknown neuron axes.
        backend: how weights are projected: "numba" (compiled, on the CPU), "torch", "compile" (by torch's compiler), or
            "auto": numba where it is installed and supports the weight, else torch.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> projection = attach(model, optimizer)
    >>> projection.check().ok
    True
    """
    _check_settings(every, gradient, step, constraint, initial, follow, backend)
    optimizers = hookable(optimizer)
    selection = chosen(
        model,
        selection,
        optimizer=optimizers,
        zero=state.get("zero", ()) if isinstance(state, Mapping) else (),
        zero_too=isinstance(constraint, MaxNorm),
        only=only,
        also=also,
        skip=skip,
        axes=axes,
        output_layer=output_layer,
        direction=direction,
        per=per,
        strict=strict,
    )
    if not selection.constrained:
        cause = _why_empty(model, selection, held_by(optimizers))
        raise ValueError(f"nothing to constrain: {cause}.\n\n{selection.text(max_rows=20)}")
    _refuse_attached(selection.constrained)
    paths.paths(selection.constrained, backend)  # raises here rather than in the first step
    attached = NormProjection(
        model,
        selection,
        constraint,
        every=None if every is None else int(every),
        gradient=gradient,
        step=step,
        optimizers=optimizers,
        backend=backend,
        follow=follow is not None,
    )
    attached._start(optimizers, state, project=initial, example=None if isinstance(follow, str) else follow)
    return attached


def project_(
    model: nn.Module,
    *,
    constraint: Constraint = _UNIT,
    only: Sequence[str] = (),
    also: Sequence[str] = (),
    skip: Sequence[str] = (),
    axes: Mapping[str, Axes | tuple[int, ...]] | None = None,
    output_layer: str | Sequence[str] | None = "auto",
    direction: Literal["incoming", "outgoing"] = "incoming",
    per: Literal["neuron", "matrix"] = "neuron",
    selection: Selection | None = None,
    strict: bool = False,
) -> Selection:
    """Project a model's weights once, in place, frozen ones included, and return the selection that was projected.

    For a copy of a model that trains with the constraint, such as an average of its weights, use
    `projection.project(copy)`: it knows which weights were constrained, and their radii.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> len(project_(model).constrained), model[0].weight.norm(dim=1).allclose(torch.ones(8))
    (1, True)
    """
    _check_constraint(constraint)
    if constraint == UnitNorm(radius="initial"):
        raise ValueError('radius="initial" would change nothing here: use projection.project(copy), or a number')
    if isinstance(constraint, UnitNorm) and constraint.is_scheduled:
        raise ValueError(f"{constraint} depends on the step, and there is none here: use a number")
    selection = chosen(
        model,
        selection,
        only=only,
        also=also,
        skip=skip,
        axes=axes,
        output_layer=output_layer,
        direction=direction,
        per=per,
        strict=strict,
        frozen="constrain",
        zero_too=isinstance(constraint, MaxNorm),
    )
    if not selection.constrained:
        cause = _why_empty(model, selection)
        raise ValueError(f"nothing to project: {cause}.\n\n{selection.text(max_rows=20)}")
    paths.refuse_mismatches(constraint, selection.constrained, chosen_radii(constraint, selection.constrained))
    stored = {weight.name: weight.tensor for weight in selection.constrained}
    radii = measure_radii(constraint, selection.constrained, stored)
    batch = Batch(selection.constrained, constraint, radii, backend="torch")  # not worth compiling for one call
    batch.project_(synchronize=True)
    return selection


class NormProjection:
    """A model whose weights are kept on their constraint: what `attach` returns.

    Printing it shows what is constrained, over which axes, what is not, and why.
    """

    def __init__(
        self,
        model: nn.Module,
        selection: Selection,
        constraint: Constraint,
        *,
        every: int | None,
        gradient: Literal["ordinary", "riemannian"],
        step: Literal["plain", "tangent", "angle"],
        optimizers: Sequence[Optimizer],
        backend: Backend,
        follow: bool,
    ) -> None:
        """Use `attach`, which checks its arguments."""
        self._model = model
        self._selection = selection
        self._constraint = constraint
        self._every = every
        self._gradient = gradient
        self._step = step
        self._backend: Backend = backend
        self._radii: dict[str, float | Tensor] = {}  # those of scheduled weights before their factors
        self._factors: dict[str, float] = {}  # of scheduled weights, at the last projection of each
        self._monitor: Monitor | None = None
        self._statistics = BatchStatistics(model, selection.constrained) if follow else None
        self._fsdp = dtensor.FsdpModules(model)
        shares = [moved_by(optimizer, selection.constrained) for optimizer in optimizers]
        self._drivers = [Driver(weights, schedules(constraint, weights)) for weights in shares]

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self._model

    @property
    def selection(self) -> Selection:
        """Which weights are constrained, which are not, and why."""
        return self._selection

    @property
    def constraint(self) -> Constraint:
        """The constraint that they are kept on."""
        return self._constraint

    @property
    def every(self) -> int | None:
        """The number of steps between projections; None if only calls of `project()` project."""
        return self._every

    @property
    def gradient(self) -> Literal["ordinary", "riemannian"]:
        """Which gradient the optimizer sees."""
        return self._gradient

    @property
    def step(self) -> Literal["plain", "tangent", "angle"]:
        """How the optimizer's updates are applied."""
        return self._step

    @property
    def backend(self) -> Backend:
        """How weights are projected, as requested."""
        return self._backend

    @property
    def _is_hooked(self) -> bool:
        """Whether every optimizer calls the hooks."""
        return all(driver.is_hooked for driver in self._drivers)

    def project(self, model: nn.Module | None = None) -> None:
        """Project now; given a copy of the model, such as an average of its weights, project the copy instead.

        Where weights are sharded, every process has to call this.
        """
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"project() takes a copy of the model, or nothing; got {type(model).__name__}")
        dtensor.reshard(self._model)
        if model is not None and model is not self._model:
            dtensor.reshard(model)
            copies, radii = self._selection.counterparts(model), self._current_radii()
            whole = self._gathered(radii)
            for copy in copies:
                if copy.name in whole:
                    radii[copy.name] = dtensor.scatter(whole[copy.name], copy.tensor, copy.axes)
            # A compiled path was chosen for the model; it may not support the dtypes and the device of a copy.
            backend: Backend = "torch" if self._backend == "torch" else "auto"
            with self._following(model):
                Batch(copies, self._constraint, radii, backend=backend).project_(synchronize=True)
            return
        for driver in self._drivers:
            self._ensure_started(driver)
        before = None if self._monitor is None else self._monitor.loss_of(self._model)
        if before is not None:
            dtensor.reshard(self._model)
        with self._following():
            for driver in self._drivers:
                self._batch_at(driver, driver.steps).project_(synchronize=True)
                driver.projected = True
                driver.forget_curvature()
        if self._monitor is not None and before is not None:
            self._monitor.add_losses(self._drivers[0].steps, before, self._monitor.loss_of(self._model))

    def _following(self, copy: nn.Module | None = None, *, every: int | None = None) -> AbstractContextManager[None]:
        """Return a context in which running statistics follow a projection, where requested and meaningful."""
        if self._statistics is None or self._every == 1:  # the statistics are gathered on the sphere
            return nullcontext()
        is_first = every is not None and self._statistics.is_watching
        if (every is None or is_first) and self._statistics.is_unobserved:
            if self._statistics.can_follow(every):
                which = "this projection" if every is None else "the projections"
                warn(
                    f"the running statistics of batch normalisation were not rescaled with {which}: no forward pass "
                    "has shown yet which weights they belong to, and those of compiled code never do. Pass follow= "
                    "with example inputs to attach, recompute them afterwards (torch.optim.swa_utils.update_bn), or "
                    "pass follow=None to keep them as they are"
                )
            if is_first:
                self._statistics.ignore()
        return self._statistics.following(copy, every=every)

    def monitor(
        self,
        every: int = 50,
        *,
        loss: Callable[[], Any] | None = None,
        writer: Any = None,
        on_record: Callable[[list[dict[str, Any]]], None] | None = None,
    ) -> Monitor:
        """Record, every `every` steps, how each weight changes, until `stop()` of the returned monitor is called.

        A record holds the norms before the projection, the shares of gradient and update along the weights, the angle
        turned and the effective learning rate: see `Monitor`. Training is the same bit for bit. Other steps cost
        nothing; a recorded one keeps a copy of the constrained weights. Where weights are sharded, every process has to
        call this. It is not part of the state: call it again after resuming; the step count, that of `state_dict()`,
        continues.

        Args:
            every: the number of real steps of each optimizer between records.
            loss: a function without arguments that returns the loss on some batch. It is called without gradients
                before and after each projection of a recorded step and each call of `project()`; modes, buffers and
                random states are restored.
            writer: a TensorBoard `SummaryWriter`, to which each record is added.
            on_record: called with each record, a list of dictionaries, one for each weight.
        """
        if self._monitor is not None:
            raise RuntimeError("the projection already has a monitor: call its stop() first")
        if not self._is_hooked:
            raise RuntimeError(
                "the projection is detached from its optimizer and sees no steps: call rebind(optimizer) first"
            )
        self._monitor = Monitor(
            every=every, loss=loss, writer=writer, on_record=on_record, stop=WeakMethod(self._stop_monitor)
        )
        return self._monitor

    def _stop_monitor(self) -> None:
        self._monitor = None
        for driver in self._drivers:
            driver.measurement = None

    def check(self) -> Certificate:
        """Measure every constrained weight, and check whether the hooks are in place.

        Where weights are sharded, every process has to call this.
        """
        dtensor.reshard(self._model)
        weights = [weight for weight in self._selection.constrained if weight.parameter_or_none is not None]
        paths.refuse_mismatches(self._constraint, weights, self._radii)
        paths.refuse_radii(weights, self._radii)
        unprojected = [driver for driver in self._drivers if not driver.projected]
        in_model = set(map(id, self._model.parameters()))
        reports = certify(
            weights,
            self._constraint,
            self._current_radii(),
            self._stored(weights),
            between_projections={weight.name for driver in unprojected for weight in driver.weights},
            not_held={weight.name for driver in self._drivers for weight in driver.not_held()},
            removed={weight.name for weight in weights if id(weight.tensor) not in in_model},
        )
        optimizers = [optimizer for driver in self._drivers if (optimizer := driver.optimizer) is not None]
        stalled = [name for driver in self._drivers for name in driver.stalled()] if self._step != "plain" else []
        return Certificate(
            reports,
            hooks_in_place=self._is_hooked,
            gone=tuple(weight.name for weight in self._selection.constrained if weight.parameter_or_none is None),
            unconstrained=self._unconstrained(),
            stalled=tuple(stalled),
            second_iterates=tuple(type(each).__name__ for each in optimizers if has_second_iterate(each)),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: step counts, settings and per-neuron radii.

        Plain values and tensors, safe to load with `torch.load(..., weights_only=True)`. Where weights are sharded,
        every process has to call this. With `every=1` off the CPU, the count includes steps that a GradScaler skipped
        inside a fused optimizer: detecting those would wait for the device, and nothing depends on them.
        """
        dtensor.reshard(self._model)
        return self._state(self._gathered(self._radii)).as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state. Weights are not touched: a resumed run equals an uninterrupted one."""
        dtensor.reshard(self._model)
        weights, saved = self._selection.constrained, states.read(state)
        states.check(saved, self._state({}), weights)
        self._radii = dict(chosen_radii(self._constraint, weights, measured=saved.radii))
        for weight in weights:
            if weight.name in saved.radii:
                radii = saved.radii[weight.name].to(weight.tensor.device, wide_dtype(weight.tensor))
                self._radii[weight.name] = dtensor.scatter(radii, weight.tensor, weight.axes)
        if self._statistics is not None:
            self._statistics.load(saved.follow)
            if self._every != 1 and any(driver.is_hooked for driver in self._drivers):
                self._statistics.watch()
        last = saved.radius_steps or saved.steps
        for driver, steps, projected, at in zip(self._drivers, saved.steps, saved.projected, last, strict=True):
            driver.steps, driver.projected, driver.radius_step, driver.batch = steps, projected, at, None
            names = {weight.name for weight in driver.weights}
            driver.masters = {name: key for name, key in saved.masters.items() if name in names}
            driver.unsearched, driver.undecided, driver.has_started = None, (), steps > 0
        self._find_factors()

    def rebind(self, optimizer: Optimizer | Iterable[Optimizer]) -> None:
        """Register the hooks on these optimizers: copying or pickling an optimizer loses them.

        The optimizers replace the previous ones, in the same order, and must hold the same weights.
        """
        optimizers = hookable(optimizer)
        _refuse_attached(self._selection.constrained, ignoring=self)
        if len(optimizers) != len(self._drivers):
            attached = plural(len(self._drivers), "optimizer")
            raise ValueError(f"the projection was attached to {attached}; got {len(optimizers)}")
        for driver, new in zip(self._drivers, optimizers, strict=True):
            held = held_by([new])
            for weight in driver.weights:
                if id(weight.tensor) not in held:
                    raise ValueError(
                        f"this {type(new).__name__} does not hold the model's weight {weight.name!r}, which is "
                        "constrained: give it to the optimizer, or call detach() and attach again"
                    )
            if self._step == "angle" and driver.optimizer_ref() is not new:
                driver.check_angle(new)
        self.detach()
        self._fsdp.find()
        for driver, new in zip(self._drivers, optimizers, strict=True):
            hooks = StepHooks(
                new,
                on_begin=partial(self._before_step, driver),
                on_gradient=partial(self._on_gradient, driver),
                on_step=partial(self._after_step, driver),
                exact=bool(driver.schedules) or (self._every is not None and self._every > 1),
            )
            if driver.optimizer_ref() is not new:
                driver.keep_masters_of(new)
            driver.hooks, driver.optimizer_ref = ref(hooks), ref(new)
            driver.unsearched, driver.undecided = None, ()
        if self._statistics is not None and self._every != 1:
            self._statistics.watch()
        with _attaching:
            _attached.add(self)

    def detach(self) -> None:
        """Remove the hooks from the optimizers: steps no longer project. The weights stay as they are.

        This also drops the views of the weights' memory that are kept between steps: to move a model off a device
        between two steps, and free its memory there, call this before and `rebind(optimizer)` after.
        """
        for driver in self._drivers:
            hooks = driver.hooks()
            if hooks is not None:
                hooks.remove()
            driver.hooks, driver.batch, driver.before, driver.measurement = nothing, None, None, None
        if self._statistics is not None:
            self._statistics.ignore()
        with _attaching:
            _attached.discard(self)

    def __str__(self) -> str:
        weights = [weight for weight in self._selection.constrained if weight.parameter_or_none is not None]
        used = paths.summary(paths.paths(weights, self._backend)) if weights else "none"
        table = None if self._statistics is None or self._every == 1 else self._statistics.table(self._every)
        statistics = f"\n\n{table.text()}" if table is not None and table.rows else ""
        return f"{wrapped(f'{self._settings()}, backend {used}')}\n{self._selection}{statistics}"

    def __repr__(self) -> str:
        return f"<NormProjection: {plural(len(self._selection.constrained), 'weight')}, {self._settings()}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._settings())}</p>{self._selection._repr_html_()}"

    def __getstate__(self) -> dict[str, Any]:
        dropped: dict[str, Any] = {"hooks": nothing, "optimizer_ref": nothing}
        dropped |= dict.fromkeys(("batch", "before", "measurement"))
        return {**self.__dict__, "_monitor": None, "_drivers": [replace(driver, **dropped) for driver in self._drivers]}

    def _settings(self) -> str:
        special = {None: "only by project()", 1: "after every step"}
        interval = special.get(self._every, f"after every {self._every} steps")
        step = "" if self._step == "plain" else f", {self._step} step (keeps a copy of the constrained weights)"
        return f"{self._constraint}, projected {interval}, {self._gradient} gradient{step}"

    def _start(
        self,
        optimizers: Sequence[Optimizer],
        state: Mapping[str, Any] | None,
        *,
        project: bool | Literal["fold"],
        example: Any = None,
    ) -> None:
        """Start a training run, or resume one: measure the radii, and project the weights once if requested."""
        weights = self._selection.constrained
        for driver, optimizer in zip(self._drivers, optimizers, strict=True):
            driver.optimizer_ref = ref(optimizer)
            if self._step == "angle":
                driver.check_angle(optimizer)
            if self._step != "plain" and type(optimizer).__module__.startswith("torch.optim"):
                driver.refuse_half_precision(self._step)  # torch's own keep no masters: raises here, not in a step
        if state is not None:
            self.load_state_dict(state)
            paths.refuse_mismatches(self._constraint, weights, self._radii)
        for driver, optimizer in zip(self._drivers, optimizers, strict=True):
            if optimizer.state:
                driver.find_masters()
        if state is None:
            paths.refuse_mismatches(self._constraint, weights, chosen_radii(self._constraint, weights))
            self._radii = measure_radii(self._constraint, weights, self._stored(weights))
            self._find_factors()
            with self._initial_context(optimizers, project, example):
                for driver in self._drivers if project else ():
                    self._batch_at(driver, 0).project_deviating_()
                    driver.projected = True
        self.rebind(optimizers)

    def _initial_context(
        self, optimizers: Sequence[Optimizer], project: bool | Literal["fold"], example: Any
    ) -> AbstractContextManager[None]:
        """Return a context in which what follows the weights is adjusted to a projection, given example inputs."""
        if self._statistics is None or example is None:
            return nullcontext()
        self._statistics.observe(example)
        dtensor.reshard(self._model)
        if project != "fold":
            return self._statistics.following()
        if any(optimizer.state for optimizer in optimizers):
            raise ValueError('initial="fold" must come before the first step, but the optimizer has state already')
        self._statistics.refuse_unfoldable(self._constraint, self._radii)
        return self._statistics.folding(example)

    def _state(self, radii: dict[str, Tensor]) -> states.State:
        return states.State(
            constraint=states.describe(self._constraint),
            weights={weight.name: states.describe(weight.axes) for weight in self._selection.constrained},
            every=self._every,
            gradient=self._gradient,
            step=self._step,
            zero=list(self._selection.zero),
            steps=[driver.steps for driver in self._drivers],
            projected=[driver.projected for driver in self._drivers],
            radius_steps=[driver.radius_step for driver in self._drivers],
            radii=radii,
            masters={name: key for driver in self._drivers for name, key in driver.masters.items()},
            follow=None if self._statistics is None else self._statistics.state(),
        )

    def _stored(self, weights: Iterable[ConstrainedWeight]) -> dict[str, Tensor]:
        """Return the tensors that the next step starts from, by weight name."""
        masters = {name: find for driver in self._drivers for name, find in driver.master_finders().items()}
        return {weight.name: masters[weight.name]() if weight.name in masters else weight.tensor for weight in weights}

    def _unconstrained(self) -> tuple[str, ...]:
        """Return the weights that attaching would constrain by now: unfrozen, given to an optimizer, untied or new."""
        held = held_by(optimizer for driver in self._drivers if (optimizer := driver.optimizer) is not None)
        with _attaching:
            taken = {id(weight.parameter_or_none) for other in _attached for weight in other._selection.constrained}
        trained = (
            named
            for named in named_parameters(self._model)
            if named.parameter.requires_grad and id(named.parameter) in held and id(named.parameter) not in taken
        )
        return tuple(unconstrained(self._model, self._selection, trained))

    def _current_radii(self) -> dict[str, float | Tensor]:
        """Return the radii at the last projection, by weight name."""
        return {name: radii * self._factors.get(name, 1.0) for name, radii in self._radii.items()}

    def _find_factors(self) -> None:
        """Set the factors of scheduled radii to those at the last projection; the optimizer with most steps decides."""
        for driver in sorted(self._drivers, key=lambda driver: driver.radius_step):
            self._factors |= driver.radius_factors()

    def _gathered(self, radii: Mapping[str, float | Tensor]) -> dict[str, Tensor]:
        """Gather per-neuron radii over all processes, by weight name."""
        return {
            weight.name: dtensor.gather(own, weight.tensor, weight.axes).clone()
            for weight in self._selection.constrained
            if isinstance(own := radii.get(weight.name), Tensor)
        }

    def _before_step(self, driver: Driver) -> bool:
        """Keep what the end of the step needs; return whether anything needs its gradient."""
        self._ensure_started(driver)
        if self._step != "plain":
            self._fsdp.reshard()
            driver.before = self._batch(driver).snapshot()
        if self._monitor is not None:
            driver.measurement = None  # of a step that was skipped
            if self._monitor.is_due(driver.steps + 1):
                self._fsdp.reshard()
                before = [tensor.detach().clone() for tensor in self._stored(driver.weights).values()]
                driver.measurement = StepMeasurement(driver.steps + 1, driver.weights, before)
        return self._gradient == "riemannian" or driver.measurement is not None

    def _on_gradient(self, driver: Driver) -> None:
        self._fsdp.reshard()
        if driver.measurement is not None:
            driver.measurement.measure_gradients()
        if self._gradient == "riemannian":
            self._batch(driver).tangent_()

    def _after_step(self, driver: Driver) -> None:
        self._fsdp.reshard()
        driver.projected = False  # until the projection is done: what comes before it may raise
        driver.find_masters()
        driver.steps += 1
        is_due = self._every is not None and driver.steps % self._every == 0
        measurement, driver.measurement = driver.measurement, None
        try:
            loss = self._measure_updates(driver, measurement, is_due) if measurement is not None else None
        finally:  # the monitor's function may raise
            self._complete_step(driver, is_due)
        if measurement is not None and self._monitor is not None:
            measurement.measure_angles(list(self._stored(driver.weights).values()))
            rates, after = driver.rates(), self._monitor.loss_of(self._model) if loss is not None else None
            self._monitor.add(measurement, rates=rates, projected=is_due, losses=(loss, after))

    def _complete_step(self, driver: Driver, is_due: bool) -> None:
        """Apply the step rule, or project if that is due."""
        if self._step != "plain":
            before, driver.before = driver.before, None
            assert before is not None
            driver.refuse_half_precision(self._step)
            rates = driver.rates() if self._step == "angle" else None
            self._batch_at(driver, driver.steps).step_(before, rates)
        elif is_due:
            with self._following(every=self._every):
                self._batch_at(driver, driver.steps).project_()
        driver.projected = is_due
        if is_due:
            driver.forget_curvature()

    def _measure_updates(self, driver: Driver, measurement: StepMeasurement, is_due: bool) -> Tensor | None:
        """Measure the optimizer's update and, if the monitor has a loss, the loss before a projection."""
        stored = list(self._stored(driver.weights).values())
        measurement.measure_updates(stored, self._constraint, self._current_radii())
        try:
            return self._monitor.loss_of(self._model) if self._monitor is not None and is_due else None
        finally:
            self._fsdp.reshard()

    def _ensure_started(self, driver: Driver) -> None:
        """Refuse weights that were loaded after their initial norms were measured: they would be scaled back."""
        if driver.has_started:
            return
        weights = [weight for weight in driver.weights if keeps_initial_norms(self._constraint, weight)]
        if weights:
            self._fsdp.reshard()
            paths.refuse_radii(weights, self._radii)
        for weight in weights:
            norms = dtensor.row_norms(weight.tensor, weight.axes)
            radii = self._radii[weight.name]
            assert isinstance(radii, Tensor)
            deviation = self._constraint.deviations(norms, radii.to(norms.device))
            if norms.numel() and float(deviation.nan_to_num_(0).max()) > _LARGEST_CHANGE:
                raise RuntimeError(
                    f"weight {weight.name!r} was changed after attach, which measured the initial norms of its rows: "
                    "the first projection would scale it back. Load weights first, then attach; or call detach() and "
                    "attach again"
                )
        driver.has_started = True

    def _batch_at(self, driver: Driver, step: int) -> Batch:
        """Return the batch of an optimizer's weights, with their radii for this number of steps."""
        driver.radius_step = step
        batch = self._batch(driver)
        if driver.schedules:
            factors = driver.radius_factors()
            batch.scale_radii(factors)
            self._factors |= factors
        return batch

    def _batch(self, driver: Driver) -> Batch:
        if driver.batch is None:
            driver.batch = Batch(
                driver.weights,
                self._constraint,
                self._radii,
                masters=driver.master_finders(),
                backend=self._backend,
                on_change=self._fsdp.find,
            )
        return driver.batch


def _check_settings(
    every: object, gradient: str, step: str, constraint: object, initial: object, follow: object, backend: Backend
) -> None:
    """Refuse arguments of `attach` that are invalid, alone or in combination."""
    if every is not None and (isinstance(every, bool) or not isinstance(every, Integral) or every < 1):
        raise ValueError(f"every must be a positive integer, or None to project only by project(); got {every!r}")
    check_word("gradient", gradient, "ordinary", "riemannian")
    check_word("step", step, "plain", "tangent", "angle")
    check_word("backend", backend, *paths.BACKENDS)
    if step != "plain" and every != 1:
        raise ValueError(f'step="{step}" changes every update, and so projects after every step: drop every={every}')
    _check_constraint(constraint)
    if gradient == "riemannian" and isinstance(constraint, MaxNorm):
        raise ValueError('gradient="riemannian" needs a sphere: MaxNorm is a ball, use UnitNorm')
    if step != "plain" and isinstance(constraint, MaxNorm):
        raise ValueError(f'step="{step}" needs a sphere: MaxNorm is a ball, use UnitNorm')
    if not isinstance(initial, bool) and initial != "fold":
        raise ValueError(f'initial must be True, False or "fold"; got {initial!r}')
    if follow is not None and isinstance(follow, (str, bool)) and follow != "auto":
        raise ValueError(f'follow must be "auto", None, or example inputs of the model; got {follow!r}')
    if initial == "fold" and (follow is None or isinstance(follow, str)):
        raise ValueError('initial="fold" has to observe what follows each weight: pass follow= with example inputs')
    problem = paths.missing(backend)
    if problem is not None:
        raise ValueError(f'backend="{backend}": {problem}')


def _check_constraint(constraint: object) -> None:
    if not isinstance(constraint, (UnitNorm, MaxNorm)):
        raise TypeError(f"constraint must be pbwn.UnitNorm(...) or pbwn.MaxNorm(...); got {constraint!r}")


def _why_empty(model: nn.Module, selection: Selection, held: Collection[int] | None = None) -> str:
    """Explain why no weight was selected; `held` are the identities of the optimizers' parameters."""
    if held is not None and not any(id(parameter) in held for parameter in model.parameters()):
        return "the optimizer holds none of this model's parameters"
    matrices = [parameter for parameter in selection.left_alone if len(parameter.shape) > 1]
    if matrices and all(matrix.reason is OUTPUT_LAYER for matrix in matrices):
        return "the only layer is the output layer: pass output_layer=None"
    return "every parameter is left alone"


def _refuse_attached(weights: Iterable[ConstrainedWeight], ignoring: NormProjection | None = None) -> None:
    requested = {id(weight.tensor) for weight in weights}
    with _attaching:
        others = list(_attached)
    for other in others:
        if other is ignoring or not any(driver.is_hooked for driver in other._drivers):
            continue
        for weight in other._selection.constrained:
            # The other projection may be of another model, whose weight may be gone.
            if id(weight.parameter_or_none) in requested:
                raise ValueError(
                    f"weight {weight.name!r} already has a projection attached: call its detach() first (a "
                    "ProjectionCallback keeps it as callback.projection)"
                )
