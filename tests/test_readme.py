"""The README's snippets run, in order, and what it shows is what is printed."""

import re
from pathlib import Path

import accelerate
import lightning.pytorch
import pytest
import torch
import transformers
from torch import nn

import pbwn

README = (Path(__file__).parents[1] / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

pytestmark = pytest.mark.filterwarnings("ignore:.*neuron axes are unknown")  # of the experts in the README's table

FRAMEWORKS = ("integrations.lightning", "integrations.transformers", "accelerator.prepare")


class Net(nn.Module):
    """The model of the table in the README."""

    def __init__(self):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, 8, 8))
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 8, 2, groups=2, bias=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.up(torch.relu(self.norm(self.conv(x)))).flatten(1)[:, :32])


class Experts(nn.Module):
    pass


class EveryOption(nn.Module):
    """A model in which each option of the README's list finds what it names."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 4)
        self.experts = nn.Parameter(torch.randn(2, 3, 4))
        self.mlp = nn.ModuleDict({"gate": nn.Linear(4, 4), "up": nn.Linear(4, 4)})
        self.head = nn.Linear(4, 2)


def test_the_first_code_is_a_training_loop_with_one_added_line():
    added = [line for line in SNIPPETS[0].splitlines() if "pbwn." in line]
    assert added == ["projection = pbwn.attach(model, optimizer)  # the added line"]


def test_the_snippets_run_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("pbwn.axes._KNOWN", dict(pbwn.axes._KNOWN))
    names = {
        "torch": torch,
        "model": Net(),
        "another_model": Net(),
        "loader": [(torch.randn(4, 3, 4, 4), torch.randint(0, 10, (4,))) for _ in range(2)],
        "loss_function": nn.CrossEntropyLoss(),
        "Experts": Experts,
        "path": tmp_path / "checkpoint.pt",
    }
    for snippet in SNIPPETS:
        if any(word in snippet for word in FRAMEWORKS):
            continue
        if snippet.count("pbwn.attach(") > 1:
            check_each_option(snippet)
            continue
        if "state=checkpoint" in snippet:
            names["projection"].detach()
        exec(snippet, names)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_snippet_of_each_framework_runs(framework, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [snippet] = [snippet for snippet in SNIPPETS if framework in snippet]
    model = Net()
    names = {
        "pbwn": pbwn,
        "lightning": lightning.pytorch,
        "transformers": transformers,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "arguments": transformers.TrainingArguments("out", report_to=[], use_cpu=True),
        "accelerator": accelerate.Accelerator(cpu=True),  # after the arguments, which reset Accelerate's globals
        "data": [],
    }
    exec(snippet, names)
    if "projection" in names:
        assert names["projection"].check().ok
    else:
        handler = getattr(names["trainer"], "callback_handler", names["trainer"])
        assert any(isinstance(callback, names["ProjectionCallback"]) for callback in handler.callbacks)


def check_each_option(snippet):
    lines = [line for line in snippet.splitlines() if line.startswith("pbwn.attach")]
    assert len(lines) > 5
    for line in lines:
        model = EveryOption()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        half = len(list(model.parameters())) // 2
        sgd = torch.optim.SGD(list(model.parameters())[:half], lr=0.1)
        adamw = torch.optim.AdamW(list(model.parameters())[half:])
        exec(line, {"pbwn": pbwn, "model": model, "optimizer": optimizer, "sgd": sgd, "adamw": adamw})


def test_the_table_shown_is_the_table_printed():
    [shown] = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
    assert str(pbwn.select(Net())) == shown.rstrip("\n")


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_targets_of_make(target):
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert f"make {target}" in README
    assert f"\n{target}:" in makefile
