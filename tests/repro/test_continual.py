"""Sub-tasks one after the other: what each asks for, what a model is judged by, and that runs resume."""

import pytest
import torch
from torch import nn

from pbwn_repro.config import ConfigError
from pbwn_repro.data import load
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.reporting import Quiet
from pbwn_repro.errors import UsageError
from pbwn_repro.metrics import SUBTASK_ERROR
from pbwn_repro.report.runs import read_runs
from pbwn_repro.report.sections import collect
from pbwn_repro.runs.execution import execute
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.tasks import make_task, metric_of
from storm import digits_config

ADAMW = {"kind": "adamw", "lr": 0.01}


def continual_config(sequence, **fields):
    data = {"sequence": sequence, "examples": 64, "passes": 2, **fields.pop("data", {})}
    shared = {"model": "mlp", "method": "pbwn", "model_options": {"sizes": "small"}, "optimizer": ADAMW}
    return digits_config(**{**shared, "steps": 12, "evaluate_every": None, "data": data, **fields})


def task(config, rank=0, count=1):
    class Share(Processes):
        def sum(self, values):
            return values

    return make_task(config, load("digits"), Share(rank, count), 0)


def pixels(images):
    """The pixels of each image, sorted: what a permutation leaves."""
    return images.flatten(1).sort(dim=1).values


def test_a_sub_task_is_an_epoch_and_the_metric_is_that_of_sub_tasks():
    config = continual_config("random-labels")
    assert task(config).steps_per_epoch == 4  # two passes over two batches of 32
    assert metric_of(config) is SUBTASK_ERROR


def test_each_sub_task_has_its_own_order_of_pixels_and_the_same_images():
    found = task(continual_config("permuted-pixels"))
    first, labels = found.batch(0)
    whole = torch.cat([found.batch(step)[0] for step in (0, 1)])
    again = torch.cat([found.batch(step)[0] for step in (4, 5)])
    assert first.shape == (32, 1, 8, 8)
    assert labels.shape == (32,)
    torch.testing.assert_close(pixels(whole).sum(0), pixels(again).sum(0))
    assert not torch.allclose(whole.sum(0), again.sum(0))
    within = torch.cat([found.batch(step)[0] for step in (2, 3)])
    torch.testing.assert_close(whole.sum(0), within.sum(0))  # the second pass of the first sub-task


def test_each_sub_task_has_its_own_random_labels_and_an_image_keeps_its_own_within_one():
    found = task(continual_config("random-labels"))

    def labels_by_image(steps):
        batches = [found.batch(step) for step in steps]
        return {
            image.numpy().tobytes(): int(label)
            for images, labels in batches
            for image, label in zip(images, labels, strict=True)
        }

    first, second_pass, next_one = (labels_by_image(steps) for steps in ((0, 1), (2, 3), (4, 5)))
    assert first == second_pass
    assert first.keys() == next_one.keys()
    agree = sum(first[image] == next_one[image] for image in first) / len(first)
    assert 0 < agree < 0.4  # of ten classes, one in ten by chance


@pytest.mark.parametrize("sequence", ["permuted-pixels", "random-labels"])
def test_a_model_is_judged_on_the_sub_task_of_the_last_step(sequence):
    found = task(continual_config(sequence))

    class Remembers(nn.Module):
        """Answers with the label that an image had when it was last learnt."""

        def __init__(self):
            super().__init__()
            self.known = {}

        def forward(self, images):
            answers = [self.known.get(image.numpy().tobytes(), 0) for image in images]
            return nn.functional.one_hot(torch.tensor(answers), 10).float()

    model = Remembers()

    def learn(steps):
        for step in steps:
            images, labels = found.batch(step)
            model.known.update(
                {image.numpy().tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
            )

    learn((0, 1))
    assert found.evaluate(model)["subtask_error"] == 0.0
    found.batch(4)
    assert found.evaluate(model)["subtask_error"] > 50.0
    learn((4, 5))
    assert found.evaluate(model)["subtask_error"] == 0.0


def test_processes_share_steps_and_evaluations():
    config = continual_config("permuted-pixels")
    whole = task(config).batch(5)
    shares = [task(config, rank, 2).batch(5) for rank in range(2)]
    for part in (0, 1):
        assert torch.equal(torch.cat([share[part] for share in shares]), whole[part])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(requires_grad=False)
    alone = task(config).evaluate(model)["subtask_error"]
    assert alone == pytest.approx(sum(task(config, rank, 2).evaluate(model)["subtask_error"] for rank in range(2)))


def test_a_run_has_the_error_of_each_sub_task_and_the_report_reads_it(tmp_path):
    config = continual_config("permuted-pixels", data={"passes": 15}, steps=240)
    folder = RunFolder(tmp_path / "train" / config.run_name)
    result = execute(config, load("digits"), folder, Processes(), Quiet())
    runs, left_out = read_runs(tmp_path)
    assert left_out == {}
    errors = [line["subtask_error"] for line in runs.history[0].evaluations]
    assert len(errors) == 8
    assert result["subtask_error"] == errors[-1] < 30.0
    assert runs.first_subtask_error[0] == errors[0]
    assert runs.late_subtask_error[0] == sum(errors[-2:]) / 2
    [section] = collect(tmp_path).sections
    assert section.table.columns[0].title == "error on the current sub-task (%)"
    assert section.artefact.protocol.startswith("AdamW")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data": {"passes": None}}, "sub-tasks need data.sequence, data.examples and data.passes, all three"),
        ({"model": "ladder", "model_options": {}, "data": {"labels": 20}}, "data.sequence is for classifiers"),
    ],
)
def test_a_configuration_without_sense_is_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        continual_config("random-labels", **fields)


def test_more_examples_than_there_are_images_are_refused():
    with pytest.raises(
        UsageError, match=r"data.examples must be between the batch size \(32\) and .*\(1,437\), not 2000"
    ):
        task(continual_config("random-labels", data={"examples": 2000}))
