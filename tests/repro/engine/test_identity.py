"""The identity of a run: what its name depends on, what it does not, and what must never change it."""

import json
from pathlib import Path

import pytest

from pbwn_repro.config import (
    SCHEMA,
    SGD,
    UNHASHED,
    Adam,
    AdamW,
    ConfigError,
    Constant,
    Cosine,
    Data,
    Exponential,
    LinearTail,
    RunConfig,
    Steps,
    read_config,
)
from storm import contents, digits_config, run

FIELDS = {"model": "mlp", "method": "pbwn", "epochs": 1, "data": {"name": "digits", "digest": "0"}}
RESULTS = Path(__file__).parents[3] / "results"

# Another value of every field; of parts, of all their fields.
OTHERS = {
    "model": ["resnet-8"],
    "model_options": [{"sizes": "authors"}],
    "data": [
        {"name": "mnist", "digest": "0"},
        *(
            {"name": "digits", "digest": "0", **change}
            for change in (
                {"digest": "1"},
                {"train": ["train", "extra"]},
                {"test": "train"},
                {"normalisation": "cifar"},
                {"augmentation": "he"},
            )
        ),
    ],
    "method": ["normal"],
    "init": ["authors"],
    "scope": ["authors"],
    "optimizer": [
        {"kind": "adam"},
        {"kind": "adam", "lr": 0.01},
        {"kind": "adam", "weight_decay": 0.1},
        {"kind": "sgd", "lr": 0.01},
        {"kind": "sgd", "momentum": 0.5},
        {"kind": "sgd", "nesterov": True},
        {"kind": "sgd", "weight_decay": 0.1},
    ],
    "schedule": [
        {"kind": "exponential"},
        {"kind": "exponential", "final": 0.1},
        {"kind": "steps", "drops": [2], "factor": 0.5},
        {"kind": "steps", "drops": [3], "factor": 0.5},
        {"kind": "steps", "drops": [2], "factor": 0.1},
        {"kind": "steps", "drops": [2], "factor": 0.5, "momentum": "keep"},
    ],
    "epochs": [2],
    "batch_size": [64],
    "accumulation": [2],
    "evaluate_every": [1, 2],
    "checkpoint_every": [1, 2],
    "log_every": [2, 3],
    "seed": [2],
    "precision": ["bfloat16"],
    "compile": [True],
    "on_nonfinite": ["skip"],
    "processes": [2],
}
OF_TWO_PROCESSES = [{"processes": 2, "shard": True}]


def test_the_hash_covers_every_field_that_the_result_depends_on_and_no_other():
    assert {*OTHERS, "steps", "shard"} == set(RunConfig.model_fields)
    plain = read_config(FIELDS)
    configs = [plain, read_config({**FIELDS, "epochs": None, "steps": 1}), *map(changed, OF_TWO_PROCESSES)]
    for name, values in OTHERS.items():
        made = [changed({name: value}) for value in values]
        if name in UNHASHED:
            assert {config.hash for config in made} == {plain.hash}
        else:
            configs += made
    assert len({config.hash for config in configs}) == len(configs)


def changed(fields):
    return read_config({**FIELDS, **fields})


def test_the_order_of_fields_and_defaults_that_are_written_out_change_nothing():
    config = read_config(FIELDS)
    assert read_config(dict(reversed(FIELDS.items()))).hash == config.hash
    assert read_config(config.document) == config
    assert read_config(config.document).hash == config.hash
    assert config.run_name == f"mlp-pbwn-seed1-{config.hash[:8]}"


def test_only_what_differs_from_the_defaults_is_hashed_and_all_values_are_kept():
    config = read_config({**FIELDS, "optimizer": {"kind": "adam"}, "log_every": 5})
    assert config.identity == {
        "schema": SCHEMA,
        "model": "mlp",
        "method": "pbwn",
        "epochs": 1,
        "data": {"name": "digits", "digest": "0"},
        "optimizer": {"kind": "adam"},
    }
    assert config.document == {"schema": SCHEMA, **config.model_dump(mode="json")}
    assert config.document["log_every"] == 5


# Folders all over the world are called by these: if this test fails, configurations have lost their identity.
GOLDEN = {
    "as little as a run can say": (FIELDS, "dc3257fb0ad8fa43de2677aa82f8d860c769af7dcc413439302e6183fe2d5092"),
    "a Ladder as in table 8": (
        {
            "model": "ladder",
            "model_options": {"denoising": "authors"},
            "data": {"name": "mnist", "digest": "d" * 64, "labels": 20},
            "method": "pbwn",
            "optimizer": {"kind": "adam", "lr": 0.001, "weight_decay": 0.0001},
            "schedule": {"kind": "linear-tail", "constant_steps": 50000},
            "steps": 75000,
            "batch_size": 100,
            "evaluate_every": 1000,
            "checkpoint_every": 1000,
            "log_every": 100,
            "seed": 3,
        },
        "123a53f9b559768df0af6b09958ae62f32df80e4a7c1948d086f45cf74cc4568",
    ),
    "a residual network as in table 3": (
        {
            "model": "resnet-20",
            "data": {"name": "cifar10", "digest": "c" * 64, "normalisation": "cifar", "augmentation": "authors"},
            "method": "pbwn-epoch",
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0001},
            "schedule": {"kind": "steps", "drops": [80, 120], "factor": 0.1},
            "epochs": 160,
            "batch_size": 128,
            "log_every": 10,
        },
        "b539db06324818af92b6107f2e67055ee38006967de5f4c82df4002c9237a3f4",
    ),
}


@pytest.mark.parametrize("words", GOLDEN)
def test_the_hash_of_a_configuration_stays_what_it_is(words):
    fields, known = GOLDEN[words]
    assert read_config(fields).hash == known


# What a value that is not hashed means: within a schema version no default changes, and no field is taken away.
DEFAULTS_OF_SCHEMA_2 = {
    RunConfig: {
        "model_options": {},
        "init": "paper",
        "scope": "paper",
        "optimizer": SGD(),
        "schedule": Constant(),
        "epochs": None,
        "steps": None,
        "batch_size": 128,
        "accumulation": 1,
        "seed": 1,
        "precision": "float32",
        "compile": False,
        "on_nonfinite": "stop",
        "processes": 1,
        "shard": False,
    },
    Data: {
        "train": ("train",),
        "test": "test",
        "normalisation": "unit-range",
        "augmentation": "none",
        "labels": None,
        "context": None,
    },
    SGD: {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0},
    Adam: {"kind": "adam", "lr": 0.001, "weight_decay": 0.0},
    Constant: {"kind": "constant"},
    Steps: {"kind": "steps", "momentum": "reset"},
    Exponential: {"kind": "exponential", "final": 0.01},
    LinearTail: {"kind": "linear-tail"},
    AdamW: {"kind": "adamw", "lr": 0.001, "betas": (0.9, 0.999), "weight_decay": 0.0},
    Cosine: {"kind": "cosine", "warmup_steps": 0, "final": 0.0},
}


@pytest.mark.parametrize("part", DEFAULTS_OF_SCHEMA_2, ids=lambda part: part.__name__)
def test_no_default_changes_within_a_schema_version(part):
    assert SCHEMA == 2
    found = {name: field.default for name, field in part.model_fields.items()}
    for name, value in DEFAULTS_OF_SCHEMA_2[part].items():
        assert found[name] == value, f"{name}: raise SCHEMA and teach pbwn_repro.runs.migration to read schema 2"


class LaterSGD(SGD):
    """What a later version might add: to a part ..."""

    dampening: float = 0.0


class LaterConfig(RunConfig):
    """... and to the configuration."""

    optimizer: LaterSGD | Adam | AdamW = LaterSGD()
    label_smoothing: float = 0.0


def test_a_new_optional_field_leaves_the_hash_of_every_kept_run_as_it_is():
    kept = [json.loads(path.read_text()) for path in RESULTS.rglob("config.json")]
    kept = [fields for fields in kept if "measurement" not in fields]
    assert len(kept) >= 125
    for fields in kept:
        now = read_config(fields)
        del fields["schema"]
        later = LaterConfig.model_validate_json(json.dumps(fields))
        assert later.hash == now.hash
        assert later.model_copy(update={"label_smoothing": 0.1}).hash != now.hash
    sgd = {"kind": "sgd", "lr": 0.5}
    now = read_config({**FIELDS, "optimizer": sgd})
    assert LaterConfig.model_validate_json(json.dumps({**FIELDS, "optimizer": sgd})).hash == now.hash
    sgd["dampening"] = 0.1
    assert LaterConfig.model_validate_json(json.dumps({**FIELDS, "optimizer": sgd})).hash != now.hash


@pytest.mark.parametrize("name", ["shard", "compile", "scope", "log_every"])
def test_what_was_written_before_a_field_existed_is_read_with_its_default(name):
    config = read_config(FIELDS)
    older = {field: value for field, value in config.document.items() if field != name}
    assert read_config(older) == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": SCHEMA + 1}, f"reads schema {SCHEMA}; found {SCHEMA + 1}: use a newer pbwn"),
        ({"schema": None}, f"reads schema {SCHEMA}; found None"),
        ({"label_smoothing": 0.1}, "label_smoothing: unknown field"),
    ],
)
def test_what_a_newer_version_wrote_is_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        read_config({**read_config(FIELDS).document, **change})


OBSERVED = {
    "seldom": {"log_every": 12, "evaluate_every": 12, "checkpoint_every": 12},
    "often": {"log_every": 1, "evaluate_every": 1, "checkpoint_every": 1},
    "now and then": {"log_every": 5, "evaluate_every": 4, "checkpoint_every": 7},
}
TRAINED = {
    "dropout, augmentation and batch statistics": {
        "model": "wrn-10-1",
        "method": "pbwn-t5",
        "data": {"augmentation": "he"},
        "batch_size": 288,
    },
    "the Ladder's noise": {
        "model": "ladder",
        "method": "pbwn",
        "model_options": {"hidden_sizes": [24, 12], "denoising_weights": [1000.0, 10.0, 0.1]},
        "data": {"labels": 20},
        "optimizer": {"kind": "adam", "weight_decay": 1e-4},
        "schedule": {"kind": "linear-tail", "constant_steps": 6},
    },
    "two processes with sharded weights, projected after each epoch": {
        "model": "resnet-8",
        "method": "pbwn-epoch",
        "processes": 2,
        "shard": True,
        "epochs": 3,
        "batch_size": 288,
    },
}


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=pytest.mark.long) if "sharded" in name else name for name in TRAINED]
)
def test_how_often_a_run_is_observed_changes_neither_its_model_nor_its_error(scenario, tmp_path):
    models, errors = set(), set()
    for words, observation in OBSERVED.items():
        config = digits_config(**TRAINED[scenario], **observation)
        assert run(config, tmp_path / words) == [0] * config.processes
        left = contents(tmp_path / words)
        models.add(left["model.safetensors"])
        result = json.loads(left["result.json"])
        errors.add(json.dumps({name: value for name, value in result.items() if "best" not in name}))
    assert len(models) == len(errors) == 1
