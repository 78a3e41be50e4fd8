"""The README's snippets run, in order, and what it links to is there."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import pbwn

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def snippets(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


pytestmark = pytest.mark.filterwarnings("ignore:.*neuron axes are unknown")  # of the experts in the README's table


class Net(nn.Module):
    """A model for the README's snippets."""

    def __init__(self):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, 8, 8))
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 8, 2, groups=2, bias=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.up(torch.relu(self.norm(self.conv(x)))).flatten(1)[:, :32])


def model_and_data():
    model = Net()
    return {
        "torch": torch,
        "pbwn": pbwn,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": [(torch.randn(4, 3, 4, 4), torch.randint(0, 10, (4,))) for _ in range(2)],
        "loss_function": nn.CrossEntropyLoss(),
    }


def test_the_first_code_is_a_training_loop_with_an_import_and_one_added_line_and_it_runs():
    first, *others = snippets(README, "diff")
    assert not others
    added = [line for line in first.splitlines() if line.startswith("+")]
    assert added == ["+ projection = pbwn.attach(model, optimizer)"]
    names = model_and_data()
    exec("\n".join(line[2:] for line in first.splitlines()), names)
    assert names["projection"].check().ok


def test_the_snippets_run_in_order():
    names = model_and_data()
    found = snippets(README, "python")
    assert found
    for snippet in found:
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


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_targets_of_make(target):
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert f"make {target}" in README
    assert f"\n{target}:" in makefile
