"""After SIGKILL at any moment, a run that is started again ends byte for byte like one that was never interrupted."""

import random
import signal

import pytest

from storm import contents, digits_config, run

SCENARIOS = {
    "a CNN with augmentation and dropout": {
        "model": "wrn-10-1",
        "method": "pbwn",
        "data": {"augmentation": "he"},
        "schedule": {"kind": "steps", "drops": [2], "factor": 0.1},
        "epochs": 2,
        "batch_size": 288,
    },
    "the Ladder with its noise": {
        "model": "ladder",
        "method": "pbwn",
        "model_options": {"hidden_sizes": [24, 12], "denoising_weights": [1000.0, 10.0, 0.1]},
        "data": {"labels": 20},
        "optimizer": {"kind": "adam", "weight_decay": 1e-4},
        "schedule": {"kind": "linear-tail", "constant_steps": 6},
    },
    "gradient accumulation with tangent gradients": {
        "model": "resnet-8",
        "method": "pbwn-riem",
        "accumulation": 2,
        "log_every": 5,
    },
    "an interval in the middle": {"model": "resnet-8", "method": "pbwn-t5"},
    "a projection after each epoch, with dropout": {
        "model": "wrn-10-1",
        "method": "pbwn-epoch",
        "epochs": 3,
        "batch_size": 288,
    },
    "a character-level GPT on text": {
        "source": "sentences",
        "model": "char-gpt",
        "method": "pbwn-t5",
        "model_options": {"width": 16, "depth": 1, "heads": 2},
        "data": {"context": 16},
        "optimizer": {"kind": "adamw", "weight_decay": 0.1},
        "schedule": {"kind": "cosine", "warmup_steps": 4, "final": 0.1},
        "log_every": 5,
    },
    "Adam along great circles": {
        "model": "resnet-8",
        "method": "adam-g",
        "optimizer": {"kind": "sgd", "momentum": 0.9},
    },
    "momentum that is carried along, reset when the rate drops": {
        "model": "resnet-8",
        "method": "sgd-g",
        "schedule": {"kind": "steps", "drops": [2], "factor": 0.1},
        "epochs": 2,
        "batch_size": 288,
    },
    "rows made orthonormal in each pass": {"model": "resnet-8", "method": "own"},
    "sub-tasks one after the other": {
        "model": "mlp",
        "method": "pbwn",
        "model_options": {"sizes": "small"},
        "data": {"sequence": "permuted-pixels", "examples": 64, "passes": 2},
        "optimizer": {"kind": "adamw"},
    },
    "two processes with sharded weights": {"model": "resnet-8", "method": "pbwn", "processes": 2, "shard": True},
    "two processes": {"model": "resnet-8", "method": "pbwn", "processes": 2, "data": {"augmentation": "authors"}},
}
# One after the other in one folder, each in a process of its own that resumes where the last was interrupted.
FEW_MOMENTS = [("step", 1), ("stage", "optimizer.pt written", 2), ("step", 8)]
MOMENTS = [
    ("step", 1),
    ("stage", "folder made", 1),
    ("stage", "optimizer.pt written", 1),
    ("stage", "renamed", 1),
    ("evaluation", 1),
    ("stage", "manifest.json written", 2),
    ("step", 8),
    ("stage", "pruned", 1),
    ("step", 12),
    ("stage", "pruned", 1),  # after the last checkpoint, before the run's end
]


# Each keeps another kind of state: noise and dropout, a gradient in parts, momentum, a position in a text, processes.
FEW_SCENARIOS = (
    "a CNN with augmentation and dropout",
    "the Ladder with its noise",
    "gradient accumulation with tangent gradients",
    "a character-level GPT on text",
    "momentum that is carried along, reset when the rate drops",
    "sub-tasks one after the other",
    "two processes",
)


@pytest.mark.parametrize("scenario", FEW_SCENARIOS)
def test_a_run_killed_at_some_moments_ends_like_one_that_never_was(scenario, tmp_path):
    assert killed_at(FEW_MOMENTS, scenario, tmp_path) == 3


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_killed_again_and_again_ends_like_one_that_never_was(scenario, tmp_path):
    assert killed_at(MOMENTS, scenario, tmp_path) >= 5


def killed_at(moments, scenario, tmp_path):
    """Kill a run at these moments and compare it with one that was not; how often it was killed."""
    config = digits_config(**SCENARIOS[scenario])
    assert run(config, tmp_path / "whole") == [0] * config.processes
    killed = 0
    for moment in moments:
        killed += -signal.SIGKILL in run(config, tmp_path / "storm", moment)
    assert run(config, tmp_path / "storm") == [0] * config.processes
    expected, found = contents(tmp_path / "whole"), contents(tmp_path / "storm")
    assert found.keys() == expected.keys()
    assert {name for name in found if found[name] != expected[name]} == set()
    assert {"result.json", "model.safetensors", "metrics.jsonl"} <= expected.keys()
    return killed


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_long_storm_of_kills_at_random_moments(scenario, tmp_path):
    config = digits_config(**{**SCENARIOS[scenario], "checkpoint_every": 1})
    assert run(config, tmp_path / "whole") == [0] * config.processes
    numbers, killed = random.Random(scenario), 0
    while not (tmp_path / "storm" / "result.json").exists():
        # The first is too short for any run, on any machine; it grows, so that the run does end.
        patience = numbers.uniform(0.02, 0.05 + 0.3 * killed)
        killed += -signal.SIGKILL in run(config, tmp_path / "storm", after=patience)
    assert killed > 0
    assert contents(tmp_path / "storm") == contents(tmp_path / "whole")
