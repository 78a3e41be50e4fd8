"""Resolve a user's overrides to a full configuration: recipe, file, options, data, and the source of the data."""

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
from pbwn_repro.data.loading import LOCATION_PREFIXES, absolute, default_preparation, find_source
from pbwn_repro.data.text import KNOWN_TEXTS
from pbwn_repro.errors import UsageError
from pbwn_repro.importing import import_object, is_own
from pbwn_repro.models import recipe
from pbwn_repro.models.family import OWN_EXAMPLE
from pbwn_repro.tasks import AnySet

DEFAULT_CONTEXT = 128  # of texts, for models that have no recipe
# Short names of nested fields.
_SHORTHANDS = {"lr": "optimizer.lr", "weight_decay": "optimizer.weight_decay", "labels": "data.labels"}


def resolve(
    overrides: Mapping[str, Any],
    *,
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    processes: int = 1,
    dataset: AnySet | None = None,
) -> tuple[RunConfig, AnySet]:
    """Complete a user's overrides with the network's recipe, and load the data unless `dataset` is given.

    Overrides are fields of the configuration; nested fields are written with dots, such as `optimizer.lr`. `data` is a
    source, as `pbwn_repro.data.load` takes it: the configuration has the set's name and digest instead.
    """
    fields, source = validate(overrides, processes)  # reports errors before anything is downloaded
    data = fields["data"]
    splits = splits_of(data)
    dataset = dataset or load(source, data_dir=data_dir, cache_dir=cache_dir, splits=splits)
    if dataset.name != data["name"]:  # a location such as hf:PATH, whose set is cifar10-jpeg
        part = prepared({**recipe(fields["model"])["data"], "train": splits[:-1], "test": splits[-1]}, dataset.name)
        fields["data"] = data = {**part, **_data_fields(overrides)}
    data.update(name=dataset.name, digest=dataset.digest)
    return read_config(fields), dataset


def validate(overrides: Mapping[str, Any], processes: int = 1) -> tuple[dict[str, Any], str]:
    """Complete a user's overrides; raise if a field is unknown or out of range. Does not load the data."""
    fields, source = complete(overrides)
    fields["processes"] = processes
    read_config({**fields, "data": {**fields["data"], "digest": ""}})
    return fields, source


def splits_of(data: Mapping[str, Any]) -> list[str]:
    """Return the splits that the data fields of a configuration name, the test split last."""
    return [*data.get("train", ["train"]), data.get("test", "test")]


def merge(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the overrides of a file with those of the command line, which take precedence.

    The length of a run is given in epochs or in steps, so one replaces the other. Another source of the same data
    replaces only their name and digest, not the file's other data fields. For other data, the file's number of labels
    is kept.
    """
    kept = {name: value for name, value in file.items() if name not in ("epochs", "steps") or value is not None}
    if "epochs" in given or "steps" in given:
        kept = {name: value for name, value in kept.items() if name not in ("epochs", "steps")}
    data, source = kept.get("data"), given.get("data")
    if isinstance(data, Mapping) and isinstance(source, str):
        is_same = original(source) == original(str(data.get("name"))) or source.startswith(LOCATION_PREFIXES)
        names = [name for name in data if name not in ("name", "digest")] if is_same else ["labels"]
        kept |= {f"data.{name}": data[name] for name in names if data.get(name) is not None}
    return {**kept, **given}


def complete(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Complete a user's overrides with the network's recipe; return the fields and the source of the data.

    The fields lack only the data's digest, and the name of a set given by its location: both are read from the data.
    """
    if "model" not in overrides:
        raise ConfigError("no model given: pass --model, such as --model resnet-20")
    model = _name("model", overrides["model"])
    fields = copy.deepcopy(recipe(model))
    if is_own(model):  # reports a misspelt name before any other error
        import_object(model, kind="model", example=OWN_EXAMPLE)
    if not fields["data"]["name"] and "data" not in overrides:
        raise ConfigError(
            f"no data set given, and {overrides['model']} has no recipe that names one: pass --data, such as cifar10"
        )
    settings = dict(overrides)
    source = settings.pop("data", None)
    if isinstance(source, Mapping):  # all data fields, as in the configuration of another run
        fields["data"] = dict(source)
        source = _name("data.name", source.get("name"))
    elif source is not None:
        fields["data"] = prepared(fields["data"], _name("data", source))
    settings = _full_names(settings)
    # Mappings come before their nested fields, and of those the kind first, because it resets the others.
    for name in sorted(settings, key=lambda name: (name.count("."), not name.endswith(".kind"))):
        _set(fields, name, settings[name])
    if "steps" in settings and "epochs" not in settings:
        fields.pop("epochs", None)
    if "epochs" in settings and "steps" not in settings:
        fields.pop("steps", None)
    fields.setdefault("method", "pbwn")
    return fields, source or fields["data"]["name"]


def _name(field: str, value: object) -> str:
    """Return a name that is needed before the whole configuration is validated; raise if it is not a string."""
    if not isinstance(value, str):
        raise ConfigError(f"{field}: expected a name, found {value!r}")
    return value


def _full_names(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the short names of nested fields by their full names."""
    return {_SHORTHANDS.get(name, name): value for name, value in overrides.items()}


def parse(
    assignment: str, option: str = "--set", form: str = "FIELD=VALUE, such as schedule.factor=0.5"
) -> tuple[str, Any]:
    """Parse an option's `name=value`; the value is JSON, or else a string."""
    name, separator, text = assignment.partition("=")
    if not separator or not name:
        raise ConfigError(f"{option} {assignment!r}: write {form}")
    try:
        return name, json.loads(text)
    except json.JSONDecodeError:
        return name, text


def read_overrides(file: Path | None, assignments: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Collect a user's overrides from a file, from `--set` and from other options, in increasing precedence."""
    return merge(_read_file(file) if file else {}, {**dict(map(parse, assignments)), **given})


def _read_file(path: Path) -> dict[str, Any]:
    """Read the fields from a JSON file, such as the config.json of a run."""
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"--config {path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"--config {path}: expected a file, found a folder") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path}: not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"--config {path}: expected an object with fields, found {type(fields).__name__}")
    return fields


def prepared(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Adapt the data fields of a recipe to the set of this name.

    A copy of the recipe's set is prepared as in the recipe, any other set in the usual way for that set.
    """
    if data["name"] == name:
        return dict(data)
    if is_text(name):
        return {"name": name, "context": data.get("context", DEFAULT_CONTEXT)}
    usual = {"normalisation": "unit-range", "augmentation": "none"}
    if original(name) == data["name"]:
        usual |= {field: data[field] for field in usual if field in data}
    else:
        usual |= default_preparation(original(name))
    return {"name": name, **usual, **({"labels": data["labels"]} if "labels" in data else {})}


def _data_fields(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides of data fields, by the names of these fields."""
    named = _full_names(overrides).items()
    return {name.removeprefix("data."): value for name, value in named if name.startswith("data.")}


def _set(fields: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        fields = fields.setdefault(part, {})
        if not isinstance(fields, dict):
            raise ConfigError(f"{name}: {part} has no fields of its own")
    if last == "kind" and fields.get("kind") != value:
        fields.clear()  # the recipe's fields of another kind
    fields[last] = value


@dataclass(frozen=True)
class Sources:
    """The sources of data sets, and the folders of their files.

    given: the source to load in place of a set, by the name of the set.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    data_dir: Path | None = None
    cache_dir: Path | None = None
    progress: Quiet = field(default_factory=Quiet)
    _loaded: dict[tuple[str, ...], DataSet | TextSet] = field(default_factory=dict)

    def source_of(self, name: str) -> str:
        """Return the source that is loaded for a set."""
        return self.given.get(name, name)

    def load(self, name: str, splits: Sequence[str]) -> DataSet | TextSet:
        """Load the set or a copy of it, downloading it if necessary; raise if the source is neither."""
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
                raise UsageError(f"--data {name}={source}: that is {found.name}, not a copy of {name}")
            self._loaded[key] = found
        return self._loaded[key]

    def has(self, name: str, splits: Sequence[str]) -> bool:
        """Whether the set can be loaded without a download."""
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


def parse_sources(texts: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """Parse `NAME=SOURCE`, or a source alone if the runs need a single set."""
    given: dict[str, str] = {}
    for text in texts:
        name, separator, source = text.partition("=")
        if not separator:
            if len(names) != 1:
                raise UsageError(f"--data {text!r}: for which set? Write NAME=SOURCE with one of {', '.join(names)}")
            [name], source = names, text
        if name not in names:
            raise UsageError(f"--data {text!r}: no run needs {name!r}; the runs need {', '.join(names)}")
        given[name] = absolute(source)
    return given


def _remedy(name: str, source: str) -> str:
    if name == "imagenet" or source != name:
        return ""  # the error itself says what to do
    return f" `pbwn data get {name}` downloads the set; to use a copy, pass --data {name}=SOURCE."
