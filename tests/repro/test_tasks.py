"""The language task: which characters it learns from and is judged by, and texts that cannot be used."""

import math

import pytest
import torch
from torch import nn

from pbwn_repro.config import AdamW
from pbwn_repro.data import DataError, load
from pbwn_repro.engine.processes import Processes
from pbwn_repro.engine.reporting import Quiet
from pbwn_repro.engine.training import Progress
from pbwn_repro.errors import UsageError
from pbwn_repro.metrics import BITS_PER_CHARACTER, TEST_ERROR
from pbwn_repro.models import build
from pbwn_repro.runs.execution import execute
from pbwn_repro.runs.folder import RunFolder
from pbwn_repro.tasks import make_task, metric_of
from storm import digits_config

SMALL = {"width": 16, "depth": 1, "heads": 2}


def language_config(**fields):
    shared = {"source": "sentences", "model": "char-gpt", "method": "pbwn", "model_options": SMALL}
    return digits_config(**{**shared, "data": {"context": 16}, "batch_size": 8, **fields})


def task(config, rank=0, count=1):
    class Share(Processes):
        def sum(self, values):
            return values

    return make_task(config, load("sentences"), Share(rank, count), 0)


class Counts(nn.Module):
    """Scores that depend on the character before alone; notes all that it has seen."""

    def __init__(self, scores):
        super().__init__()
        self.scores, self.seen = scores, []

    def forward(self, characters):
        self.seen.append(characters.flatten())
        return self.scores[characters]


def test_the_metric_of_a_run_follows_from_its_data():
    assert metric_of(language_config()) is BITS_PER_CHARACTER
    assert metric_of(digits_config(model="mlp", method="pbwn")) is TEST_ERROR
    assert (BITS_PER_CHARACTER.format(1.5), TEST_ERROR.format(1.5)) == ("1.500 bits/char", "1.50 %")


def test_every_character_of_the_test_text_but_the_first_is_predicted_once():
    text = load("sentences")
    scores = torch.randn(len(text.classes), len(text.classes))
    model = Counts(scores)
    found = task(language_config()).evaluate(model)
    characters = text.splits["test"].long()
    losses = nn.functional.cross_entropy(scores[characters[:-1]], characters[1:])
    assert torch.equal(torch.cat(model.seen), characters[:-1])
    assert found["test_loss"] == pytest.approx(losses.item(), rel=1e-6)
    assert found["test_bits_per_character"] == pytest.approx(losses.item() / math.log(2), rel=1e-6)


def test_processes_share_steps_and_evaluations():
    config = language_config()
    whole = task(config).batch(3)
    shares = [task(config, rank, 2).batch(3) for rank in range(2)]
    for part in (0, 1):
        assert torch.equal(torch.cat([share[part] for share in shares]), whole[part])
    assert torch.equal(whole[0][:, 1:], whole[1][:, :-1])
    model = Counts(torch.randn(40, 40))
    alone = task(config).evaluate(model)["test_loss"]
    assert alone == pytest.approx(sum(task(config, rank, 3).evaluate(model)["test_loss"] for rank in range(3)))


def test_steps_see_other_sequences_and_the_same_again_when_resumed():
    config = language_config()
    first = task(config)
    assert not torch.equal(first.batch(0)[0], first.batch(1)[0])
    assert torch.equal(task(config).batch(7)[0], first.batch(7)[0])
    assert not torch.equal(task(language_config(seed=2)).batch(0)[0], first.batch(0)[0])


def test_a_character_level_gpt_learns_and_keeps_to_the_spheres(tmp_path):
    config = language_config(steps=150, optimizer={"kind": "adamw", "lr": 0.01}, checkpoint_every=None)
    result = execute(config, load("sentences"), RunFolder(tmp_path / "run"), Processes(), Quiet())
    assert result["test_bits_per_character"] < 3.6 < math.log2(36)
    assert result["best_test_bits_per_character"] <= result["test_bits_per_character"]
    assert result["constrained_weights"] == 6
    assert result["deviation_exported"] < 2e-6


def test_decay_is_for_matrices_alone():
    model = build("char-gpt", **SMALL)
    decayed, free = AdamW(weight_decay=0.1).make(model).param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert {parameter.ndim for parameter in decayed["params"]} == {2}
    assert {parameter.ndim for parameter in free["params"]} == {1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "expected a text file, found none"),
        (b"\xff\xfe" * 200, "expected text in UTF-8"),
        (b"short", "expected 200 characters or more, found 5"),
    ],
)
def test_a_file_that_is_no_text_is_named(content, words, tmp_path):
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(DataError, match=words):
        load(f"text:{tmp_path / 'text.txt'}")


def test_a_text_is_known_by_its_content_and_not_by_its_place(tmp_path):
    (tmp_path / "a").mkdir()
    for path in ("my tale.txt", "a/my tale.txt", "other.txt"):
        (tmp_path / path).write_text("ünïcode\r\n" * 40)
    one, two, other = (load(f"text:{tmp_path / path}") for path in ("my tale.txt", "a/my tale.txt", "other.txt"))
    assert (one.name, one.digest) == (two.name, two.digest) == ("text-my-tale", other.digest)
    assert "".join(one.classes[place] for place in torch.cat(tuple(one.splits.values()))) == "ünïcode\r\n" * 40
    with pytest.raises(DataError, match="Pass the file: --data text:FILE"):
        load(one.name)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"context": 5_000}, "data.context 5000: the shortest split of sentences has 951 characters"),
        ({"context": 16, "test": "extra"}, "a text has the splits train and test, not extra"),
    ],
)
def test_a_text_that_does_not_fit_the_configuration_is_refused(data, words):
    with pytest.raises(UsageError, match=words):
        task(language_config(data=data))


def test_checkpoints_from_when_every_metric_was_an_error_are_read():
    before = b"""{"best_error": 2.5, "best_step": 8, "error": 3.0, "loss_sum": 0.0, "losses_lost": 0,
                 "metrics_bytes": 9, "skipped": 0, "step": 12, "top5_error": null}"""
    found = Progress.read(before)
    assert (found.best, found.best_step, found.step) == (2.5, 8, 12)
    assert found.metrics == {"test_error": 3.0, "test_top5_error": None}
