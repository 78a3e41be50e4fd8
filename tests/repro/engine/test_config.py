"""Configurations: what they refuse, and what names a run."""

import pytest

from pbwn_repro.config import ConfigError, read_config
from pbwn_repro.models import recipe
from pbwn_repro.runs.resolution import merge, parse, prepared, resolve
from storm import digits_config

FIELDS = {"model": "mlp", "method": "pbwn", "epochs": 1, "data": {"name": "digits", "digest": "0"}}
STEPS = {"kind": "steps", "drops": [2], "factor": 0.5}
LADDER = {"model": "ladder", "data": {"name": "digits", "digest": "0", "labels": 20}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.1}, "learning_rate: unknown field: choose from accumulation"),
        ({"optimizer": {"kind": "sgd", "lr": -0.1}}, r"optimizer\.lr must be greater than 0, not -0.1"),
        ({"optimizer": {"kind": "sgd", "rate": 0.1}}, r"optimizer\.rate: unknown field: choose"),
        ({"optimizer": {"kind": "sgd", "momentun": 0.9}}, r"optimizer\.momentun: .* did you mean 'momentum'\?"),
        ({"bacth_size": 5}, r"bacth_size: unknown field: did you mean 'batch_size'\?"),
        ({"optimizer": {"kind": "rmsprop"}}, r"optimizer\.kind: unknown kind 'rmsprop': choose from sgd, adam, adamw"),
        ({"optimizer": {"lr": 0.1}}, r"optimizer\.kind: required field is missing: choose from sgd, adam, adamw"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"epochs": 1.5}, "epochs must be an integer, not 1.5"),
        ({"steps": 5}, "--epochs and --steps are mutually exclusive"),
        ({"epochs": None}, "the length of the run is missing: add --epochs N or --steps N"),
        (
            {"batch_size": 100, "accumulation": 3},
            r"batch_size 100 cannot be divided into 3 equal parts \(accumulation 3, processes 1\)",
        ),
        ({"method": "pbnw"}, "method: unknown method 'pbnw': did you mean 'pbwn'"),
        ({"model": "resnet-21x"}, "model: unknown model"),
        ({"model": "ladder"}, "must be set for the ladder"),
        ({**LADDER, "processes": 2}, "accumulation and processes must be 1"),
        ({**LADDER, "accumulation": 2}, "accumulation and processes must be 1"),
        (
            {"data": {"name": "digits", "digest": "0", "labels": 20}},
            r"data\.labels \(--labels\) must be .* only for it",
        ),
        ({"optimizer": {"kind": "adam"}, "schedule": STEPS}, "with Adam, choose 'keep'"),
        ({"model": "char-gpt"}, "char-gpt needs text: give --data text:FILE"),
        ({"data": {"name": "text-a", "digest": "0", "context": 8}}, "mlp needs images: data.context is for text"),
        ({"shard": True}, "start them with torchrun"),
        ({"shard": True, "processes": 2, "method": "wn"}, "weights that wn recomputes in each pass"),
        ({"precision": "float8"}, "precision must be 'float32', 'bfloat16' or 'float16', not 'float8'"),
        ({"seed": "one"}, "seed must be an integer, not 'one'"),
    ],
)
def test_a_configuration_that_cannot_be_run_names_the_field_and_what_was_found(change, words):
    fields = {name: value for name, value in {**FIELDS, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=words):
        read_config(fields)


def test_every_problem_is_told_at_once():
    with pytest.raises(ConfigError, match=r"method: .*batch_size must |batch_size must .*method: "):
        read_config({**FIELDS, "method": "x", "batch_size": 0})


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        digits_config(model="mlp", method="pbwn").seed = 3


@pytest.mark.parametrize(
    "model", ["mlp", "inception", "vgg-e", "resnet-56", "wrn-16-4", "imagenet-preresnet-34", "ladder", "char-gpt"]
)
def test_every_network_has_a_recipe_that_is_valid(model):
    fields = recipe(model)
    config = read_config({**fields, "method": "pbwn", "data": {**fields["data"], "digest": "0"}})
    assert config.model == model


def test_the_recipes_are_those_of_the_paper():
    inception, vgg, resnet = (recipe(name) for name in ("inception", "vgg-e", "resnet-110"))
    assert [r["batch_size"] for r in (inception, vgg, resnet)] == [64, 128, 128]
    assert [r["epochs"] for r in (inception, vgg, resnet)] == [120, 160, 160]
    assert [r["optimizer"]["weight_decay"] for r in (inception, vgg, resnet)] == [5e-4, 5e-4, 1e-4]
    assert [r["schedule"]["factor"] for r in (inception, vgg, resnet)] == [0.2, 0.2, 0.1]
    assert inception["schedule"]["drops"] == [50, 80, 100]
    assert recipe("ladder")["steps"] == 75_000


def test_other_data_are_prepared_in_their_own_way():
    cifar = recipe("resnet-20")["data"]
    assert prepared(cifar, "digits") == {"name": "digits", "normalisation": "unit-range", "augmentation": "none"}
    assert prepared(recipe("mlp")["data"], "cifar100")["normalisation"] == "cifar"
    assert prepared(recipe("ladder")["data"], "digits")["labels"] == 100


@pytest.mark.parametrize("encoding", ["lossless", "jpeg"])
@pytest.mark.parametrize("model", ["mlp", "resnet-20", "wrn-16-4", "ladder"])
def test_a_copy_is_prepared_as_the_recipe_says(model, encoding):
    own = recipe(model)["data"]
    copy = prepared(own, f"{own['name']}-{encoding}")
    for field, default in (("normalisation", "unit-range"), ("augmentation", "none"), ("labels", None)):
        assert copy.get(field, default) == own.get(field, default)


def test_a_file_s_data_part_stays_with_the_same_data_and_goes_with_others():
    file = {"model": "resnet-20", "data": {"name": "cifar10", "digest": "0", "augmentation": "he", "labels": None}}
    for source in ("cifar10", "hf:somewhere/cifar10", "cifar10-jpeg"):
        assert merge(file, {"data": source}) == {"model": "resnet-20", "data": source, "data.augmentation": "he"}
    assert merge(file, {"data": "mnist"}) == {"model": "resnet-20", "data": "mnist"}
    ladder = {"data": {"name": "mnist", "digest": "0", "labels": 20, "normalisation": "unit-range"}}
    assert merge(ladder, {"data": "digits"}) == {"data": "digits", "data.labels": 20}
    assert merge({"epochs": None, "steps": 5, "seed": 1}, {"epochs": 2}) == {"epochs": 2, "seed": 1}


def test_wishes_are_laid_over_the_recipe():
    config, dataset = resolve({"model": "resnet-8", "data": "digits", "lr": 0.5, "steps": 7, "schedule.factor": 0.5})
    assert (config.data.name, config.data.digest) == ("digits", dataset.digest)
    assert config.optimizer.lr == 0.5
    assert config.optimizer.weight_decay == 1e-4
    assert (config.steps, config.epochs) == (7, None)
    assert config.schedule.factor == 0.5
    assert config.method == "pbwn"


def test_another_kind_forgets_what_the_recipe_says_of_its_own():
    overrides = {
        "model": "resnet-8",
        "data": "digits",
        "lr": 0.01,
        "optimizer.kind": "adam",
        "schedule.kind": "constant",
    }
    config, _ = resolve(overrides)
    assert (config.optimizer.kind, config.optimizer.lr, config.schedule.kind) == ("adam", 0.01, "constant")
    same, _ = resolve({"model": "resnet-8", "data": "digits", "optimizer.kind": "sgd"})
    assert same.optimizer.weight_decay == 1e-4
    whole = {**same.document, "optimizer.kind": "adam", "schedule.kind": "constant"}
    config, _ = resolve(whole)
    assert (config.optimizer.kind, config.schedule.kind) == ("adam", "constant")


def test_the_configuration_of_a_run_can_be_given_again():
    config, _ = resolve({"model": "mlp", "data": "digits", "epochs": 2})
    again, _ = resolve({**config.document, "seed": 2})
    assert again == config.model_copy(update={"seed": 2})
    config, _ = resolve({"model": "resnet-8", "data": "synthetic:tiny10", "epochs": 2})
    assert resolve(config.document)[0] == config


@pytest.mark.parametrize(("text", "value"), [("a.b=0.5", 0.5), ("a=[1,2]", [1, 2]), ("a=he", "he"), ("a=true", True)])
def test_fields_are_set_by_json_or_words(text, value):
    assert parse(text)[1] == value
    with pytest.raises(ConfigError, match="FIELD=VALUE"):
        parse("a")
