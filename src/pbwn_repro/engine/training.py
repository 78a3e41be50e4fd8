"""The training loop: from a configuration and its data to a result; it can be interrupted and resumed anywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor, nn

import pbwn
from pbwn_repro import methods, models
from pbwn_repro.config import ConfigError, RunConfig
from pbwn_repro.data import random_seed
from pbwn_repro.engine import state
from pbwn_repro.engine.checkpoint import Checkpoint, CheckpointStore
from pbwn_repro.engine.finite import LossWatch, NonFiniteError
from pbwn_repro.engine.log import MetricsLog, NoLog
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.reporting import Reporter
from pbwn_repro.engine.signals import Interrupted, StopRequest
from pbwn_repro.engine.state import NormWatch, estimate_statistics, export
from pbwn_repro.errors import UsageError
from pbwn_repro.importing import is_own
from pbwn_repro.tasks import AnySet, Supervised, make_task


@dataclass
class Progress:
    """The progress of a run: all that a checkpoint holds besides the states of the model and its optimizer.

    metrics: those of the last evaluation, by name.
    best: the best value of the main metric.
    """

    step: int = 0
    skipped: int = 0
    loss_sum: float = 0.0  # since the last line of metrics
    losses_lost: int = 0  # the number of non-finite losses since then
    metrics: dict[str, float | None] = field(default_factory=dict)
    best: float | None = None
    best_step: int | None = None
    metrics_bytes: int = 0
    monitor_bytes: int = 0

    @classmethod
    def read(cls, content: bytes) -> Progress:
        """Parse progress.json; files of earlier versions have fields for the test error instead of `metrics`."""
        fields = json.loads(content)
        if "best_error" in fields:
            fields["metrics"] = {"test_error": fields.pop("error"), "test_top5_error": fields.pop("top5_error")}
            fields["best"] = fields.pop("best_error")
        return cls(**fields)


@dataclass(frozen=True)
class Finished:
    """The outcome of a run: the content of result.json, and the exported model as a file."""

    result: dict[str, Any]
    model: bytes


class Training:
    """A training run. Everything random is a function of the seed and the step."""

    def __init__(self, config: RunConfig, dataset: AnySet, processes: Processes, *, workers: int = 0) -> None:
        """Build the network and the data streams; nothing is written to disk."""
        self.config, self.processes = config, processes
        self.progress = Progress()
        self._task = make_task(config, dataset, processes, workers)
        self._network = models.find(config.model)
        self._layers = self._network.layers(config.scope)
        self._method = methods.method(config.method)
        self.model = self._build()
        self._task.check(self.model)
        self._wrapped = processes.wrap(self.model, shard=config.shard)
        self._optimizer = self._method.optimizer(self.model, config.optimizer, self._layers)
        if self._optimizer is None:
            raise UsageError(f"{config.method}: optimizer() returned None: return the optimizer of the model")
        self._scaler = torch.amp.GradScaler(processes.device.type, enabled=config.precision == "float16")
        self._watch = LossWatch(self.model, processes.device)
        self.steps_per_epoch = self._task.steps_per_epoch
        self.total_steps = config.steps or (config.epochs or 0) * self.steps_per_epoch
        self.projection: pbwn.NormProjection | None = None
        self._monitoring: tuple[int, MetricsLog | NoLog] | None = None

    def monitor(self, every: int, log: MetricsLog | NoLog) -> None:
        """Record the effect of the projection every `every` steps of the run, one line per weight."""
        if self._method.constraint is None:
            raise ConfigError(f"--monitor: the method {self.config.method} has no projection to monitor")
        self._monitoring = every, log

    def run(
        self,
        store: CheckpointStore,
        metrics: MetricsLog | NoLog,
        timing: MetricsLog | NoLog,
        reporter: Reporter,
        checkpoint: Checkpoint | None,
    ) -> Finished:
        """Train to the end, from a checkpoint if given. Raises Interrupted after a requested stop."""
        self._begin(checkpoint)
        if self._monitoring is not None and self.projection is not None:
            self.projection.monitor(self._monitoring[0], on_record=self._write_monitor_records)
        self._store, self._metrics, self._timing, self._reporter = store, metrics, timing, reporter
        reporter.begin(self.config.run_name, self.progress.step, self.total_steps, self._task.unit)
        try:
            with StopRequest() as stop, _flushing_subnormals():
                self._clock = time.perf_counter()
                while self.progress.step < self.total_steps:
                    self._step()
                    self._after_step()
                    if self.processes.any(stop.requested):
                        self._detect_nonfinite()
                        self._save()
                        raise Interrupted
                return self._finish()
        finally:
            reporter.end()

    def prepared(self) -> Training:
        """Initialise as for the first step, setting `projection`, and return self; nothing is written to disk."""
        self._begin(None)
        return self

    def probe(
        self, steps: Collection[int], measure: Callable[[int, tuple[Tensor, Tensor]], None], examples: int
    ) -> None:
        """Train without saving anything, and call `measure(step, batch)` after each of the given numbers of steps.

        The batch is the same labeled training examples each time. Training is not affected, and a projection that is
        due after an epoch is made as in any run.
        """
        self._begin(None)
        batch = self._labeled_examples(examples)
        for step in range(self.total_steps + 1):
            if step in steps:
                measure(step, batch)
            if step < self.total_steps:
                self._step()
                if self.progress.step % self.steps_per_epoch == 0 and self.progress.step < self.total_steps:
                    self._method.after_epoch(self.projection)

    def _labeled_examples(self, count: int) -> tuple[Tensor, Tensor]:
        """The first `count` training examples, as the first steps see them."""
        if not isinstance(self._task, Supervised):
            raise ConfigError(f"{self.config.model}: only supervised training can be measured")
        steps = range(-(-count // self.config.batch_size))
        inputs, labels = zip(*(self._task.batch(step) for step in steps), strict=True)
        return torch.cat(inputs)[:count], torch.cat(labels)[:count]

    def _build(self) -> nn.Module:
        config = self.config
        torch.manual_seed(random_seed(config.seed, "initialisation"))
        start = self._network.start(config.method, config.init)
        arguments = self._network.accepted(self._task.model_arguments)
        if clash := arguments.keys() & config.model_options.keys():
            raise ConfigError(f"model_options.{min(clash)} is determined by the data and cannot be set")
        try:
            model = self._network.build(**arguments, **{**start, **config.model_options})
        except (TypeError, ValueError) as error:
            if not config.model_options or isinstance(error, UsageError):
                raise
            raise ConfigError(f"model_options: {error}") from error
        with _as_usage_error(config):
            self._norms = NormWatch(model, self._layers)
            self._method.prepare(model, self._layers)
        # Convolutions are faster in channels_last, which leaves other layers unchanged. FSDP2 needs contiguous weights.
        layout = torch.contiguous_format if config.shard else torch.channels_last
        model.to(self.processes.device, memory_format=layout)  # type: ignore[call-overload]
        return model

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        """Load a checkpoint if there is one, then attach the projection."""
        projection_state: Mapping[str, Any] | None = None
        if checkpoint is not None:
            files = checkpoint.files
            self.progress = Progress.read(files["progress.json"])
            self._watch.reset(self.progress.loss_sum, self.progress.losses_lost)
            state.load_weights(self.model, files["model.safetensors"])
            state.load_optimizer(self.model, self._optimizer, files["optimizer.pt"])
            self._scaler.load_state_dict(state.unpack(files["scaler.pt"]))
            projection_state = state.unpack(files["projection.pt"]) if "projection.pt" in files else None
        initial = self._network.projects_initially(self.config.method)
        with _as_usage_error(self.config):
            self.projection = self._method.attach(
                self.model, self._optimizer, self._layers, initial=initial, state=projection_state
            )
        if self.projection is None and self._method.constraint is not None:
            raise UsageError(
                f"{self.config.method}: attach() returned None: return what pbwn.attach returns, so that its state is "
                "saved, or set constraint to None"
            )
        self._wrapped.train()

    @property
    def _checks_each_step(self) -> bool:
        """Whether to check for non-finite values before each update: it is free on a CPU, and skipping requires it."""
        return self.processes.device.type == "cpu" or self.config.on_nonfinite == "skip"

    def _step(self) -> None:
        """Take one step: compute the gradient, check it, update the weights."""
        config, step = self.config, self.progress.step
        self._seed(random_seed(config.seed, "step", *divmod(step, self.steps_per_epoch), self.processes.rank))
        rate = config.schedule.rate(config.optimizer.lr, step, self.steps_per_epoch, self.total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if config.schedule.resets_momentum(step, self.steps_per_epoch):
            for moments in self._optimizer.state.values():
                if (buffer := moments.get("momentum_buffer")) is not None:  # None without momentum
                    buffer.zero_()
        self._optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss = self._task.gradient(self._wrapped, step, lambda part: self._scaler.scale(part).backward())
        self._rate = rate
        mean = self.processes.sum(loss.detach().clone()).double() / self.processes.count
        self._watch.add(step + 1, loss, mean, gradients=not self._scaler.is_enabled())
        if self._checks_each_step and self._detect_nonfinite():
            self.progress.skipped += 1
        else:
            scale = self._scaler.get_scale()
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self.progress.skipped += self._scaler.get_scale() < scale  # overflow: the scaler skipped the update
        self.progress.step += 1

    def _seed(self, seed: int) -> None:
        """Seed all of torch's generators that a step may use."""
        if (
            self.processes.device.type == "cpu"
        ):  # torch.manual_seed would also queue a call for CUDA, with a stack trace
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _detect_nonfinite(self) -> bool:
        """Return whether a loss or gradient since the last check was not finite; an error unless steps are skipped."""
        found = self._watch.first_problem()
        if not self.processes.any(found is not None):
            return False
        step, problem = found or (self.progress.step + 1, "another process found a value that is not finite")
        if self.config.on_nonfinite == "stop":
            raise NonFiniteError(
                f"step {step:,}: {problem}. Nothing of this step is saved. Lower the learning rate, or skip such "
                "steps with --set on_nonfinite=skip (pbwn train, pbwn sweep).",
                step,
            )
        self._reporter.message(f"step {step:,}: {problem}; the step is skipped")
        self._watch.clear_problem()
        return True

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.processes.device.type, getattr(torch, self.config.precision))

    def _after_step(self) -> None:
        """Log, evaluate, project after an epoch and save, in this order, as each is due."""
        config, step = self.config, self.progress.step
        last, epoch_ends = step == self.total_steps, step % self.steps_per_epoch == 0
        logs = last or step % config.log_every == 0
        evaluates = last or (epoch_ends if config.evaluate_every is None else step % config.evaluate_every == 0)
        saves = last or (epoch_ends if config.checkpoint_every is None else step % config.checkpoint_every == 0)
        if (logs or evaluates or saves) and not self._checks_each_step:
            self._detect_nonfinite()
        if logs:
            count = step % config.log_every or config.log_every
            loss_sum, lost = self._watch.read()
            self._log(loss_sum / (count - lost) if count > lost else nan, count)
            self._watch.reset()
        if evaluates:
            self._evaluate()
        if epoch_ends and not last:
            self._method.after_epoch(self.projection)
        if saves:
            self._save()

    def _log(self, loss: float, count: int) -> None:
        now = time.perf_counter()
        speed = count * self._task.step_size / (now - self._clock)
        self._metrics.write(step=self.progress.step, loss=_finite_or_none(loss))
        self._timing.write(step=self.progress.step, seconds=(now - self._clock) / count)
        self._reporter.step(self.progress.step, loss, self._rate, speed)
        self._clock = now

    def _write_monitor_records(self, records: list[dict[str, Any]]) -> None:
        assert self._monitoring is not None
        for record in records:
            self._monitoring[1].write(
                **{name: _finite_or_none(each) if isinstance(each, float) else each for name, each in record.items()}
            )

    def _compute_metrics(self) -> dict[str, float | None]:
        """Evaluate the current weights."""
        self.processes.broadcast_buffers(self.model)
        self.model.eval()
        metrics = self._task.evaluate(self.model)
        self.model.train()
        return {name: _finite_or_none(value) for name, value in metrics.items()}

    def _evaluate(self) -> None:
        """Evaluate and log; before an epoch's projection, because the batch statistics belong to these weights."""
        progress, metric, started = self.progress, self._task.metric, time.perf_counter()
        progress.metrics = self._compute_metrics()
        value = progress.metrics[metric.name]
        if value is not None and (progress.best is None or metric.is_better(value, progress.best)):
            progress.best, progress.best_step = value, progress.step
        line: dict[str, Any] = dict(progress.metrics)
        if (norms := self._norms.quartiles()) and all(map(isfinite, norms)):
            line["weight_norms"] = norms
        if self.projection is not None:
            line["deviation"] = self.projection.check().largest_deviation
        epoch = progress.step / self.steps_per_epoch
        self._metrics.write(step=progress.step, epoch=epoch, **line)
        self._reporter.evaluated(progress.step, metric, nan if value is None else value)
        self._clock += time.perf_counter() - started

    def _save(self) -> None:
        started = time.perf_counter()
        self.processes.broadcast_buffers(self.model)
        self.progress.loss_sum, self.progress.losses_lost = self._watch.read()
        self.progress.metrics_bytes = self._metrics.position()
        if self._monitoring is not None:
            self.progress.monitor_bytes = self._monitoring[1].position()
        self._timing.position()
        extra = {"scaler": self._scaler.state_dict()}
        if self.projection is not None:
            extra["projection"] = self.projection.state_dict()
        files = state.pack(self.model, self._optimizer, extra, asdict(self.progress))
        if self.processes.is_first:
            self._store.save(self.progress.step, files)
        self._clock += time.perf_counter() - started

    def _finish(self) -> Finished:
        """Project the model a last time if a projection is due, evaluate it as exported, and return the result."""
        progress, config = self.progress, self.config
        metric = self._task.metric
        exported = progress.metrics[metric.name]
        before = after = None
        if self.projection is not None:
            before = self.projection.check()
            if before.between_projections:
                self.projection.project()
                # Dropout is active while the statistics are estimated.
                torch.manual_seed(random_seed(config.seed, "statistics", rank=self.processes.rank))
                estimate_statistics(self.model, self._task.inputs(), self.processes)
                exported = self._compute_metrics()[metric.name]
            after = self.projection.check()
        if progress.metrics[metric.name] is None or exported is None:
            raise NonFiniteError(
                f"step {progress.step:,}: the {metric.words} at the end is not finite. Lower the learning rate.",
                progress.step,
            )
        result = {
            "run": config.hash,
            metric.name: progress.metrics[metric.name],
            metric.exported: exported,
            metric.best: progress.best,
            "best_step": progress.best_step,
            **{name: progress.metrics.get(name) for name in metric.secondary.values()},
            "steps": progress.step,
            "skipped_steps": progress.skipped,
            "deviation": None if before is None else before.largest_deviation,
            "deviation_exported": None if after is None else after.largest_deviation,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "constrained_weights": 0 if self.projection is None else len(self.projection.selection.constrained),
        }
        identity = {"model": config.model, "method": config.method, "run": config.hash}
        return Finished(result, export(self.model, self.projection, identity))


@contextmanager
def _flushing_subnormals() -> Iterator[None]:
    """Flush subnormal numbers (below 1e-38) to zero: arithmetic with them is many times slower on a CPU.

    The optimizer's moments become subnormal where gradients vanish: most of them, once a network fits all examples.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def _as_usage_error(config: RunConfig) -> Iterator[None]:
    """Convert errors that pbwn raises about a user's own model to UsageError."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not is_own(config.model) or isinstance(error, UsageError) or not _is_raised_by_pbwn(error):
            raise
        raise UsageError(f"{config.model}: {error}") from error


def _is_raised_by_pbwn(error: Exception) -> bool:
    """Whether pbwn itself raised an error; one raised by code that it calls is a bug and keeps its traceback."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] == "pbwn"


def _finite_or_none(value: float) -> float | None:
    return value if isfinite(value) else None
