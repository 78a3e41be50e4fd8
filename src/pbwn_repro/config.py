"""One validated, frozen run configuration; the hash of what its result depends on names the run.

The hash covers the schema version and the values that differ from that version's defaults. So an optional field can be
added, with a default that means 'as before', and every run keeps its name. A default never changes within a version:
raise SCHEMA instead, and have `pbwn migrate` bring runs to it.
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
from pbwn_repro.errors import UsageError, listed, plain
from pbwn_repro.importing import is_own

SCHEMA = 2
# How often a run is observed on its way. Everything random is seeded anew in each step, and neither a line of metrics,
# nor an evaluation, nor a checkpoint changes a weight or a running statistic of the first process: the model and
# its test error are the same, byte for byte. The best error over the evaluations and the curve of the loss do depend on
# it, so an artefact that shows those asks for runs that were observed as its plan says. All other fields count, also
# those that change no more than the order of a sum (processes, shard, compile).
OBSERVATION = frozenset({"evaluate_every", "checkpoint_every", "log_every"})
# Nor does this: it decides whether a run that meets a value that is not finite ends there or continues in its folder.
# A run that has skipped steps says so in its result.
UNHASHED = OBSERVATION | {"on_nonfinite"}

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Part(BaseModel):
    """What all parts of a configuration have in common: they do not change, and refuse fields they do not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


class SGD(Part):
    """Stochastic gradient descent."""

    kind: Literal["sgd"] = "sgd"
    lr: Rate = 0.1
    momentum: Share = 0.9
    nesterov: bool = False
    weight_decay: Decay = 0.0

    def make(self, model: nn.Module) -> Optimizer:
        """The optimizer of all parameters."""
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
        """The optimizer of all parameters."""
        return torch.optim.Adam(model.parameters(), lr=self.lr, weight_decay=self.weight_decay, fused=True)


class AdamW(Part):
    """Adam with decoupled weight decay, of matrices alone: not of biases and of the scales of normalisations."""

    kind: Literal["adamw"] = "adamw"
    lr: Rate = 0.001
    betas: tuple[Share, Share] = (0.9, 0.999)
    weight_decay: Decay = 0.0

    def make(self, model: nn.Module) -> Optimizer:
        """The optimizer of all parameters, in two groups."""
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
        """The rate of a step."""
        return initial

    def resets_momentum(self, step: int, steps_per_epoch: int) -> bool:
        """Whether the momentum buffers are set to zero before a step."""
        return False


class Constant(Schedule):
    """One learning rate for the whole run."""

    kind: Literal["constant"] = "constant"


class Steps(Schedule):
    """The rate falls by a factor at the start of some epochs, counted from 1 as in the paper.

    The authors set the momentum buffers to zero at each drop.
    """

    kind: Literal["steps"] = "steps"
    drops: tuple[Count, ...]
    factor: Annotated[float, Field(gt=0, lt=1)]
    momentum: Literal["keep", "reset"] = "reset"

    def rate(self, initial: float, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The rate of a step."""
        epoch = step // steps_per_epoch + 1
        return initial * self.factor ** sum(epoch >= drop for drop in self.drops)

    def resets_momentum(self, step: int, steps_per_epoch: int) -> bool:
        """Where the rate drops, as the authors do."""
        epochs, within = divmod(step, steps_per_epoch)
        return self.momentum == "reset" and step > 0 and within == 0 and epochs + 1 in self.drops


class Exponential(Schedule):
    """The rate falls exponentially over the epochs, to `final` times the initial one at the end."""

    kind: Literal["exponential"] = "exponential"
    final: Annotated[float, Field(gt=0, lt=1)] = 0.01

    def rate(self, initial: float, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The rate of a step."""
        share = (step // steps_per_epoch + 1) / -(-total_steps // steps_per_epoch)
        return initial * math.pow(self.final, share)


class LinearTail(Schedule):
    """A constant rate for so many steps, then falling linearly to 0 at the end."""

    kind: Literal["linear-tail"] = "linear-tail"
    constant_steps: Count

    def rate(self, initial: float, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The rate of a step."""
        tail = total_steps - self.constant_steps
        return initial * min(1.0, (total_steps - step) / tail) if tail else initial


class Cosine(Schedule):
    """A rate that rises linearly over the first steps, then falls along half a cosine to `final` times the initial."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    final: Share = 0.0

    def rate(self, initial: float, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The rate of a step."""
        if step < self.warmup_steps:
            return initial * (step + 1) / self.warmup_steps
        share = (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps)
        return initial * (self.final + (1 - self.final) * (1 + math.cos(math.pi * share)) / 2)


class Data(Part):
    """A data set by name and digest, never by place; the splits to train and to test on.

    Args:
        labels: the number of labeled examples, where the others are learnt from without labels.
        context: the length of the sequences, where the set is a text.
        sequence: what changes from one sub-task to the next, where a model has to learn many of them one after the
            other; a sub-task has so many `examples` of the set, and sees them in so many `passes`.
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
    """Everything that a run's result depends on, and what its name does not depend on (`UNHASHED`).

    Args:
        model: a name of `pbwn_repro.models`, or MODULE:CALLABLE, with its own options in `model_options`.
        method: a name of `pbwn_repro.methods`, or MODULE:CLASS. What is the user's own is not imported to read this.
        init: the initialisation that the paper states for all methods, the authors' own, which differs by method, or
            LeCun's, whose rows have norm 1.
        scope: the layers that the paper, or the authors' code, constrains.
        epochs: the length of the run; `steps` instead for runs that count iterations.
        batch_size: examples of a step, over all processes and accumulated parts.
        accumulation: the number of parts that a step's batch is worked through in.
        evaluate_every: steps between evaluations; after each epoch if None.
        checkpoint_every: steps between checkpoints; after each epoch if None.
        log_every: the number of steps that a line of metrics averages the training loss over.
        on_nonfinite: whether a step whose loss or gradient is not finite ends the run, or is skipped.
        processes: how many share the work; `shard` spreads weights over them (FSDP2).
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
            raise ValueError("no length: add --epochs N or --steps N")
        if self.epochs is not None and self.steps is not None:
            raise ValueError("--epochs and --steps exclude each other: give one of the two")
        parts = self.accumulation * self.processes
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size {self.batch_size} cannot be divided into {parts} equal parts (accumulation "
                f"{self.accumulation}, processes {self.processes}): choose a multiple of {parts}"
            )
        task = models.find(self.model).task
        if (task == "ladder") != (self.data.labels is not None):
            raise ValueError("the ladder, and no other model, needs a number of labels (data.labels, --labels)")
        if task is not None and (task == "language") != (self.data.context is not None):
            needs = "text: give --data text:FILE" if task == "language" else "images: data.context is for text"
            raise ValueError(f"{self.model} learns from {needs}")
        if len({part is None for part in (self.data.sequence, self.data.examples, self.data.passes)}) > 1:
            raise ValueError("sub-tasks need data.sequence, data.examples and data.passes, all three")
        if self.data.sequence is not None and task not in (None, "classification"):
            raise ValueError(f"data.sequence is for classifiers of images; {self.model} is for {task}")
        if isinstance(self.schedule, LinearTail) and (self.steps or 0) < self.schedule.constant_steps:
            raise ValueError(f"schedule.constant_steps {self.schedule.constant_steps} needs as many steps or more")
        if (
            isinstance(self.schedule, Steps)
            and self.schedule.momentum == "reset"
            and not isinstance(self.optimizer, SGD)
        ):
            raise ValueError("schedule.momentum 'reset' sets SGD's momentum to zero: with Adam, choose 'keep'")
        if self.shard and self.processes == 1:
            raise ValueError("shard splits the weights over processes: start several with torchrun --nproc-per-node 2")
        if self.shard and not is_own(self.method) and methods.method(self.method).reparametrizes:
            raise ValueError(f"shard: weights that {self.method} recomputes in each pass cannot be gathered")
        if task == "ladder" and parts > 1:
            raise ValueError("the ladder's three passes share one batch: accumulation and processes have to be 1")
        return self

    @property
    def task(self) -> models.TaskName:
        """What the model is asked to do, as the data say."""
        if self.data.labels is not None:
            return "ladder"
        if self.data.sequence is not None:
            return "continual"
        return "classification" if self.data.context is None else "language"

    @property
    def document(self) -> dict[str, Any]:
        """What config.json holds: the schema version and all values."""
        return {"schema": SCHEMA, **self.model_dump(mode="json")}

    @property
    def identity(self) -> dict[str, Any]:
        """What the result depends on: the schema version, and the values that differ from its defaults."""
        differing = _differing(self)
        return {"schema": SCHEMA} | {name: value for name, value in differing.items() if name not in UNHASHED}

    @property
    def hash(self) -> str:
        """The sha256 of the identity as JSON in one fixed form."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def run_name(self) -> str:
        """The name of the run's folder: for people first, then unique."""
        return f"{re.sub('[^A-Za-z0-9_.-]', '.', f'{self.model}-{self.method}')}-seed{self.seed}-{self.hash[:8]}"


def _differing(part: Part) -> dict[str, Any]:
    """The values of a part that differ from its defaults; its kind is told always, as each kind has its own."""
    found = {}
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if name == "kind" or value != field.get_default(call_default_factory=True):
            found[name] = _differing(value) if isinstance(value, Part) else value
    return found


class ConfigError(UsageError):
    """A configuration that cannot be run, with every field that has to change."""


def read_config(fields: dict[str, Any]) -> RunConfig:
    """Validate a configuration given as plain data; the error names each field to change and what was found.

    Optional fields that are not there have their defaults, as in what was written before there was such a field. The
    schema version may be given, as in config.json, and has to be the present one.
    """
    fields = dict(fields)
    if (schema := fields.pop("schema", SCHEMA)) != SCHEMA:
        raise ConfigError(f"schema: this version of pbwn reads schema {SCHEMA}; found {schema!r}: use a newer pbwn")
    try:
        return RunConfig.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise ConfigError("; ".join(map(_told, error.errors(include_url=False)))) from None


_KINDS: dict[str, dict[str, type[Part]]] = {
    name: {part.model_fields["kind"].default: part for part in parts}
    for name, parts in {
        "optimizer": (SGD, Adam, AdamW),
        "schedule": (Constant, Steps, Exponential, LinearTail, Cosine),
    }.items()
}


def _told(problem: ErrorDetails) -> str:
    """The field to change, as a user writes it, and what is wrong with it."""
    place, what, message = problem["loc"], problem["type"], plain(problem["msg"])
    kinds = _KINDS.get(str(place[0]), {}) if place else {}
    if what in ("union_tag_invalid", "union_tag_not_found"):
        kind = str(problem.get("ctx", {}).get("tag", ""))
        return f"{place[0]}.kind: {f'there is no {kind!r}' if kind else 'it is missing'}: {listed(kind, kinds)}"
    if what == "extra_forbidden":
        known = _fields_beside(place)
        message = "there is no such field" + (f": {listed(str(place[-1]), known)}" if known else "")
    elif what not in ("value_error", "missing"):
        message += f", not {problem['input']!r}"
    path = place[:1] + place[2:] if kinds else place  # pydantic tells the kind too
    field = ".".join(map(str, path))
    return f"{field} {message}" if message.startswith("must ") else f"{field}: {message}" if field else message


def _fields_beside(place: tuple[int | str, ...]) -> list[str]:
    """The fields that stand where one is unknown; none where that is not a part of ours."""
    if len(place) == 1:
        return sorted(RunConfig.model_fields)
    part = Data if place[0] == "data" else _KINDS.get(str(place[0]), {}).get(str(place[1]))
    return sorted(part.model_fields) if part else []
