"""The projection inside Lightning's Trainer: `Trainer(callbacks=[ProjectionCallback()])`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbwn.certificate import Certificate
from pbwn.integrations.options import check_name, checked_options
from pbwn.monitor import Monitor
from pbwn.norm_projection import NormProjection, attach
from pbwn.optimizer_hooks import hookable
from pbwn.selection import held_by

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pbwn.integrations.lightning needs Lightning: pip install 'pbwn[lightning]'", name=error.name
    ) from error


class ProjectionCallback(Callback):
    """Keep the module's weights on the sphere while a Lightning Trainer trains it.

    It takes the keyword arguments of `pbwn.attach`, and attaches to all optimizers of the module when training starts.
    Its state is part of the checkpoint: a run resumed with `trainer.fit(..., ckpt_path=...)` equals an uninterrupted
    one bit for bit. Without a checkpoint, or with one saved without this callback, each fit starts from scratch.

    Weights are saved as they are. With `every` > 1 that may be between two projections, which exact resuming needs:
    call `callback.projection.project()` before you export a model.

    Args:
        name: the name of its state in checkpoints and of what it logs. Several callbacks need different names.
        monitor: the interval in steps at which to log each weight's quantities, as `<name>/<quantity>/<weight>`; None
            logs none. See `NormProjection.monitor`; the monitor is kept as `callback.monitor`.
        log_deviation: log how far the weights are off, as `<name>/deviation`, whenever the Trainer logs a step.
        options: the arguments of `pbwn.attach` after the optimizer.

    Attributes:
        projection: what `attach` returned, once training has started.
        certificate: what `projection.check()` found at the end of training, once it has ended.
    """

    def __init__(
        self, *, name: str = "pbwn", log_deviation: bool = False, monitor: int | None = None, **options: Any
    ) -> None:
        self.projection: NormProjection | None = None
        self.certificate: Certificate | None = None
        self._name = check_name(name)
        self._log_deviation = log_deviation
        self.monitor: Monitor | None = None
        self._monitor_every = monitor
        self._recorded = False
        self._options = checked_options(options)
        self._restored: dict[str, Any] = {}
        self._last_step = 0

    @property
    def state_key(self) -> str:
        """The name of the state in a checkpoint."""
        return f"{type(self).__qualname__}[{self._name}]"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reset for a new fit; the state of a checkpoint is loaded after this."""
        if stage == "fit":
            self._detach()
            self.projection, self.certificate, self._restored = None, None, {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint until training starts."""
        self._restored = dict(state_dict)

    def state_dict(self) -> dict[str, Any]:
        """Return the projection's state, for a checkpoint."""
        return self._restored if self.projection is None else self.projection.state_dict()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach: weights and optimizers are restored and in place by now."""
        if trainer.optimizers:
            hookable(trainer.optimizers)  # raises a clearer error for an unsupported optimizer
        trained = held_by(trainer.optimizers)
        if not any(id(parameter) in trained for parameter in pl_module.parameters()):
            raise ValueError(
                f"{type(pl_module).__name__} has no optimizer that holds any of its parameters, and weights are "
                "projected after an optimizer's steps: return one from configure_optimizers, or drop the "
                "ProjectionCallback"
            )
        self._detach()  # a trial run, such as that of the learning rate finder, comes before the real one
        options = {**self._options, "state": self._restored} if self._restored else self._options
        self.projection = attach(pl_module, trainer.optimizers, **options)
        self._last_step = trainer.global_step
        if self._monitor_every is not None:
            self.monitor = self.projection.monitor(self._monitor_every, on_record=self._on_record)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        """Log records and the deviation if requested."""
        if self.monitor is not None and self._recorded:
            self._recorded = False
            for logger in trainer.loggers:
                logger.log_metrics(self.monitor.metrics(self._name), step=trainer.global_step)
        stepped, self._last_step = trainer.global_step > self._last_step, trainer.global_step
        interval = trainer.log_every_n_steps  # 0: never
        if self._log_deviation and stepped and interval and self._last_step % interval == 0:
            assert self.projection is not None
            self.log(f"{self._name}/deviation", self.projection.check().largest_deviation)

    def _on_record(self, records: list[dict[str, Any]]) -> None:
        self._recorded = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the weights, and detach from the optimizers."""
        if self.projection is not None:
            self.certificate = self.projection.check()
        self._detach()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Detach from the optimizers: the same module may be trained again."""
        self._detach()

    def _detach(self) -> None:
        if self.projection is not None:
            self.projection.detach()
