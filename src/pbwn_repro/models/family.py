"""What a network's file says of it besides the layers: recipe, initialisation, constrained layers, peculiarities."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor, nn

from pbwn_repro.errors import UsageError, listed
from pbwn_repro.importing import imported, where
from pbwn_repro.models.initialisation import Scheme, initialise

Init = Literal["paper", "authors", "lecun"]
Scope = Literal["paper", "authors"]
TaskName = Literal["classification", "ladder", "language", "continual"]
Recipe = Mapping[str, Any]
Layers = Mapping[str, Any]
"""Arguments of `pbwn.select` and `pbwn.attach` that say which weights are constrained."""

SET_BY_DATA = ("num_classes", "in_channels", "image_size", "context")
"""Arguments of constructors that the data decide."""
CLASSIFIER_FREE: Layers = {"output_layer": "classifier"}
OWN_EXAMPLE = "MODULE:CALLABLE, such as mypackage.models:build"


@dataclass(frozen=True)
class Family:
    """Networks that one constructor builds, and what is special about them.

    Args:
        pattern: of their names; its groups are the constructor's positional arguments.
        members: the names that are listed. Write them out: the command line reads them without importing this.
        constructor: its other arguments are the network's options; those of `SET_BY_DATA` come from the data.
        recipe: the fields of a configuration that the network's experiment has; method and seed are open.
        paper: the initialisation that the paper states, the same for all methods; None: as the constructor leaves it.
        authors: the one of the published code's 'Normal' networks, where that is another.
        authors_start: how else a method's network starts in the authors' code, by the method's name.
        layers: the weights that a method constrains; `authors_layers` those that the authors' code does, if others.
        free_at_start: the methods whose first projection comes after the first step, as in the authors' code.
        task: what the network is for.
        work: the layers that take most of its time, by which estimates know how fast it is.
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
    """A network by name."""

    name: str
    family: Family
    arguments: tuple[int, ...] = ()

    @property
    def recipe(self) -> dict[str, Any]:
        """The fields of a configuration that the network's experiment has."""
        return {"model": self.name, **self.family.recipe}

    @property
    def task(self) -> TaskName | None:
        """What the network is for; None where that is for the data to say."""
        return self.family.task

    def layers(self, scope: Scope = "paper") -> Layers:
        """The weights that a method constrains, as the paper, or the authors' code, has it."""
        authors = self.family.authors_layers
        return authors if scope == "authors" and authors is not None else self.family.layers

    def projects_initially(self, method: str) -> bool:
        """Whether a method may project before the first step."""
        return method not in self.family.free_at_start

    def scheme(self, init: str = "paper") -> Scheme | None:
        """The initialisation: 'lecun' is the paper's, but LeCun's for weights. None: as the network is built."""
        paper, authors = self.family.paper, self.family.authors
        if init not in ("paper", "authors", "lecun"):
            raise UsageError(f"init={init!r} is unknown: choose 'paper', 'authors' or 'lecun', or pass a Scheme")
        if paper is None:
            if init != "paper":
                raise UsageError(f"init={init!r}: {self.name} starts as it is built; leave init out")
            return None
        if init == "lecun":
            return replace(paper, convolution="lecun", linear="lecun")
        return authors if init == "authors" and authors is not None else paper

    def start(self, method: str, init: Init = "paper") -> dict[str, Any]:
        """How the weights of a method's network start, as arguments of `build`.

        In the authors' code the initialiser matched exact type names and passed over the layers of some methods.
        """
        usual: dict[str, Any] = {"init": self.scheme(init)}
        return usual | dict(self.family.authors_start(method)) if init == "authors" else usual

    def accepted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Of what the data tell, the arguments that the constructor takes."""
        taken = inspect.signature(self.family.constructor).parameters
        return {name: value for name, value in arguments.items() if name in taken}

    def build(self, *, init: str | Scheme | None = "paper", **options: Any) -> nn.Module:
        """The network, initialised from torch's default generator; an option that is None has its default."""
        start = self.scheme(init) if isinstance(init, str) else init
        known = list(inspect.signature(self.family.constructor).parameters)[len(self.arguments) :]
        own = [name for name in known if name not in SET_BY_DATA]
        given = {name: value for name, value in options.items() if value is not None}
        for option in given:
            if option not in known:
                raise TypeError(
                    f"{self.name} has no option {option!r}: {listed(option, own) if own else 'it has none'}"
                )
        model = self.family.constructor(*self.arguments, **given)
        if start is not None:
            initialise(model, start)
        return model


class OwnModel(Network):
    """A model of the user's, named as MODULE:CALLABLE; it is imported when it is needed."""

    def __init__(self, name: str) -> None:
        """Take the name; whether there is such a thing shows when it is built."""
        super().__init__(name, Family("", (), self._make, OWN_RECIPE, layers={}))

    @property
    def task(self) -> None:
        """The data say what the model is for."""
        return None

    def accepted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Of what the data tell, the arguments that the callable names; with **options, the number of classes."""
        try:
            taken = inspect.signature(self._callable()).parameters
        except (TypeError, ValueError):  # of what is not written in Python
            return {}
        taken_in_any_case = ["num_classes"] if any(each.kind is each.VAR_KEYWORD for each in taken.values()) else []
        return {name: value for name, value in arguments.items() if name in (*taken, *taken_in_any_case)}

    def build(self, *, init: str | Scheme | None = "paper", **options: Any) -> nn.Module:
        """Call what the name stands for; its weights start as it leaves them."""
        if isinstance(init, str):
            self.scheme(init)
        return self._make(**options)

    def check_scores(self, scores: Any, inputs: Tensor, needed: tuple[int, ...]) -> None:
        """Refuse a model whose answers are no scores: of the shape needed, or with more classes than that."""
        if isinstance(scores, Tensor) and scores.shape[:-1] == needed[:-1] and scores.shape[-1] >= needed[-1]:
            return
        answer = (
            f"scores of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        )
        raise UsageError(
            f"{self.name} returns {answer} for inputs of shape {tuple(inputs.shape)}: scores of shape {needed} are "
            "needed, with the classes as the last dimension"
        )

    def _callable(self) -> Callable[..., Any]:
        found = imported(self.name, kind="model", example=f"{OWN_EXAMPLE}, or a name such as resnet-20")
        if isinstance(found, nn.Module):
            raise UsageError(
                f"{self.name} is a model already: name the function that builds one, so that the seed sets its weights"
            )
        if not callable(found):
            raise UsageError(f"{self.name} is of type {type(found).__name__}: a model, or what returns one, is needed")
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
    """The model that a callable returns; what goes wrong is told with the call."""
    try:
        made = maker(**arguments)
    except (Exception, SystemExit) as error:
        hint = ". Arguments are given with --set: see --help" if isinstance(error, TypeError) else ""
        raise UsageError(
            f"{target}({', '.join(f'{name}={value!r}' for name, value in arguments.items())}) failed with "
            f"{type(error).__name__}: {error}{where(error)}{hint}"
        ) from error
    if not isinstance(made, nn.Module):
        raise UsageError(f"{target} returned something of type {type(made).__name__}: a torch.nn.Module is needed")
    return made
