"""What a run does and leaves behind, on the embedded digits."""

import json
import os
import signal
import sys
from functools import partialmethod
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

import pbwn
from pbwn_repro import models
from pbwn_repro.data import Batches, DataSet, MemorySplit, augmentations, load
from pbwn_repro.engine import training as training_module
from pbwn_repro.engine.finite import NonFiniteError
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.reporting import Quiet
from pbwn_repro.engine.state import unpack
from pbwn_repro.runs.execution import execute
from pbwn_repro.runs.folder import BusyError, RunFolder
from pbwn_repro.tasks import classification_metrics, make_task
from storm import digits_config, run


class Listener(Quiet):
    def __init__(self):
        self.said = []

    def message(self, text):
        self.said.append(text)


@pytest.fixture
def train(tmp_path):
    """Run a configuration to its end; return its result, its folder and what was said."""

    def run(name="run", **fields):
        config = digits_config(**{"model": "resnet-8", "method": "pbwn", **fields})
        folder, listener = RunFolder(tmp_path / name), Listener()
        result = execute(config, load("digits"), folder, Processes(), listener)
        return result, folder, listener.said

    return run


def lines(folder):
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


def exported(folder):
    with safetensors.safe_open(folder.model, "pt") as file:
        return json.loads(file.metadata()["pbwn"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_a_run_leaves_what_the_contract_names(train):
    result, folder, _ = train()
    assert json.loads(folder.environment.read_text())["data"]["sha256"] == load("digits").digest
    assert {path.name for path in folder.path.iterdir()} == {
        *("config.json", "environment.json", "metrics.jsonl", "timing.jsonl", "checkpoints"),
        *("model.safetensors", "result.json", ".lock"),
    }
    assert folder.read_result() == result
    assert result["steps"] == 12
    assert result["constrained_weights"] == 7
    losses = [line["loss"] for line in lines(folder) if "loss" in line]
    errors = [line["test_error"] for line in lines(folder) if "test_error" in line]
    assert len(losses) == 12
    assert len(errors) == 3
    assert result["test_error"] == errors[-1]
    assert result["best_test_error"] == min(errors)
    assert max(line["deviation"] for line in lines(folder) if "deviation" in line) < 2e-6
    assert len(list(folder.checkpoints.iterdir())) == 1


@pytest.mark.parametrize("method", ["normal", "wn", "pbwn", "pbwn-epoch"])
def test_the_norms_of_neurons_are_watched_with_every_method(train, method):
    _, folder, _ = train(method=method)
    norms = [line["weight_norms"] for line in lines(folder) if "weight_norms" in line]
    assert len(norms) == 3
    assert all(row == sorted(row) and len(row) == 5 for row in norms)
    if method == "pbwn":
        assert max(abs(norm - 1) for row in norms for norm in row) < 2e-6
    if method == "wn":  # its learned scales start at 1, whatever the norms of the weights behind them are
        assert 0.9 < norms[0][0] <= norms[0][4] < 1.1
    if method == "normal":
        assert norms[-1][4] > 1.2


def test_a_finished_run_is_not_made_again(train):
    first, folder, _ = train()
    before = folder.model.stat().st_mtime_ns
    second, _, _ = train()
    assert first == second
    assert folder.model.stat().st_mtime_ns == before


def test_networks_learn(train):
    result, folder, _ = train(method="normal", epochs=3, checkpoint_every=None, evaluate_every=None)
    losses = [line["loss"] for line in lines(folder) if "loss" in line]
    assert losses[-1] < 0.5 * losses[0]
    assert result["test_error"] < 40


@pytest.mark.parametrize(
    "method",
    [
        *("normal", "unit-start", "wn", "max-norm-1"),
        *("pbwn", "pbwn-riem", "pbwn-riem-nxn", "pbwn-epoch", "pbwn-t5"),
    ],
)
def test_the_exported_model_is_plain_and_keeps_the_promise_of_its_method(train, method):
    result, folder, _ = train(method=method, epochs=2, batch_size=288, checkpoint_every=None, evaluate_every=None)
    metadata, weights = exported(folder)
    plain = models.build("resnet-8", in_channels=1, image_size=8)
    plain.load_state_dict(weights)
    assert (metadata["method"], metadata["run"]) == (method, result["run"])
    off = max(
        float((weight.tensor.detach().flatten(1).norm(dim=1) - 1).abs().max())
        for weight in pbwn.select(plain, **models.find("resnet-8").layers()).constrained
    )
    if method.startswith("pbwn"):
        assert off < 2e-6
        assert metadata["largest_deviation"] == result["deviation_exported"] < 2e-6
    if method in ("pbwn-epoch", "pbwn-t5"):
        assert result["deviation"] > 1e-5
    if method == "normal":
        assert off > 0.01
        assert "largest_deviation" not in metadata


def test_the_exported_model_is_the_one_that_was_tested_last(train):
    result, folder, _ = train(method="pbwn-epoch", epochs=2, batch_size=288)
    model = models.build("resnet-8", in_channels=1, image_size=8)
    model.load_state_dict(exported(folder)[1])
    test = load("digits").test
    with torch.no_grad():
        wrong = (model.eval()(test.images / 255).argmax(1) != test.labels).double().mean()
    assert 100 * float(wrong) == pytest.approx(result["test_error_exported"])


def test_accumulated_parts_add_up_to_the_whole_batch(train):
    _, whole, _ = train("whole", model="mlp", steps=3, model_options={})
    _, parts, _ = train("parts", model="mlp", steps=3, accumulation=4)
    torch.testing.assert_close(exported(whole)[1], exported(parts)[1], rtol=0, atol=1e-6)


def test_mixed_precision_trains(train):
    result, _, _ = train(precision="bfloat16", steps=4)
    assert result["steps"] == 4


@pytest.mark.long
def test_a_compiled_network_trains_like_an_eager_one(train):
    common = {"model": "mlp", "steps": 3, "evaluate_every": None, "checkpoint_every": None}
    _, eager, _ = train("eager", **common)
    _, compiled, _ = train("compiled", compile=True, **common)
    torch.testing.assert_close(exported(eager)[1], exported(compiled)[1], rtol=0, atol=1e-5)


def test_half_precision_trains_with_a_gradient_scaler(train):
    result, folder, _ = train(model="mlp", precision="float16", steps=4, method="pbwn-t2")
    assert result["steps"] == 4
    [checkpoint] = folder.checkpoints.iterdir()
    assert unpack((checkpoint / "scaler.pt").read_bytes())["scale"] > 1


def test_half_precision_that_diverges_says_so(train, tmp_path):
    with pytest.raises(NonFiniteError, match=r"step \d+: the loss is (nan|inf)"):
        train(model="mlp", method="normal", precision="float16", optimizer={"kind": "sgd", "lr": 1e4})
    assert RunFolder(tmp_path / "run").state == "diverged"


def test_steps_that_the_gradient_scaler_skips_are_counted(train, monkeypatch):
    scaler = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda *given, **named: scaler(*given, **named, init_scale=2.0**120))
    result, _, _ = train(model="mlp", precision="float16", steps=3, method="pbwn-t2")
    assert result["skipped_steps"] == 3


def test_the_authors_momentum_reset_changes_the_run(train):
    schedule = {"kind": "steps", "drops": [2], "factor": 0.5}
    common = {"epochs": 2, "batch_size": 288, "model": "mlp", "optimizer": {"kind": "sgd", "lr": 0.1}}
    _, kept, _ = train("kept", schedule={**schedule, "momentum": "keep"}, **common)
    _, reset, _ = train("reset", schedule={**schedule, "momentum": "reset"}, **common)
    first, second = exported(kept)[1], exported(reset)[1]
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_a_loss_that_is_not_finite_stops_before_it_reaches_the_weights(train, tmp_path):
    with pytest.raises(NonFiniteError, match=r"step \d+: .*the gradient of \w+.*\.weight.*--set on_nonfinite=skip"):
        train(model="mlp", method="normal", optimizer={"kind": "sgd", "lr": 1e18})
    folder = RunFolder(tmp_path / "run")
    assert folder.state == "diverged"
    assert all(line.get("loss", 0) is not None for line in lines(folder))


def test_such_steps_can_be_skipped(train):
    rate = {"kind": "sgd", "lr": 1e18}
    result, _, said = train(model="mlp", method="normal", optimizer=rate, on_nonfinite="skip")
    assert result["skipped_steps"] > 0
    assert any("the step is skipped" in text for text in said)


def test_a_run_that_diverged_resumes_in_its_folder_where_such_steps_are_skipped(train, tmp_path):
    """The rate makes the first run diverge at one step; skipping it, the second resumes from the checkpoint before."""
    settings = {"model": "mlp", "method": "normal", "optimizer": {"kind": "sgd", "lr": 1e18}, "checkpoint_every": 1}
    with pytest.raises(NonFiniteError):
        train(**settings)
    diverged = RunFolder(tmp_path / "run")
    saved = max(path.name for path in diverged.checkpoints.iterdir())
    result, folder, said = train(**settings, on_nonfinite="skip")
    assert (folder.state, result["steps"]) == ("done", 12)
    assert result["skipped_steps"] == 12 - int(saved.removeprefix("step-"))
    assert folder.read_config().on_nonfinite == "skip"
    folder.result.unlink()
    again, _, said = train(**settings)  # stays what it was told once
    assert again == result
    assert "non-finite steps are skipped, as an earlier command for this run requested" in said


def test_a_live_run_shows_its_metrics_and_what_no_checkpoint_knows_is_cut_off(tmp_path):
    config = digits_config(model="mlp", method="pbwn", checkpoint_every=None)
    assert run(config, tmp_path / "run", ("step", 8)) == [-signal.SIGKILL]
    folder = RunFolder(tmp_path / "run")
    assert [line["step"] for line in lines(folder) if "loss" in line] == list(range(1, 9))
    assert run(config, tmp_path / "run") == run(config, tmp_path / "whole") == [0]
    assert folder.metrics.read_bytes() == RunFolder(tmp_path / "whole").metrics.read_bytes()


@pytest.fixture
def looks(monkeypatch):
    """Where the engine or a task has read a value on the host, each of which would wait for a GPU."""
    found = []
    for name in ("item", "tolist", "cpu", "__bool__", "__float__"):

        def look(tensor, *arguments, original, **options):
            caller = Path(sys._getframe(1).f_code.co_filename)
            if caller.parent.name == "engine" or caller.name == "tasks.py":
                found.append((caller.name, sys._getframe(1).f_lineno))
            return original(tensor, *arguments, **options)

        monkeypatch.setattr(torch.Tensor, name, partialmethod(look, original=getattr(torch.Tensor, name)))
    return found


@pytest.mark.parametrize("each_step", [False, True])
def test_no_value_is_read_on_the_host_in_a_step_unless_that_costs_nothing(each_step, looks, monkeypatch):
    monkeypatch.setattr(training_module.Training, "_checks_each_step", each_step)
    config = digits_config(model="resnet-8", method="normal")
    training = training_module.Training(config, load("digits"), Processes()).prepared()
    looks.clear()
    for _ in range(3):
        training._step()
    assert bool(looks) == each_step


def test_a_network_is_compiled_once_a_run(train, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiled.append(model) or model)
    train(compile=True, model="mlp", accumulation=2)
    assert len(compiled) == 1


def test_a_loss_that_is_not_finite_is_left_out_of_the_mean(train, monkeypatch):
    task = training_module.make_task

    def make_task_that_breaks(*arguments, **options):
        found = task(*arguments, **options)
        gradient = found.gradient

        def broken_gradient(model, step, backward):
            loss = gradient(model, step, backward)
            return loss * float("nan") if step in (3, 8, 9, 10, 11) else loss

        found.gradient = broken_gradient
        return found

    monkeypatch.setattr(training_module, "make_task", make_task_that_breaks)
    _, single, _ = train("single", on_nonfinite="skip", log_every=1)
    result, pairs, _ = train("pairs", on_nonfinite="skip", log_every=2)
    each = [line["loss"] for line in lines(single) if "loss" in line]
    assert [step for step, loss in enumerate(each) if loss is None] == [3, 8, 9, 10, 11]
    means = [line["loss"] for line in lines(pairs) if "loss" in line]
    assert means == pytest.approx(
        [(each[0] + each[1]) / 2, each[2], (each[4] + each[5]) / 2, (each[6] + each[7]) / 2, None, None]
    )
    assert result["skipped_steps"] == 5


def test_a_broken_gradient_is_named_by_its_layer(train, monkeypatch):
    build = models.Network.build

    def build_broken(*arguments, **options):
        model = build(*arguments, **options)
        model.classifier.weight.register_hook(lambda gradient: gradient * float("inf"))
        return model

    monkeypatch.setattr(models.Network, "build", build_broken)
    with pytest.raises(NonFiniteError, match=r"step 1: the gradient of classifier\.weight is not finite"):
        train()


def test_equal_scores_are_no_right_answer():
    class Undecided(torch.nn.Module):
        def forward(self, images):
            return images.new_zeros(len(images), 10)

    dataset = load("digits")
    batches = Batches(dataset.test, augmentations.Augmentation(()), batch_size=100, order="fixed", last="keep")
    scores = classification_metrics(Undecided(), batches, Processes(), 10)
    assert scores["test_error"] == pytest.approx(100 * (dataset.test.labels != 0).float().mean().item())


def test_statistics_are_taken_of_mixed_batches():
    """Pictures are often stored by class, and the variance within a class is not that of the set."""
    digits = load("digits").train
    by_class = MemorySplit(digits.images[digits.labels.argsort()], digits.labels.sort().values)
    config = digits_config(model="resnet-8", method="pbwn-epoch", epochs=1, batch_size=128)
    dataset = DataSet("digits", {"train": by_class, "test": by_class}, tuple("0123456789"), "sorted by class")
    means = [images.mean().item() for images in make_task(config, dataset, Processes(), 0).inputs()]
    whole = torch.tensor([by_class.images[first : first + 128].float().mean() for first in range(0, 1280, 128)])
    assert torch.tensor(means).std() / torch.tensor(means).mean() < 0.5 * whole.std() / whole.mean()


def test_a_model_that_does_not_fit_the_pictures_writes_nothing(train, tmp_path):
    with pytest.raises(ValueError, match="vgg-e"):
        train(model="vgg-e")
    assert not (tmp_path / "run").exists()


def test_other_data_than_the_configuration_names_are_refused(tmp_path):
    config = digits_config(model="mlp", method="pbwn")
    with pytest.raises(ValueError, match=r"names the data digits .*found synthetic-digits"):
        execute(config, load("synthetic:digits"), RunFolder(tmp_path / "run"), Processes(), Quiet())
    assert not (tmp_path / "run").exists()


def test_a_folder_with_another_configuration_is_refused(train):
    train()
    with pytest.raises(ValueError, match="holds another configuration"):
        RunFolder(train()[1].path).claim(digits_config(model="mlp", method="normal"), print)


def test_two_processes_cannot_work_on_one_folder(train, tmp_path):
    words = rf"in use by another process \({os.getpid()} on "
    with RunFolder(tmp_path / "run").locked(), pytest.raises(BusyError, match=words):
        train()


def test_a_changed_environment_is_reported_on_resume(train, tmp_path):
    _, folder, _ = train()
    folder.result.unlink()
    then = json.loads(folder.environment.read_text())
    folder.environment.write_text(json.dumps({**then, "threads": 64}))
    _, _, said = train()
    assert any("threads was 64, is 1" in text for text in said)


def test_top5_errors_are_told_where_there_are_many_classes(tmp_path):
    dataset = load("synthetic:cifar100")
    data = {"name": dataset.name, "digest": dataset.digest}
    config = digits_config(model="resnet-8", method="pbwn", data=data, steps=2)
    result = execute(config, dataset, RunFolder(tmp_path / "run"), Processes(), Quiet())
    assert 0 <= result["test_top5_error"] <= result["test_error"]
