"""From what a user asks for to a full configuration: recipe, file, options, data, and where the data come from."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pbwn_repro.config import ConfigError, RunConfig, read_config
from pbwn_repro.data import DataError, DataSet, TextSet, UnknownSetError, is_text, load, original
from pbwn_repro.data.cache import Store, cache_root
from pbwn_repro.data.download import Quiet
from pbwn_repro.data.loading import PLACES, absolute, find_source, usual_preparation
from pbwn_repro.data.text import KNOWN_TEXTS
from pbwn_repro.errors import UsageError
from pbwn_repro.importing import imported, is_own
from pbwn_repro.models import recipe
from pbwn_repro.models.family import OWN_EXAMPLE
from pbwn_repro.tasks import AnySet

USUAL_CONTEXT = 128  # of texts, for models that have no recipe
# Options that stand for a field further down.
_SHORTHANDS = {"lr": "optimizer.lr", "weight_decay": "optimizer.weight_decay", "labels": "data.labels"}


def resolve(
    overrides: Mapping[str, Any],
    *,
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    processes: int = 1,
    dataset: AnySet | None = None,
) -> tuple[RunConfig, AnySet]:
    """Complete a user's overrides with the network's recipe, and load the data that they name unless given.

    Overrides are fields of the configuration; one further down is written with dots, such as `optimizer.lr`. `data` is
    what `pbwn_repro.data.load` takes: the configuration holds the set's name and digest instead.
    """
    fields, source = checked(overrides, processes)  # what is wrong is said before anything is fetched
    data = fields["data"]
    splits = splits_of(data)
    dataset = dataset or load(source, data_dir=data_dir, cache_dir=cache_dir, splits=splits)
    if dataset.name != data["name"]:  # such as hf:PATH, which turns out to be cifar10-jpeg
        part = prepared({**recipe(fields["model"])["data"], "train": splits[:-1], "test": splits[-1]}, dataset.name)
        fields["data"] = data = {**part, **_kept(overrides)}
    data.update(name=dataset.name, digest=dataset.digest)
    return read_config(fields), dataset


def checked(overrides: Mapping[str, Any], processes: int = 1) -> tuple[dict[str, Any], str]:
    """Complete a user's overrides; a field that is unknown or out of range is an error. No data are needed."""
    fields, source = complete(overrides)
    fields["processes"] = processes
    read_config({**fields, "data": {**fields["data"], "digest": ""}})
    return fields, source


def splits_of(data: Mapping[str, Any]) -> list[str]:
    """The splits that a configuration's part on data asks for, the one to test on last."""
    return [*data.get("train", ["train"]), data.get("test", "test")]


def joined(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides of a file and of a command line, which counts more.

    The length of a run is given as epochs or as steps, so one takes the place of the other. Another source of the same
    data takes the place of their name and digest alone: how they are used stays as the file has it. Of other data the
    number of labels stays.
    """
    kept = {name: value for name, value in file.items() if name not in ("epochs", "steps") or value is not None}
    if "epochs" in given or "steps" in given:
        kept = {name: value for name, value in kept.items() if name not in ("epochs", "steps")}
    data, source = kept.get("data"), given.get("data")
    if isinstance(data, Mapping) and isinstance(source, str):
        is_same = original(source) == original(str(data.get("name"))) or source.startswith(PLACES)
        used = [name for name in data if name not in ("name", "digest")] if is_same else ["labels"]
        kept |= {f"data.{name}": data[name] for name in used if data.get(name) is not None}
    return {**kept, **given}


def complete(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Complete a user's overrides with the network's recipe; return the fields, and the source of the data.

    Only the digest is missing, and the name of a set that was given by its location: both are read from the data.
    """
    if "model" not in overrides:
        raise ConfigError("no model given: pass --model, such as --model resnet-20")
    model = _name("model", overrides["model"])
    fields = copy.deepcopy(recipe(model))
    if is_own(model):  # a misspelt name is told before anything else
        imported(model, kind="model", example=OWN_EXAMPLE)
    if not fields["data"]["name"] and "data" not in overrides:
        raise ConfigError(
            f"no data set given, and {overrides['model']} has no recipe that names one: pass --data, such as cifar10"
        )
    wanted = dict(overrides)
    source = wanted.pop("data", None)
    if isinstance(source, Mapping):  # a whole data part, as in the configuration of another run
        fields["data"] = dict(source)
        source = _name("data.name", source.get("name"))
    elif source is not None:
        fields["data"] = prepared(fields["data"], _name("data", source))
    wanted = {_SHORTHANDS.get(name, name): value for name, value in wanted.items()}
    for name in sorted(wanted, key=lambda name: (name.count("."), not name.endswith(".kind"))):
        _set(fields, name, wanted[name])  # whole parts, then their kinds, then the fields of those
    if "steps" in wanted and "epochs" not in wanted:
        fields.pop("epochs", None)
    if "epochs" in wanted and "steps" not in wanted:
        fields.pop("steps", None)
    fields.setdefault("method", "pbwn")
    return fields, source or fields["data"]["name"]


def _name(field: str, value: object) -> str:
    """A name that is looked up before the whole configuration is validated."""
    if not isinstance(value, str):
        raise ConfigError(f"{field}: a name is needed; found {value!r}")
    return value


def parse(
    assignment: str, option: str = "--set", form: str = "FIELD=VALUE, such as schedule.factor=0.5"
) -> tuple[str, Any]:
    """Read `name=value`, as an option has it; the value is JSON, or else a word."""
    name, separator, text = assignment.partition("=")
    if not separator or not name:
        raise ConfigError(f"{option} {assignment!r}: write {form}")
    try:
        return name, json.loads(text)
    except json.JSONDecodeError:
        return name, text


def read_wishes(file: Path | None, assignments: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a user asks for by a file, by `--set` and by other options, of which the later ones count more."""
    return joined(_read_file(file) if file else {}, {**dict(map(parse, assignments)), **given})


def _read_file(path: Path) -> dict[str, Any]:
    """The fields in a JSON file; the config.json of a run is one too."""
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"--config {path}: there is no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"--config {path}: a file is needed; this is a folder") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path}: not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"--config {path}: an object with fields is needed; found {type(fields).__name__}")
    return fields


def prepared(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The data part of a recipe for another set than its own, or a copy of it.

    A copy is prepared as the recipe says, another set as is usual for it.
    """
    if data["name"] == name:
        return dict(data)
    if is_text(name):
        return {"name": name, "context": data.get("context", USUAL_CONTEXT)}
    usual = {"normalisation": "unit-range", "augmentation": "none"}
    if original(name) == data["name"]:
        usual |= {field: data[field] for field in usual if field in data}
    else:
        usual |= usual_preparation(original(name))
    return {"name": name, **usual, **({"labels": data["labels"]} if "labels" in data else {})}


def _kept(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides about the data that hold for whatever set it turns out to be."""
    named = {_SHORTHANDS.get(name, name): value for name, value in wanted.items()}
    return {name.removeprefix("data."): value for name, value in named.items() if name.startswith("data.")}


def _set(fields: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        fields = fields.setdefault(part, {})
        if not isinstance(fields, dict):
            raise ConfigError(f"{name}: {part} has no fields of its own")
    if last == "kind" and fields.get("kind") != value:
        fields.clear()  # what the recipe says of another kind
    fields[last] = value


@dataclass(frozen=True)
class Sources:
    """What stands in for which set, and where files are.

    given: by the name of a set, what to load in its place.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    data_dir: Path | None = None
    cache_dir: Path | None = None
    progress: Quiet = field(default_factory=Quiet)
    _loaded: dict[tuple[str, ...], DataSet | TextSet] = field(default_factory=dict)

    def source_of(self, name: str) -> str:
        """What is loaded for a set."""
        return self.given.get(name, name)

    def load(self, name: str, splits: Sequence[str]) -> DataSet | TextSet:
        """The set, or its copy, fetched if need be; a set that is no copy of it is an error."""
        source, key = self.source_of(name), (name, *splits)
        if key not in self._loaded:
            try:
                found = load(
                    source, data_dir=self.data_dir, cache_dir=self.cache_dir, splits=splits, progress=self.progress
                )
            except UnknownSetError:
                raise
            except DataError as error:
                raise type(error)(f"{error}{_remedy(name, source)}") from None
            if original(found.name) != original(name):
                raise UsageError(f"--data {name}={source}: that is {found.name}, and no copy of {name}")
            self._loaded[key] = found
        return self._loaded[key]

    def has(self, name: str, splits: Sequence[str]) -> bool:
        """Whether the set can be had without a download."""
        source = self.source_of(name)
        found = find_source(source, self.data_dir)
        if source in KNOWN_TEXTS and self.data_dir is None:
            return KNOWN_TEXTS[source].find(Store(cache_root(self.cache_dir), source).files) is not None
        if found is None:
            return source != "imagenet" or self.data_dir is not None
        if self.data_dir is not None or source != name:
            return True
        store = Store(cache_root(self.cache_dir), found.name)
        return all(store.decoded_folder(split, found.digests[split]).is_dir() for split in splits)


def parse_sources(words: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """Read `NAME=SOURCE`, or a source alone where there is one set only that it can stand for."""
    given: dict[str, str] = {}
    for word in words:
        name, separator, source = word.partition("=")
        if not separator:
            if len(names) != 1:
                raise UsageError(f"--data {word!r}: for which set? Write NAME=SOURCE with one of {', '.join(names)}")
            [name], source = names, word
        if name not in names:
            raise UsageError(f"--data {word!r}: no run needs {name!r}; they need {', '.join(names)}")
        given[name] = absolute(source)
    return given


def _remedy(name: str, source: str) -> str:
    if name == "imagenet" or source != name:
        return ""  # the error itself says what to do
    return f" `pbwn data get {name}` fetches the set; a copy can be named with --data {name}=SOURCE."
