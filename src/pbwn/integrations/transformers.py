"""The projection inside the Trainer of Hugging Face Transformers: `Trainer(..., callbacks=[ProjectionCallback()])`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pbwn.certificate import Certificate
from pbwn.integrations.options import check_name, checked_options
from pbwn.monitor import Monitor
from pbwn.norm_projection import NormProjection, attach

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pbwn.integrations.transformers needs Transformers: pip install 'pbwn[transformers]'", name=error.name
    ) from error


class ProjectionCallback(TrainerCallback):
    """Keep the model's weights on the sphere while a Transformers Trainer trains it.

    It takes the keyword arguments of `pbwn.attach`. A pretrained model needs `constraint=UnitNorm(radius="initial")`,
    because attaching rescales its weights otherwise. Embeddings are left alone, and so are the output heads, tied to
    them or not: print `callback.projection` to see which, and name others with `output_layer=[...]`.

    Its state is a file in each checkpoint folder, `<name>.pt`: a run resumed with
    `trainer.train(resume_from_checkpoint=...)` equals an uninterrupted one bit for bit.

    Weights are saved as they are. With `every` > 1 that may be between two projections, which exact resuming needs:
    call `callback.projection.project()` before `trainer.save_model()`.

    Args:
        name: the name of its state in checkpoints and of what it logs. Several callbacks need different names.
        log_deviation: add how far the weights are off to the training logs, as `<name>_deviation`. It is in
            `trainer.state.log_history`, and seen by the callbacks that come after this one.
        monitor: the interval in steps at which to record each weight's quantities; the latest are added to the training
            logs, as `<name>/<quantity>/<weight>`. None records none. See `NormProjection.monitor`; the monitor is kept
            as `callback.monitor`.
        resume_from: the checkpoint folder of a resumed run, which the Trainer does not pass to callbacks. "auto" takes
            `args.resume_from_checkpoint`, or the folder of the same step in `args.output_dir`. None starts from
            scratch, for a checkpoint that was saved without this callback.
        options: the arguments of `pbwn.attach` after the optimizer.

    Attributes:
        projection: what `attach` returned, once training has started.
        certificate: what `projection.check()` found at the end of training, once it has ended.
    """

    def __init__(
        self,
        *,
        name: str = "pbwn",
        log_deviation: bool = False,
        monitor: int | None = None,
        resume_from: str | os.PathLike[str] | None = "auto",
        **options: Any,
    ) -> None:
        self.projection: NormProjection | None = None
        self.certificate: Certificate | None = None
        self._name = check_name(name)
        self._log_deviation = log_deviation
        self.monitor: Monitor | None = None
        self._monitor_every = monitor
        self._resume_from = resume_from
        self._options = checked_options(options)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        **others: Any,
    ) -> None:
        """Attach: weights and optimizer are restored and in place by now."""
        if self.projection is not None:
            self.projection.detach()  # of an earlier training run, which may have been cut off
        saved = self._saved_state(args, state)
        options = self._options if saved is None else {**self._options, "state": saved}
        self.projection, self.certificate = attach(model, optimizer, **options), None
        if saved is not None:
            self._refuse_other_weights()
        if self._monitor_every is not None:
            self.monitor = self.projection.monitor(self._monitor_every)

    def _refuse_other_weights(self) -> None:
        """Refuse a state that is not that of these weights: the checkpoint folder may be a wrong guess."""
        assert self.projection is not None
        for weight in self.projection.check().weights:
            if weight.deviation > weight.tolerance and not weight.between_projections:
                self.projection.detach()
                raise ValueError(
                    f"the weights are not those that the projection's state was saved with ({weight.name} is off by "
                    f"{weight.deviation:.1e}): pass resume_from= with the checkpoint folder that they come from"
                )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Save the projection's state in the checkpoint folder."""
        if self.projection is None or state.is_hyper_param_search:  # a search's folders are unknown and never resumed
            return
        current = self.projection.state_dict()  # in every process: sharded weights need them all
        if args.should_save:
            saved = {"global_step": state.global_step, "projection": current}
            torch.save(saved, _checkpoint_folder(args, state) / self._file_name)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Add the deviation to the logs of training, not to those of evaluation."""
        if self._log_deviation and self.projection is not None and logs is not None and "loss" in logs:
            deviation = {f"{self._name}_deviation": self.projection.check().largest_deviation}
            logs.update(deviation)
            state.log_history[-1].update(deviation)
        if self.monitor is not None and logs is not None and "loss" in logs:
            logs.update(self.monitor.metrics(self._name))
            state.log_history[-1].update(self.monitor.metrics(self._name))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Check the weights, and detach from the optimizer: the same model may be trained again."""
        if self.projection is not None:
            try:
                if args.load_best_model_at_end and state.best_model_checkpoint is not None:
                    best = Path(state.best_model_checkpoint) / self._file_name
                    if best.is_file():  # the Trainer has loaded the weights of that checkpoint
                        self.projection.load_state_dict(_load(best)["projection"])
                self.certificate = self.projection.check()
            finally:
                self.projection.detach()

    @property
    def _file_name(self) -> str:
        return f"{self._name}.pt"

    def _saved_state(self, args: TrainingArguments, state: TrainerState) -> dict[str, Any] | None:
        """Return the state in the checkpoint that this training run resumes from, if any."""
        if state.global_step == 0 or self._resume_from is None:
            return None
        if self._resume_from == "auto":
            folders = [Path(args.resume_from_checkpoint)] if isinstance(args.resume_from_checkpoint, str) else []
            folders.append(_checkpoint_folder(args, state))
        else:
            folders = [Path(self._resume_from)]
        files = [folder / self._file_name for folder in folders]
        for file in filter(Path.is_file, files):
            saved = _load(file)
            if saved["global_step"] == state.global_step:
                projection: dict[str, Any] = saved["projection"]
                return projection
        raise ValueError(
            f"training resumes from step {state.global_step}, but the projection's state of that step is not in "
            f"{' or '.join(map(str, files))}: pass resume_from= with the checkpoint "
            "folder, or resume_from=None if that checkpoint was saved without this callback"
        )


def _load(file: Path) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return saved


def _checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
