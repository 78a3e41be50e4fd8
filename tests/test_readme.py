"""The README's snippets run, in order, and what it shows is what is printed."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import pbwn

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
OPTIONS = (ROOT / "docs" / "options.md").read_text()


def snippets(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


pytestmark = pytest.mark.filterwarnings("ignore:.*neuron axes are unknown")  # of the experts in the README's table


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


def model_and_data():
    model = Net()
    return {
        "torch": torch,
        "pbwn": pbwn,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "another_model": Net(),
        "loader": [(torch.randn(4, 3, 4, 4), torch.randint(0, 10, (4,))) for _ in range(2)],
        "loss_function": nn.CrossEntropyLoss(),
        "Experts": Experts,
    }


def test_the_first_code_is_a_training_loop_with_an_import_and_one_added_line_and_it_runs():
    first, *others = snippets(README, "diff")
    assert not others
    added = [line for line in first.splitlines() if line.startswith("+")]
    assert added == ["+ projection = pbwn.attach(model, optimizer)"]
    names = model_and_data()
    exec("\n".join(line[2:] for line in first.splitlines()), names)
    assert names["projection"].check().ok


@pytest.mark.parametrize("text", [README, OPTIONS], ids=["readme", "options"])
def test_the_snippets_run_in_order(text, monkeypatch):
    monkeypatch.setattr("pbwn.axes._KNOWN", dict(pbwn.axes._KNOWN))
    names = model_and_data()
    found = snippets(text, "python")
    assert found
    for snippet in found:
        if snippet.count("pbwn.attach(") > 1:
            check_each_option(snippet)
        else:
            exec(snippet, names)


def test_the_readme_is_short_and_shows_numbers_and_a_figure_before_anything_else():
    lines = README.splitlines()
    assert len(lines) <= 150
    headings = [line for line in lines if line.startswith("## ")]
    assert headings[0] == "## Measured"
    assert README.index("<picture>") < README.index("## Measured")


def test_what_the_readme_links_to_is_there():
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", README):
        assert (ROOT / "".join(target)).exists(), target


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
    [shown] = snippets(OPTIONS, "text")
    assert str(pbwn.select(Net())) == shown.rstrip("\n")


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_targets_of_make(target):
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert f"make {target}" in README
    assert f"\n{target}:" in makefile
