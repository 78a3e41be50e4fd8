"""The validated, frozen configuration of a run, and the hash that names the run.

The hash covers the schema version and the values that differ from that version's defaults. A new optional field whose
default keeps the earlier behaviour therefore leaves the names of existing runs unchanged. A default never changes
within a schema version: raise SCHEMA instead, and let `pbwn migrate` convert existing runs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from torch import nn
from torch.optim import Optimizer

from pbwn_repro import methods, models
from pbwn_repro.errors import UsageError, plain_message, suggest
from pbwn_repro.importing import is_own

SCHEMA = 2
# How often a run is observed. Random generators are reseeded in each step, and logging, evaluating and saving change
# neither a weight nor a running statistic of the first process: the model and its test error are the same, byte for
# byte. The best error over the evaluations and the loss curve do depend on these fields, so an artefact that shows them
# requires runs observed as its plan says. All other fields are hashed, even those that only change the order of
# summation (processes, shard, compile).
OBSERVATION = frozenset({"evaluate_every", "checkpoint_every", "log_every"})
# on_nonfinite is not hashed either: it decides whether a run stops at a value that is not finite or continues in its
# folder. The result records the number of skipped steps.
UNHASHED = OBSERVATION | {"on_nonfinite"}

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Part(BaseModel):
    """Base class of the parts of a configuration: frozen, strictly typed, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


class SGD(Part):
    """Stochastic gradient descent."""

    kind: Literal["sgd"] = "sgd"
    lr: Rate = 0.1
    momentum: Share = 0.9
    nesterov: bool = False
    weight_decay: Decay = 0.0

    def make(self, model: nn.Module) -> Optimizer:
        """Create the optimizer of all parameters."""
        return torch.optim.SGD(
            model.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )


class Adam(Part):
    """Adam with L2 weight decay."""

    kind: Literal["adam"] = "adam"
    lr: Rate = 0.001
    weight_decay: Decay = 0.0

    def make(self, model: nn.Module) -> Optimizer:
        """Create the optimizer of all parameters."""
        return torch.optim.Adam(model.parameters(), lr=self.lr, weight_decay=self.weight_decay, fused=True)


class AdamW(Part):
    """Adam with decoupled weight decay of matrices only, not of biases or the scales of normalisation layers."""

    kind: Literal["adamw"] = "adamw"
    lr: Rate = 0.001
    betas: tuple[Share, Share] = (0.9, 0.999)
    weight_decay: Decay = 0.0

    def make(self, model: nn.Module) -> Optimizer:
        """Create the optimizer of all parameters, in two groups: with and without weight decay."""
        parameters = list(model.parameters())
        groups = [
            {"params": [each for each in parameters if each.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
        ]
        present = [group for group in groups if group["params"]]
        return torch.optim.AdamW(present, lr=self.lr, betas=self.betas, fused=True)


class Schedule(Part):
    """The learning rate as a pure function of the step, counted from 0."""

    def rate(self, initial: float, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The learning rate of a step."""
        return initial

    def resets_momentum(self, step: int, steps_per_epoch: int) -> bool:
        """Whether to reset the momentum buffers to zero before a step."""
        return False


class Constant(Schedule):
    """A constant learning rate."""

    kind: Literal["constant"] = "constant"


class Steps(Schedule):
    """A rate that drops by a factor at the start of the given epochs, counted from 1 as in the paper.

    The authors' code resets the momentum buffers to zero at each drop.
    """

    kind: Literal["steps"] = "steps"
    drops: tuple[Count, ...]
    factor: Annotated[float, Field(gt=0, lt=1)]
    momentum: Literal["keep", "reset"] = "reset"

    def rate(self, initial: float, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The learning rate of a step."""
        epoch = step // steps_per_epoch + 1
        return initial * self.factor ** sum(epoch >= drop for drop in self.drops)

    def resets_momentum(self, step: int, steps_per_epoch: int) -> bool:
        """Whether the rate drops at this step, unless momentum is kept."""
        epochs, within = divmod(step, steps_per_epoch)
        return self.momentum == "reset" and step > 0 and within == 0 and epochs + 1 in self.drops


class Exponential(Schedule):
    """A rate that decays exponentially by epoch, to `final` times the initial rate in the last one."""

    kind: Literal["exponential"] = "exponential"
    final: Annotated[float, Field(gt=0, lt=1)] = 0.01

    def rate(self, initial: float, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The learning rate of a step."""
        share = (step // steps_per_epoch + 1) / -(-total_steps // steps_per_epoch)
        return initial * math.pow(self.final, share)


class LinearTail(Schedule):
    """A rate that is constant for `constant_steps` steps, then falls linearly to 0 at the end."""

    kind: Literal["linear-tail"] = "linear-tail"
    constant_steps: Count

    def rate(self, initial: float, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The learning rate of a step."""
        tail = total_steps - self.constant_steps
        return initial * min(1.0, (total_steps - step) / tail) if tail else initial


class Cosine(Schedule):
    """Linear warm-up, then half a cosine down to `final` times the initial rate."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    final: Share = 0.0

    def rate(self, initial: float, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The learning rate of a step."""
        if step < self.warmup_steps:
            return initial * (step + 1) / self.warmup_steps
        share = (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps)
        return initial * (self.final + (1 - self.final) * (1 + math.cos(math.pi * share)) / 2)


class Data(Part):
    """A data set, identified by name and digest and never by its path, and how it is used.

    Args:
        train: the splits to train on.
        test: the split to test on.
        labels: the number of labeled examples in semi-supervised learning; the others are used without labels.
        context: the length of the sequences, for texts.
        sequence: what changes from one sub-task to the next in continual learning.
        examples: the number of examples in a sub-task.
        passes: how many times a sub-task goes through its examples.
    """

    name: str
    digest: str
    train: Annotated[tuple[str, ...], Field(min_length=1)] = ("train",)
    test: str = "test"
    normalisation: Literal["unit-range", "mnist-mlp", "cifar", "imagenet"] = "unit-range"
    augmentation: Literal["none", "authors", "he"] = "none"
    labels: Count | None = None
    context: Count | None = None
    sequence: Literal["permuted-pixels", "random-labels"] | None = None
    examples: Count | None = None
    passes: Count | None = None


class RunConfig(Part):
    """Everything that a run's result depends on, and a few fields (`UNHASHED`) that its name does not depend on.

    Args:
        model: a name of `pbwn_repro.models`, or MODULE:CALLABLE.
        model_options: the model's own options.
        method: a name of `pbwn_repro.methods`, or MODULE:CLASS. Validation does not import the user's own code.
        init: the initialisation that the paper states for all methods, that of the authors' code, which differs by
            method, or LeCun's, whose rows have norm 1.
        scope: whether to constrain the layers that the paper or the authors' code constrains.
        epochs: the length of the run in epochs; exactly one of `epochs` and `steps` is given.
        steps: the length of the run in steps.
        batch_size: the number of examples in a step, over all processes and accumulated parts.
        accumulation: the number of parts into which a step's batch is split to accumulate gradients.
        evaluate_every: steps between evaluations; once per epoch if None.
        checkpoint_every: steps between checkpoints; once per epoch if None.
        log_every: the number of steps over which a line of metrics averages the training loss.
        on_nonfinite: whether to stop at a step whose loss or gradient is not finite, or to skip the step.
        processes: the number of processes that share the work.
        shard: whether to shard the weights over the processes (FSDP2).
    """

    model: str
    model_options: dict[str, Any] = {}
    data: Data
    method: str
    init: models.Init = "paper"
    scope: models.Scope = "paper"
    optimizer: Annotated[SGD | Adam | AdamW, Field(discriminator="kind")] = SGD()
    schedule: Annotated[Constant | Steps | Exponential | LinearTail | Cosine, Field(discriminator="kind")] = Constant()
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Count = 128
    accumulation: Count = 1
    evaluate_every: Count | None = None
    checkpoint_every: Count | None = None
    log_every: Count = 1
    seed: int = 1
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    on_nonfinite: Literal["stop", "skip"] = "stop"
    processes: Count = 1
    shard: bool = False

    @field_validator("model")
    @classmethod
    def _known_model(cls, name: str) -> str:
        models.find(name)
        return name

    @field_validator("method")
    @classmethod
    def _known_method(cls, name: str) -> str:
        methods.check_name(name)
        return name

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.epochs is None and self.steps is None:
            raise ValueError("the length of the run is missing: add --epochs N or --steps N")
        if self.epochs is not None and self.steps is not None:
            raise ValueError("--epochs and --steps are mutually exclusive: give only one")
        parts = self.accumulation * self.processes
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size {self.batch_size} cannot be divided into {parts} equal parts (accumulation "
                f"{self.accumulation}, processes {self.processes}): choose a multiple of {parts}"
            )
        task = models.find(self.model).task
        if (task == "ladder") != (self.data.labels is not None):
            raise ValueError("data.labels (--labels) must be set for the ladder, and only for it")
        if task is not None and (task == "language") != (self.data.context is not None):
            needs = "text: give --data text:FILE" if task == "language" else "images: data.context is for text"
            raise ValueError(f"{self.model} needs {needs}")
        if len({part is None for part in (self.data.sequence, self.data.examples, self.data.passes)}) > 1:
            raise ValueError("sub-tasks need data.sequence, data.examples and data.passes, all three")
        if self.data.sequence is not None and task not in (None, "classification"):
            raise ValueError(f"data.sequence is for classifiers of images; {self.model} is for {task}")
        if isinstance(self.schedule, LinearTail) and (self.steps or 0) < self.schedule.constant_steps:
            raise ValueError(f"schedule.constant_steps {self.schedule.constant_steps}: set steps to at least as many")
        if (
            isinstance(self.schedule, Steps)
            and self.schedule.momentum == "reset"
            and not isinstance(self.optimizer, SGD)
        ):
            raise ValueError("schedule.momentum 'reset' applies to SGD only: with Adam, choose 'keep'")
        if self.shard and self.processes == 1:
            raise ValueError("shard needs several processes: start them with torchrun --nproc-per-node 2")
        if self.shard and not is_own(self.method) and methods.method(self.method).reparametrizes:
            raise ValueError(f"shard: weights that {self.method} recomputes in each pass cannot be gathered")
        if task == "ladder" and parts > 1:
            raise ValueError("the ladder's three passes share one batch: accumulation and processes must be 1")
        return self

    @property
    def task(self) -> models.TaskName:
        """The task, which follows from the data fields."""
        if self.data.labels is not None:
            return "ladder"
        if self.data.sequence is not None:
            return "continual"
        return "classification" if self.data.context is None else "language"

    @property
    def document(self) -> dict[str, Any]:
        """The content of config.json: the schema version and all values."""
        return {"schema": SCHEMA, **self.model_dump(mode="json")}

    @property
    def identity(self) -> dict[str, Any]:
        """What the result depends on: the schema version, and the hashed values that differ from its defaults."""
        changed = _changed_values(self)
        return {"schema": SCHEMA} | {name: value for name, value in changed.items() if name not in UNHASHED}

    @property
    def hash(self) -> str:
        """The sha256 of the identity as canonical JSON."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def run_name(self) -> str:
        """The name of the run's folder: a readable prefix and the start of the hash."""
        return f"{re.sub('[^A-Za-z0-9_.-]', '.', f'{self.model}-{self.method}')}-seed{self.seed}-{self.hash[:8]}"


def _changed_values(part: Part) -> dict[str, Any]:
    """The values of a part that differ from its defaults, and always its kind, since defaults depend on the kind."""
    changed = {}
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if name == "kind" or value != field.get_default(call_default_factory=True):
            changed[name] = _changed_values(value) if isinstance(value, Part) else value
    return changed


class ConfigError(UsageError):
    """An invalid configuration; the message names every field to change."""


def read_config(fields: dict[str, Any]) -> RunConfig:
    """Validate a configuration given as plain data, such as the content of config.json.

    Missing optional fields have their defaults, so files written before a field existed can be read. The schema
    version may be given and must be the current one.
    """
    fields = dict(fields)
    if (schema := fields.pop("schema", SCHEMA)) != SCHEMA:
        raise ConfigError(f"schema: this version of pbwn reads schema {SCHEMA}; found {schema!r}: use a newer pbwn")
    try:
        return RunConfig.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise ConfigError("; ".join(map(_describe_error, error.errors(include_url=False)))) from None


_KINDS: dict[str, dict[str, type[Part]]] = {
    name: {part.model_fields["kind"].default: part for part in parts}
    for name, parts in {
        "optimizer": (SGD, Adam, AdamW),
        "schedule": (Constant, Steps, Exponential, LinearTail, Cosine),
    }.items()
}


def _describe_error(error: ErrorDetails) -> str:
    """Name the field to change, as a user writes it, and what is wrong with it."""
    location, category, message = error["loc"], error["type"], plain_message(error["msg"])
    kinds = _KINDS.get(str(location[0]), {}) if location else {}
    if category in ("union_tag_invalid", "union_tag_not_found"):
        kind = str(error.get("ctx", {}).get("tag", ""))
        problem = f"unknown kind {kind!r}" if kind else "required field is missing"
        return f"{location[0]}.kind: {problem}: {suggest(kind, kinds)}"
    if category == "extra_forbidden":
        known = _known_fields(location)
        message = "unknown field" + (f": {suggest(str(location[-1]), known)}" if known else "")
    elif category not in ("value_error", "missing"):
        message += f", not {error['input']!r}"
    path = location[:1] + location[2:] if kinds else location  # pydantic inserts the kind
    field = ".".join(map(str, path))
    return f"{field} {message}" if message.startswith("must ") else f"{field}: {message}" if field else message


def _known_fields(location: tuple[int | str, ...]) -> list[str]:
    """The fields that are allowed where an unknown one was found; none if that is not a part of the configuration."""
    if len(location) == 1:
        return sorted(RunConfig.model_fields)
    part = Data if location[0] == "data" else _KINDS.get(str(location[0]), {}).get(str(location[1]))
    return sorted(part.model_fields) if part else []
