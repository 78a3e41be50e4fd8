"""What defines a network besides its layers: recipe, initialisation, constrained layers, special cases."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor, nn

from pbwn_repro.errors import UsageError, suggest
from pbwn_repro.importing import import_object, user_location
from pbwn_repro.models.initialisation import Scheme, initialise

Init = Literal["paper", "authors", "lecun"]
Scope = Literal["paper", "authors"]
TaskName = Literal["classification", "ladder", "language", "continual"]
Recipe = Mapping[str, Any]
Layers = Mapping[str, Any]
"""Arguments of `pbwn.select` and `pbwn.attach` that determine which weights are constrained."""

SET_BY_DATA = ("num_classes", "in_channels", "image_size", "context")
"""Constructor arguments that follow from the data."""
CLASSIFIER_FREE: Layers = {"output_layer": "classifier"}
OWN_EXAMPLE = "MODULE:CALLABLE, such as mypackage.models:build"


@dataclass(frozen=True)
class Family:
    """Networks built by the same constructor, and their special cases.

    Args:
        pattern: regular expression of the names; its groups are the constructor's positional arguments.
        members: the names to list, as literals, which the command line reads without importing the module.
        constructor: its other arguments are the network's options; those in `SET_BY_DATA` follow from the data.
        recipe: the configuration fields of the network's experiment, without method and seed.
        paper: the initialisation stated in the paper, the same for all methods; None keeps the constructor's.
        authors: the initialisation of the 'Normal' networks in the authors' code, if different.
        authors_start: maps a method's name to the arguments of `build` that differ for it in the authors' code.
        layers: the weights that a method constrains.
        authors_layers: the weights that the authors' code constrains, if different.
        free_at_start: the methods whose first projection follows the first step, as in the authors' code.
        task: the task of the network.
        work: the kind of layer that dominates the run time, on which time estimates are based.
    """

    pattern: str
    members: tuple[str, ...]
    constructor: Callable[..., nn.Module]
    recipe: Recipe
    paper: Scheme | None = None
    authors: Scheme | None = None
    authors_start: Callable[[str], Mapping[str, Any]] = lambda method: {}
    layers: Layers = field(default_factory=lambda: CLASSIFIER_FREE)
    authors_layers: Layers | None = None
    free_at_start: Collection[str] = ()
    task: TaskName = "classification"
    work: Literal["convolutional", "linear"] = "convolutional"


@dataclass(frozen=True)
class Network:
    """A named network of a family."""

    name: str
    family: Family
    arguments: tuple[int, ...] = ()

    @property
    def recipe(self) -> dict[str, Any]:
        """The configuration fields of the network's experiment, without method and seed."""
        return {"model": self.name, **self.family.recipe}

    @property
    def task(self) -> TaskName | None:
        """The task of the network; None if the data determine it."""
        return self.family.task

    def layers(self, scope: Scope = "paper") -> Layers:
        """Return which weights a method constrains, according to the paper or the authors' code."""
        authors = self.family.authors_layers
        return authors if scope == "authors" and authors is not None else self.family.layers

    def projects_initially(self, method: str) -> bool:
        """Return whether a method may project before the first step."""
        return method not in self.family.free_at_start

    def scheme(self, init: str = "paper") -> Scheme | None:
        """Return the initialisation scheme; None keeps the constructor's.

        'lecun' is the paper's scheme with LeCun's initialisation of the weights.
        """
        paper, authors = self.family.paper, self.family.authors
        if init not in ("paper", "authors", "lecun"):
            raise UsageError(f"init={init!r} is unknown: choose 'paper', 'authors' or 'lecun', or pass a Scheme")
        if paper is None:
            if init != "paper":
                raise UsageError(f"init={init!r}: {self.name} keeps the initialisation of its constructor; omit init")
            return None
        if init == "lecun":
            return replace(paper, convolution="lecun", linear="lecun")
        return authors if init == "authors" and authors is not None else paper

    def start(self, method: str, init: Init = "paper") -> dict[str, Any]:
        """Return the arguments of `build` that determine the initial weights for a method.

        In the authors' code the initialiser matched exact type names and skipped the layers of some methods.
        """
        arguments: dict[str, Any] = {"init": self.scheme(init)}
        return arguments | dict(self.family.authors_start(method)) if init == "authors" else arguments

    def accepted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, out of those that follow from the data, that the constructor accepts."""
        parameters = inspect.signature(self.family.constructor).parameters
        return {name: value for name, value in arguments.items() if name in parameters}

    def build(self, *, init: str | Scheme | None = "paper", **options: Any) -> nn.Module:
        """Build the network, initialised from torch's default generator; an option that is None takes its default."""
        scheme = self.scheme(init) if isinstance(init, str) else init
        known = list(inspect.signature(self.family.constructor).parameters)[len(self.arguments) :]
        own = [name for name in known if name not in SET_BY_DATA]
        given = {name: value for name, value in options.items() if value is not None}
        for option in given:
            if option not in known:
                raise TypeError(
                    f"{self.name} has no option {option!r}: {suggest(option, own) if own else 'it takes no options'}"
                )
        model = self.family.constructor(*self.arguments, **given)
        if scheme is not None:
            initialise(model, scheme)
        return model


class OwnModel(Network):
    """A user's own model, named as MODULE:CALLABLE and imported on demand."""

    def __init__(self, name: str) -> None:
        """Store the name; it is not resolved before the model is built."""
        super().__init__(name, Family("", (), self._make, OWN_RECIPE, layers={}))

    @property
    def task(self) -> None:
        """None: the data determine the task."""
        return None

    def accepted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that the callable names; one with **options also gets the number of classes."""
        try:
            parameters = inspect.signature(self._callable()).parameters
        except (TypeError, ValueError):  # raised for some callables that are not written in Python
            return {}
        names = set(parameters)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            names.add("num_classes")
        return {name: value for name, value in arguments.items() if name in names}

    def build(self, *, init: str | Scheme | None = "paper", **options: Any) -> nn.Module:
        """Call the user's callable; the initial weights are its own."""
        if isinstance(init, str):
            self.scheme(init)  # validates it
        return self._make(**options)

    def check_scores(self, scores: Any, inputs: Tensor, expected: tuple[int, ...]) -> None:
        """Raise UsageError unless `scores` has the expected shape, or more classes than expected."""
        if isinstance(scores, Tensor) and scores.shape[:-1] == expected[:-1] and scores.shape[-1] >= expected[-1]:
            return
        found = f"scores of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise UsageError(
            f"{self.name} returns {found} for inputs of shape {tuple(inputs.shape)}: expected scores of shape "
            f"{expected}, with the classes as the last dimension"
        )

    def _callable(self) -> Callable[..., Any]:
        found = import_object(self.name, kind="model", example=f"{OWN_EXAMPLE}, or a name such as resnet-20")
        if isinstance(found, nn.Module):
            raise UsageError(
                f"{self.name} is already a model: name a function that builds it, so that the seed sets its weights"
            )
        if not callable(found):
            raise UsageError(f"{self.name} is of type {type(found).__name__}: expected a callable that returns a model")
        maker: Callable[..., Any] = found
        return maker

    def _make(self, **options: Any) -> nn.Module:
        return call_for_model(self.name, self._callable(), options)


OWN_RECIPE: Recipe = {
    "data": {"name": ""},
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    "batch_size": 128,
    "log_every": 10,
}


def call_for_model(target: str, maker: Callable[..., Any], arguments: Mapping[str, Any]) -> nn.Module:
    """Return the model that a callable builds; the error for a failure shows the call."""
    try:
        model = maker(**arguments)
    except (Exception, SystemExit) as error:
        hint = ". Pass arguments with --set: see --help" if isinstance(error, TypeError) else ""
        raise UsageError(
            f"{target}({', '.join(f'{name}={value!r}' for name, value in arguments.items())}) failed with "
            f"{type(error).__name__}: {error}{user_location(error)}{hint}"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"{target} returned an object of type {type(model).__name__}: expected a torch.nn.Module")
    return model
