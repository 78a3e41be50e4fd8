"""The examples run as they are, and show what they say."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pbwn

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name):
    """Run an example in this process, and return its names."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ends_with_a_baseline(printed, *errors):
    """Whether an example's last lines have both errors, and say which differences are noise."""
    *_, noise, last = printed.splitlines()
    return "one seed each" in noise and all(f"{error:.1f}" in last for error in errors)


def test_the_network_from_scratch_takes_30_lines():
    code = re.sub(r'"{3}.*?"{3}', "", (EXAMPLES / "cnn.py").read_text(), flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30


def test_a_fine_tuned_transformer_keeps_the_norms_that_it_had(capsys):
    example = run("finetune_transformer")
    assert example.callback.certificate.ok
    torch.manual_seed(0)
    start = type(example.model)(example.config)
    for weight in example.callback.projection.selection.constrained:
        before, after = start.get_parameter(weight.name), example.model.get_parameter(weight.name)
        torch.testing.assert_close(after.norm(dim=1), before.norm(dim=1))
        assert not torch.equal(after, before)
    printed = capsys.readouterr().out
    assert "pbwn_deviation" in printed
    assert example.error < 10  # guessing gives 22
    assert ends_with_a_baseline(printed, example.baseline, example.error)


@pytest.mark.filterwarnings("ignore:.*neuron axes are unknown")  # which it shows first
def test_a_custom_layer_is_constrained_once_its_axes_are_known(monkeypatch, capsys):
    monkeypatch.setattr("pbwn.axes._KNOWN", dict(pbwn.axes._KNOWN))
    example = run("custom_layer")
    torch.testing.assert_close(example.model[2].weight.norm(dim=2), torch.ones(4, 16))
    assert example.projection.check().ok
    printed = capsys.readouterr().out
    assert "neuron axes unknown" in printed.partition("UnitNorm")[0]
    assert ends_with_a_baseline(printed, example.baseline, example.error)


def test_the_methods_are_compared_on_a_model_of_ones_own(capsys):
    example = run("compare_methods")
    example.EPOCHS, example.SEEDS, example.LEARNING_RATES = 2, 2, (0.1,)
    example.main()
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == len(example.METHODS)
    errors = [float(re.search(r"([\d.]+) ± ", row)[1]) for row in rows]
    assert all(0 < error < 60 for error in errors)  # guessing gives 67
    assert len(set(errors)) > 2  # the methods differ
    assert all(re.search(r"[+-][\d.]+ \([+-][\d.]+ to [+-][\d.]+\)$", row) for row in rows[1:])


@pytest.mark.parametrize(
    ("name", "worst"),
    [("cnn", 30.0), ("nanogpt", 3.5), ("muon", 15.0), ("lora", 30.0)],  # guessing: a loss of 4.5, errors of 90 %
)
def test_a_loop_as_people_have_it_trains_with_one_line_more_and_a_baseline_beside_it(name, worst, capsys):
    example = run(name)
    printed = capsys.readouterr().out
    assert "\nok: largest deviation" in printed
    value = example.loss if name == "nanogpt" else example.error
    assert value < worst
    assert example.baseline < worst
    assert f"{example.baseline:.1f}" in printed.splitlines()[-1]


@pytest.mark.long
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed training")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fsdp2", "norms in the plain model: 1.000000 to 1.000000"),
        ("torchtitan", "with fixed norms; without the interruption"),
    ],
)
def test_a_sharded_model_trains_under_torchrun(name, words):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [*torchrun, EXAMPLES / f"{name}.py"], capture_output=True, text=True, env={**os.environ, **threads}
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes, ok: largest deviation" in done.stdout
    assert words in done.stdout
    if name == "torchtitan":
        resumed, straight = re.search(
            r"([\d.]+) with fixed norms; without the interruption ([\d.]+)", done.stdout
        ).groups()
        assert resumed == straight
