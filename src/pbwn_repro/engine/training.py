"""The loop: from a configuration and its data to a result, through steps that can be cut off anywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from math import isfinite, nan
from typing import Any, NamedTuple

import torch
from torch import nn

import pbwn
from pbwn_repro import methods, models
from pbwn_repro.config import ConfigError, RunConfig
from pbwn_repro.data import DataSet, random_seed
from pbwn_repro.engine import state
from pbwn_repro.engine.checkpoint import Checkpoint, CheckpointStore
from pbwn_repro.engine.evaluation import estimate_statistics, evaluate
from pbwn_repro.engine.export import export
from pbwn_repro.engine.finite import NonFiniteError, broken
from pbwn_repro.engine.metrics import MetricsLog, NoLog
from pbwn_repro.engine.norms import NormWatch
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.reporting import Reporter
from pbwn_repro.engine.schedule import learning_rate, resets_momentum
from pbwn_repro.engine.signals import Interrupted, StopRequest
from pbwn_repro.engine.tasks import make_task, test_batches


@dataclass
class Progress:
    """Where a run stands: with weights and optimizer, all that a checkpoint has to know."""

    step: int = 0
    skipped: int = 0
    loss_sum: float = 0.0  # since the last line of metrics
    losses_lost: int = 0  # of steps since then whose loss was not finite
    error: float | None = None
    top5_error: float | None = None
    best_error: float | None = None
    best_step: int | None = None
    metrics_bytes: int = 0


@dataclass(frozen=True)
class Finished:
    """What a run leaves behind: the numbers of its result, and the exported model as a file."""

    result: dict[str, Any]
    model: bytes


class Estimate(NamedTuple):
    """What a run will take: seconds of training alone, and bytes on the disk."""

    seconds: float
    bytes: int


class Training:
    """One run in the making. Everything random is a function of the seed and the place in the run."""

    def __init__(self, config: RunConfig, dataset: DataSet, place: Processes, *, workers: int = 0) -> None:
        """Build the network and the data streams; nothing is written."""
        self.config, self.place = config, place
        self.progress = Progress()
        self._dataset = dataset
        self._task = make_task(config, dataset, place, workers)
        self._tests = test_batches(config, dataset, place, workers)
        self._network = models.find(config.model)
        self._layers = self._network.layers(config.scope)
        self._method = methods.method(config.method)
        self.model = self._build()
        self._wrapped = place.wrap(self.model, shard=config.shard)
        self._optimizer = self._method.optimizer(self.model, config.optimizer, self._layers)
        self._scaler = torch.amp.GradScaler(place.device.type, enabled=config.precision == "float16")
        self.steps_per_epoch = self._task.steps_per_epoch
        self.total_steps = config.steps or (config.epochs or 0) * self.steps_per_epoch
        self.projection: pbwn.NormProjection | None = None

    def run(
        self,
        store: CheckpointStore,
        metrics: MetricsLog | NoLog,
        timing: MetricsLog | NoLog,
        reporter: Reporter,
        checkpoint: Checkpoint | None,
    ) -> Finished:
        """Train from the checkpoint, or from the start, to the end. Raises Interrupted when asked to stop."""
        self._begin(checkpoint)
        self._store, self._metrics, self._timing, self._reporter = store, metrics, timing, reporter
        reporter.begin(self.config.run_name, self.progress.step, self.total_steps)
        try:
            with StopRequest() as stop:
                self._clock = time.perf_counter()
                while self.progress.step < self.total_steps:
                    self._step()
                    self._after_step()
                    if self.place.any(stop.requested):
                        self._save()
                        raise Interrupted
                return self._finish()
        finally:
            reporter.end()

    def estimate(self, steps: int = 3) -> Estimate:
        """Time a few steps, and add up what two checkpoints and the model take. Spoils this object for training."""
        self._begin(None)
        self._step()
        started = time.perf_counter()
        for _ in range(steps):
            self._step()
        seconds = (time.perf_counter() - started) / steps * self.total_steps
        size = sum(map(len, state.pack(self.model, self._optimizer, {}, {}).values()))
        return Estimate(seconds, 3 * size)

    def _build(self) -> nn.Module:
        config = self.config
        torch.manual_seed(random_seed(config.seed, "initialisation"))
        images = self._tests.batch(0, 0).images
        start = self._network.start(config.method, config.init)
        told: dict[str, Any] = {
            "num_classes": len(self._dataset.classes),
            "in_channels": images.shape[1],
            "image_size": images.shape[2],
        }
        if clash := told.keys() & config.model_options.keys():
            raise ConfigError(f"model_options.{min(clash)}: the data tell it, it cannot be set")
        try:
            model = self._network.build(**told, **{**start, **config.model_options})
        except TypeError as error:
            if not config.model_options:
                raise
            raise ConfigError(f"model_options: {error}") from error
        self._norms = NormWatch(model, self._layers)
        self._method.prepare(model, self._layers)
        # Convolutions are faster in this layout; without any, it changes nothing. FSDP2 knows contiguous weights alone.
        layout = torch.contiguous_format if config.shard else torch.channels_last
        model.to(self.place.device, memory_format=layout)  # type: ignore[call-overload]
        return model

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        """Load a checkpoint, or start; either way the projection is attached last."""
        projected: Mapping[str, Any] | None = None
        if checkpoint is not None:
            files = checkpoint.files
            self.progress = Progress(**json.loads(files["progress.json"]))
            state.load_weights(self.model, files["model.safetensors"])
            state.load_optimizer(self.model, self._optimizer, files["optimizer.pt"])
            self._scaler.load_state_dict(state.unpack(files["scaler.pt"]))
            projected = state.unpack(files["projection.pt"]) if "projection.pt" in files else None
        initial = self._network.projects_initially(self.config.method)
        self.projection = self._method.attach(
            self.model, self._optimizer, self._layers, initial=initial, state=projected
        )
        self._wrapped.train()

    def _step(self) -> None:
        """One real step: gradient, a look at it, update."""
        config, step = self.config, self.progress.step
        torch.manual_seed(random_seed(config.seed, "step", *divmod(step, self.steps_per_epoch), self.place.rank))
        rate = learning_rate(config, step, self.steps_per_epoch, self.total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if resets_momentum(config, step, self.steps_per_epoch):
            for moments in self._optimizer.state.values():
                if (buffer := moments.get("momentum_buffer")) is not None:  # without momentum there is none
                    buffer.zero_()
        self._optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss = self._task.gradient(self._wrapped, step, lambda part: self._scaler.scale(part).backward())
        self._rate, self._loss = rate, self.place.sum(loss.detach().clone()).item() / self.place.count
        problem = broken(loss, None if self._scaler.is_enabled() else self.model)
        if self.place.any(problem is not None):
            self._refuse(problem or "another process found a value that is not finite")
        else:
            scale = self._scaler.get_scale()
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self.progress.skipped += self._scaler.get_scale() < scale  # gradients overflowed: no step was taken
        self.progress.step += 1

    def _refuse(self, problem: str) -> None:
        message = f"step {self.progress.step + 1:,}: {problem}"
        if self.config.on_nonfinite == "stop":
            raise NonFiniteError(
                f"{message}. The weights are still those of the step before. Lower the learning rate, or go on without "
                "such steps with --on-nonfinite skip."
            )
        self._reporter.message(f"{message}; the step is skipped")
        self.progress.skipped += 1

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.place.device.type, getattr(torch, self.config.precision))

    def _after_step(self) -> None:
        """Log, test, project after an epoch, save: in this order, each when it is due."""
        config, progress = self.config, self.progress
        step, last = progress.step, progress.step == self.total_steps
        epoch_ends = step % self.steps_per_epoch == 0
        if isfinite(self._loss):
            progress.loss_sum += self._loss
        else:
            progress.losses_lost += 1
        if step % config.log_every == 0 or last:
            count = step % config.log_every or config.log_every
            averaged = count - progress.losses_lost
            self._log(progress.loss_sum / averaged if averaged else nan, count)
            progress.loss_sum, progress.losses_lost = 0.0, 0
        if last or (epoch_ends if config.evaluate_every is None else step % config.evaluate_every == 0):
            self._evaluate()
        if epoch_ends and not last:
            self._method.after_epoch(self.projection)
        if last or (epoch_ends if config.checkpoint_every is None else step % config.checkpoint_every == 0):
            self._save()

    def _log(self, loss: float, count: int) -> None:
        now = time.perf_counter()
        speed = count * self.config.batch_size / (now - self._clock)
        self._metrics.write(step=self.progress.step, loss=_finite_or_none(loss))
        self._timing.write(step=self.progress.step, seconds=(now - self._clock) / count)
        self._reporter.step(self.progress.step, loss, self._rate, speed)
        self._clock = now

    def _evaluate(self) -> None:
        """Test the weights as they are: before an epoch's projection, as batch statistics belong to them."""
        progress, started = self.progress, time.perf_counter()
        scores = evaluate(self.model, self._tests, self.place, len(self._dataset.classes))
        progress.error, progress.top5_error = scores.error, scores.top5_error
        if progress.best_error is None or scores.error < progress.best_error:
            progress.best_error, progress.best_step = scores.error, progress.step
        line: dict[str, Any] = {"test_error": scores.error, "test_loss": _finite_or_none(scores.loss)}
        if scores.top5_error is not None:
            line["test_top5_error"] = scores.top5_error
        if all(map(isfinite, norms := self._norms.quartiles())):
            line["weight_norms"] = norms
        if self.projection is not None:
            line["deviation"] = self.projection.check().largest_deviation
        epoch = progress.step / self.steps_per_epoch
        self._metrics.write(step=progress.step, epoch=epoch, **line)
        self._reporter.evaluated(progress.step, scores.error)
        self._clock += time.perf_counter() - started

    def _save(self) -> None:
        started = time.perf_counter()
        self.place.align(self.model)
        self.progress.metrics_bytes = self._metrics.position()
        self._timing.position()
        extra = {"scaler": self._scaler.state_dict()}
        if self.projection is not None:
            extra["projection"] = self.projection.state_dict()
        files = state.pack(self.model, self._optimizer, extra, asdict(self.progress))
        if self.place.is_first:
            self._store.save(self.progress.step, files)
        self._clock += time.perf_counter() - started

    def _finish(self) -> Finished:
        """Bring the model onto the sphere where that was promised, test it as exported, and sum up."""
        progress, config = self.progress, self.config
        exported = progress.error
        before = after = None
        if self.projection is not None:
            before = self.projection.check()
            if before.between_projections:
                self.projection.project()
                torch.manual_seed(random_seed(config.seed, "statistics", rank=self.place.rank))  # for dropout
                estimate_statistics(self.model, self._task.pictures(), self.place)
                exported = evaluate(self.model, self._tests, self.place, len(self._dataset.classes)).error
            after = self.projection.check()
        result = {
            "run": config.hash,
            "test_error": progress.error,
            "test_error_exported": exported,
            "best_test_error": progress.best_error,
            "best_step": progress.best_step,
            "test_top5_error": progress.top5_error,
            "steps": progress.step,
            "skipped_steps": progress.skipped,
            "deviation": None if before is None else before.largest_deviation,
            "deviation_exported": None if after is None else after.largest_deviation,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "constrained_weights": 0 if self.projection is None else len(self.projection.selection.constrained),
        }
        identity = {"model": config.model, "method": config.method, "run": config.hash}
        return Finished(result, export(self.model, self.projection, identity))


def _finite_or_none(value: float) -> float | None:
    return value if isfinite(value) else None
