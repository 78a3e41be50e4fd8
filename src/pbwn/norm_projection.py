"""Algorithm 1 of the paper on any torch optimizer: attach() and NormProjection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from threading import RLock
from typing import Any, Literal
from weakref import WeakSet, ref

from torch import Tensor, nn
from torch.optim import Optimizer

from pbwn import backends, sharded
from pbwn.axes import Axes
from pbwn.backends import Backend
from pbwn.batched import Batch, neuron_norms
from pbwn.certificate import Certificate, certify
from pbwn.constraint import Constraint, MaxNorm, UnitNorm, smallest_length
from pbwn.driver import Driver, moved_by, no_hooks
from pbwn.projection import wide_dtype
from pbwn.selection import ConstrainedWeight, Selection, chosen, held_by, unconstrained
from pbwn.selection.names import named_parameters
from pbwn.step_hooks import StepHooks
from pbwn.validation import STATE_VERSION, check_constraint, check_state, hookable, refuse_misfits, refuse_radii

_UNIT = UnitNorm()
_attached: WeakSet[NormProjection] = WeakSet()
_attaching = RLock()  # held while that set is changed or looked through


def attach(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer],
    *,
    every: int | None = 1,
    gradient: Literal["ordinary", "riemannian"] = "ordinary",
    constraint: Constraint = _UNIT,
    only: Sequence[str] = (),
    also: Sequence[str] = (),
    skip: Sequence[str] = (),
    axes: Mapping[str, Axes | tuple[int, ...]] | None = None,
    output_layer: str | Sequence[str] | None = "auto",
    direction: Literal["incoming", "outgoing"] = "incoming",
    selection: Selection | None = None,
    initial: bool = True,
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
        every: project after every so many steps (the paper's interval T); None leaves it to `projection.project()`.
        gradient: "riemannian" makes gradients tangent to the spheres before each step, equation (7).
        constraint: `UnitNorm()`, `UnitNorm(radius="initial")` for a pretrained model, or `MaxNorm(limit)`.
        only: patterns of weights: constrain nothing but these.
        also: patterns of weights to constrain that would be left alone, such as embeddings.
        skip: patterns of weights to leave alone. All patterns match the names of parameters and of modules.
        axes: neuron axes of weights in custom layers, by pattern of their name.
        output_layer: "auto" finds it and leaves it alone, None constrains it too, names of modules pick others.
        direction: "incoming" weights of each neuron, or "outgoing" ones.
        selection: what `pbwn.select(model, ...)` returned, in place of the arguments from `only` to here.
        initial: project once now, which rescales the weights at once; rows on the sphere stay bit for bit.
        state: a saved `projection.state_dict()`: go on from there, without an initial projection.
        strict: an error, rather than a line in the table, for a weight whose neuron axes are not known.
        backend: how weights are projected: "numba" (compiled, on the CPU), "torch", "triton" (one kernel on a GPU, not
            timed on one yet), or "auto": numba where it is installed and can serve the weight, else torch.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> projection = attach(model, optimizer)
    >>> projection.check().ok
    True
    """
    if every is not None and (isinstance(every, bool) or not isinstance(every, Integral) or every < 1):
        raise ValueError(f"every is a number of steps from 1 up, or None to project by hand; found {every!r}")
    if gradient not in ("ordinary", "riemannian"):
        raise ValueError(f'gradient is "ordinary" or "riemannian"; found {gradient!r}')
    check_constraint(constraint)
    if gradient == "riemannian" and isinstance(constraint, MaxNorm):
        raise ValueError('gradient="riemannian" needs a sphere: MaxNorm is a ball, use UnitNorm')
    if backend not in backends.BACKENDS:
        raise ValueError(f"backend is one of {', '.join(backends.BACKENDS)}; found {backend!r}")
    lack = backends.missing(backend)
    if lack is not None:
        raise ValueError(f'backend="{backend}": {lack}')
    optimizers = hookable(optimizer)
    selection = chosen(
        model,
        selection,
        optimizer=optimizers,
        zero=state.get("zero", ()) if isinstance(state, Mapping) else (),
        only=only,
        also=also,
        skip=skip,
        axes=axes,
        output_layer=output_layer,
        direction=direction,
        strict=strict,
    )
    if not selection.constrained:
        raise ValueError(f"nothing to constrain: every parameter is left alone.\n\n{selection.text(max_rows=20)}")
    refuse_misfits(constraint, selection.constrained)
    _refuse_attached(selection.constrained)
    backends.paths(selection.constrained, backend)  # an error now rather than in the first step
    attached = NormProjection(
        model,
        selection,
        constraint,
        every=None if every is None else int(every),
        gradient=gradient,
        optimizers=optimizers,
        backend=backend,
    )
    if state is None:
        attached._begin(project=initial)
    else:
        attached.load_state_dict(state)
    attached.rebind(optimizers)
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
    selection: Selection | None = None,
    strict: bool = False,
) -> Selection:
    """Project a model's weights once, in place, frozen ones too, and return what was projected.

    For a copy of a model that trains with the constraint, such as an average of its weights, use
    `projection.project(copy)`: it knows which weights were constrained, and their radii.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> len(project_(model).constrained), model[0].weight.norm(dim=1).allclose(torch.ones(8))
    (1, True)
    """
    check_constraint(constraint)
    if constraint == UnitNorm(radius="initial"):
        raise ValueError('radius="initial" would change nothing here: use projection.project(copy), or a number')
    selection = chosen(
        model,
        selection,
        only=only,
        also=also,
        skip=skip,
        axes=axes,
        output_layer=output_layer,
        direction=direction,
        strict=strict,
        frozen="constrain",
    )
    if not selection.constrained:
        raise ValueError(f"nothing to project: every parameter is left alone.\n\n{selection.text(max_rows=20)}")
    Batch(selection.constrained, constraint, backend="torch").project_()  # once: not worth compiling
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
        optimizers: Sequence[Optimizer],
        backend: Backend = "auto",
    ) -> None:
        """Use `attach`, which checks its arguments."""
        self.model = model
        self.selection = selection
        self.constraint = constraint
        self.every = every
        self.gradient = gradient
        self.backend: Backend = backend
        self._radii: dict[str, Tensor] = {}
        self._fsdp = sharded.FsdpModules(model)
        shares = [moved_by(optimizer, selection.constrained) for optimizer in optimizers]
        self._drivers = [Driver(share, Batch(share, constraint)) for share in shares]
        self._make_batches()

    def project(self, model: nn.Module | None = None) -> None:
        """Project now; given a copy of the model, such as an average of its weights, project the copy instead.

        Where weights are sharded, every process has to call this.
        """
        sharded.reshard(self.model)
        if model is not None and model is not self.model:
            sharded.reshard(model)
            copies = self.selection.counterparts(model)
            whole = self._whole_radii()
            shares = {copy.name: sharded.scatter(whole[copy.name], copy.tensor, copy.axes) for copy in copies if whole}
            # The compiled paths serve the model that they were asked for; not every dtype and device of a copy.
            backend: Backend = "torch" if self.backend == "torch" else "auto"
            Batch(copies, self.constraint, shares, backend=backend).project_()
            return
        for driver in self._drivers:
            driver.batch.project_()
            driver.projected = True

    def check(self) -> Certificate:
        """Measure every constrained weight, and look whether the hooks are in place.

        Where weights are sharded, every process has to call this.
        """
        sharded.reshard(self.model)
        weights = [weight for weight in self.selection.constrained if weight.found is not None]
        refuse_misfits(self.constraint, weights)
        refuse_radii(self.constraint, weights, self._radii)
        moved = [driver for driver in self._drivers if not driver.projected]
        there = set(map(id, self.model.parameters()))
        reports = certify(
            weights,
            self.constraint,
            self._radii,
            between_projections={weight.name for driver in moved for weight in driver.weights},
            orphans={weight.name for driver in self._drivers for weight in driver.orphans()},
            removed={weight.name for weight in weights if id(weight.tensor) not in there},
        )
        return Certificate(
            reports,
            hooks_in_place=all(driver.is_hooked for driver in self._drivers),
            gone=tuple(weight.name for weight in self.selection.constrained if weight.found is None),
            unconstrained=self._unconstrained(),
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: step counts, and the radii where they are the initial ones.

        Plain numbers and tensors, safe to load with `torch.load(..., weights_only=True)`. Where weights are sharded,
        every process has to call this.
        """
        sharded.reshard(self.model)
        return {
            "version": STATE_VERSION,
            "constraint": str(self.constraint),
            "weights": [weight.name for weight in self.selection.constrained],
            "axes": {weight.name: str(weight.axes) for weight in self.selection.constrained},
            "zero": list(self.selection.zero),
            "steps": [driver.steps for driver in self._drivers],
            "projected": [driver.projected for driver in self._drivers],
            "radii": self._whole_radii(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. Weights are not touched: a resumed run equals an uninterrupted one."""
        sharded.reshard(self.model)
        check_state(state, len(self._drivers), self.constraint, self.selection.constrained)
        for driver, steps, projected in zip(self._drivers, state["steps"], state["projected"], strict=True):
            driver.steps, driver.projected = steps, projected
        for weight in self.selection.constrained:
            if weight.name in state["radii"]:
                radii = state["radii"][weight.name].to(weight.tensor.device, wide_dtype(weight.tensor))
                self._radii[weight.name] = sharded.scatter(radii, weight.tensor, weight.axes)
        self._make_batches()

    def rebind(self, optimizer: Optimizer | Iterable[Optimizer]) -> None:
        """Put the hooks on these optimizers: copying or pickling an optimizer loses them.

        They take the places of the ones before, in the same order, and must hold the same weights.
        """
        optimizers = hookable(optimizer)
        _refuse_attached(self.selection.constrained, besides=self)
        if len(optimizers) != len(self._drivers):
            raise ValueError(f"the projection was attached to {len(self._drivers)} optimizers; found {len(optimizers)}")
        for driver, one in zip(self._drivers, optimizers, strict=True):
            held = moved_by(one, driver.weights)
            for weight in driver.weights:
                if weight not in held:
                    raise ValueError(f"this {type(one).__name__} does not hold the model's weight {weight.name!r}")
        self.detach()
        self._fsdp.look_again()
        for driver, one in zip(self._drivers, optimizers, strict=True):
            hooks = StepHooks(
                one,
                on_step=partial(self._after_step, driver),
                on_gradient=partial(self._before_step, driver) if self.gradient == "riemannian" else None,
                exact=self.every is not None and self.every > 1,
            )
            driver.hooks = ref(hooks)
        with _attaching:
            _attached.add(self)

    def detach(self) -> None:
        """Take the hooks off the optimizers: steps no longer project. The weights stay as they are."""
        for driver in self._drivers:
            hooks = driver.hooks()
            if hooks is not None:
                hooks.remove()
            driver.hooks = no_hooks
        with _attaching:
            _attached.discard(self)

    def __str__(self) -> str:
        interval = {None: "by hand", 1: "after every step"}.get(self.every, f"after every {self.every} steps")
        weights = [weight for weight in self.selection.constrained if weight.found is not None]
        used = backends.summary(backends.paths(weights, self.backend)) if weights else "none"
        return f"{self.constraint}, projected {interval}, {self.gradient} gradient, backend {used}\n{self.selection}"

    def __repr__(self) -> str:
        count = len(self.selection.constrained)
        return f"<NormProjection of {count} weights, {self.constraint}, every={self.every}, gradient={self.gradient!r}>"

    def __getstate__(self) -> dict[str, Any]:
        bare = [replace(one, hooks=no_hooks, batch=Batch(one.weights, self.constraint)) for one in self._drivers]
        return {**self.__dict__, "_drivers": bare}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_batches()

    def _begin(self, *, project: bool) -> None:
        """The start of a training run: measure the radii that are to be kept, and project once if asked."""
        if self.constraint == UnitNorm(radius="initial"):
            for weight in self.selection.constrained:
                norms = neuron_norms(weight.tensor, weight.axes)
                has_radius = norms.isfinite() & (norms >= smallest_length(weight.tensor.dtype, weight.fan_in))
                self._radii[weight.name] = norms.where(has_radius, 0)
            self._make_batches()
        if project:
            for driver in self._drivers:
                driver.batch.settle_()
                driver.projected = True

    def _unconstrained(self) -> tuple[str, ...]:
        """The weights that would be constrained now: unfrozen, given to an optimizer, untied or put in since."""
        held = held_by(optimizer for driver in self._drivers if (optimizer := driver.optimizer) is not None)
        with _attaching:
            served = {id(weight.found) for other in _attached for weight in other.selection.constrained}
        trained = (
            named
            for named in named_parameters(self.model)
            if named.parameter.requires_grad and id(named.parameter) in held and id(named.parameter) not in served
        )
        return tuple(unconstrained(self.selection, trained))

    def _whole_radii(self) -> dict[str, Tensor]:
        """The radii that neurons keep, of whole weights, by the weight's name."""
        return {
            weight.name: sharded.gather(self._radii[weight.name], weight.tensor, weight.axes).clone()
            for weight in self.selection.constrained
            if weight.name in self._radii
        }

    def _before_step(self, driver: Driver) -> None:
        self._fsdp.reshard()
        driver.batch.tangent_()

    def _after_step(self, driver: Driver) -> None:
        self._fsdp.reshard()
        driver.steps += 1
        driver.projected = self.every is not None and driver.steps % self.every == 0
        if driver.projected:
            driver.batch.project_()

    def _make_batches(self) -> None:
        for driver in self._drivers:
            driver.batch = Batch(
                driver.weights, self.constraint, self._radii, backend=self.backend, on_change=self._fsdp.look_again
            )


def _refuse_attached(weights: Iterable[ConstrainedWeight], besides: NormProjection | None = None) -> None:
    wanted = {id(weight.tensor) for weight in weights}
    with _attaching:
        others = list(_attached)
    for other in others:
        if other is besides or not any(driver.is_hooked for driver in other._drivers):
            continue
        for weight in other.selection.constrained:
            if id(weight.found) in wanted:  # another model's weight may be gone, which is not this model's trouble
                raise ValueError(
                    f"weight {weight.name!r} has a projection attached already: call detach() on that one first, which "
                    "a callback keeps as callback.projection"
                )
