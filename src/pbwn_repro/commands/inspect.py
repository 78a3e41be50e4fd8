"""`pbwn inspect`: which weights of a model would be constrained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pbwn_repro.commands import announce
from pbwn_repro.commands.names import completing, networks
from pbwn_repro.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pbwn_repro.models import Network


def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="MODULE:CALLABLE that returns a model, or a model of the paper such as resnet-20.",
            autocompletion=completing(also=networks),
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An argument of the callable, as JSON; may be repeated."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Constrain only these, such as 'layers.*'; may be repeated."),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Also constrain these, such as 'embed*'; may be repeated."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Do not constrain these, such as '*.gate'; may be repeated."),
    ] = None,
    axes: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN=AXES", help="Neuron axes of a weight, such as experts=[0,1]; may be repeated."),
    ] = None,
    output_layer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The output layer: auto, its name, or none to constrain it too."),
    ] = None,
    direction: Annotated[
        Literal["incoming", "outgoing"], typer.Option(help="Which weights of a neuron get unit norm.")
    ] = "incoming",
    frozen: Annotated[
        Literal["leave", "constrain"], typer.Option(help="What to do with weights that are not trained.")
    ] = "leave",
    strict: Annotated[bool, typer.Option("--strict", help="Fail if the axes of a weight are unknown.")] = False,
    invariance: Annotated[
        bool, typer.Option("--invariance", help="Also test whether the scale of each weight matters, by rescaling it.")
    ] = False,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHAPE",
            help="Random inputs for --invariance: 8x3x32x32, or 8x128:96 for token ids below 96; may be repeated.",
        ),
    ] = None,
) -> None:
    """Show which weights of a model would be constrained, over which axes, and why the others would not.

    The model is not changed. Modules in the current folder are found too. With --invariance the model is called with
    random inputs; for a model that is not the paper's, give their shapes with --inputs.

    Examples: pbwn inspect resnet-20; pbwn inspect mymodels:build --set depth=12 --skip '*.gate';
    pbwn inspect torch.nn:Transformer --set d_model=64
    """
    announce(f"Building {target} ...")
    import pbwn
    from pbwn_repro.models import find
    from pbwn_repro.models.family import OWN_EXAMPLE
    from pbwn_repro.runs.resolution import parse

    arguments = dict(parse(each, form="NAME=VALUE, such as depth=12") for each in set_ or ())
    try:
        network = find(target)
    except UsageError as error:
        raise UsageError(f"{error}. For a model of your own, write {OWN_EXAMPLE}") from None
    overrides = dict(network.layers())
    if output_layer is not None:
        overrides["output_layer"] = None if output_layer == "none" else output_layer
    model = _model(network, arguments)
    try:
        found = pbwn.select(
            model,
            only=only or (),
            also=also or (),
            skip=[*overrides.pop("skip", ()), *(skip or ())],
            axes=dict(_axes(each) for each in axes or ()),
            direction=direction,
            strict=strict,
            frozen=frozen,
            **overrides,
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"{target}: {error}") from error
    typer.echo(found)
    if invariance or inputs:
        examples = [_random_input(shape) for shape in inputs or _default_inputs(network, arguments)]
        try:
            scales = pbwn.invariance(model, *examples, selection=found)
        except (TypeError, ValueError) as error:
            shape = next((each for each in inputs or () if ":" not in each), None)
            ids = f". For token ids, write --inputs {shape}:VOCABULARY" if shape and "Long" in str(error) else ""
            raise UsageError(f"{target}: {error}{ids}") from error
        typer.echo(f"\n{scales}")


def _default_inputs(network: Network, arguments: Mapping[str, Any]) -> list[str]:
    """Return the input shape of one of the paper's models: images, or characters of a text."""
    import inspect as signatures

    parameters = signatures.signature(network.family.constructor).parameters
    sizes = {
        name: arguments.get(name, parameters[name].default)
        for name in ("num_classes", "in_channels", "image_size", "context")
        if name in parameters
    }
    if "image_size" in sizes:
        return [f"4x{sizes['in_channels']}x{sizes['image_size']}x{sizes['image_size']}"]
    if "context" in sizes:
        return [f"2x{sizes['context']}:{sizes['num_classes']}"]
    raise UsageError(
        f"{network.name}: the shape of the model's input is unknown: give --inputs 8x3x32x32 for such images, or "
        "--inputs 8x128:96 for token ids below 96"
    )


def _random_input(text: str) -> Tensor:
    """Return reproducible random input: normal numbers, or integers below a limit if one is given."""
    import torch

    shape, separator, limit = text.partition(":")
    sizes = shape.split("x")
    if not all(size.isdigit() and int(size) for size in sizes) or (separator and not limit.isdigit()):
        raise UsageError(f"--inputs {text!r}: write sizes such as 8x3x32x32, or 8x128:96 for token ids below 96")
    generator = torch.Generator().manual_seed(0)
    if separator:
        return torch.randint(0, int(limit), tuple(map(int, sizes)), generator=generator)
    return torch.randn(tuple(map(int, sizes)), generator=generator)


def _model(network: Network, arguments: Mapping[str, Any]) -> nn.Module:
    """Build a model of the paper or the user's own; MODULE:NAME may also name a model that is already built."""
    from torch import nn

    from pbwn_repro.importing import import_object, is_own
    from pbwn_repro.models.family import OWN_EXAMPLE

    if not is_own(network.name):
        try:
            return network.build(**arguments)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{network.name} cannot be built: {error}") from error
    found = import_object(network.name, kind="model", example=f"{OWN_EXAMPLE}, or a name such as resnet-20")
    if not isinstance(found, nn.Module):
        return network.build(**arguments)
    if arguments:
        raise UsageError(f"{network.name} is a model already: it takes no --set {', '.join(arguments)}")
    return found


def _axes(text: str) -> tuple[str, tuple[int, ...]]:
    from pbwn_repro.runs.resolution import parse

    name, value = parse(text, "--axes", "NAME=VALUE, such as experts=[0,1]")
    found = value if isinstance(value, list) else [value]
    if not found or not all(isinstance(each, int) and not isinstance(each, bool) for each in found):
        raise UsageError(f"--axes {text!r}: axes are integers, such as {name}=[0,1]")
    return name, tuple(found)
