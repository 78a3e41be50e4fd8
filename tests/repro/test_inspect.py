"""`pbwn inspect`: any importable model, and a sentence for each misuse."""

import pytest
from typer.testing import CliRunner

from pbwn_repro.cli import app

MODULE = '''
from torch import nn

number = 3
ready = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

def build(width=8, *, deep=False):
    """Return a model."""
    return nn.Sequential(nn.Embedding(5, width), nn.Linear(width, width), nn.Linear(width, 2))

def text():
    return "no model"

def raising():
    raise KeyError("the weights")

class Holder:
    make = staticmethod(build)
    needs = staticmethod(lambda width: build(width))
'''


@pytest.fixture
def inspect(tmp_path, monkeypatch):
    """The command in a folder that holds some modules: what it printed, or the words of its error."""
    (tmp_path / "my_models.py").write_text(MODULE)
    (tmp_path / "my_script.py").write_text("raise SystemExit('usage: my_script FILE')")
    (tmp_path / "my_needs.py").write_text("import no_such_package")
    (tmp_path / "my_slip.py").write_text("import os\ndef broken(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("unused")  # puts sys.path back afterwards

    def run(*words):
        done = CliRunner().invoke(app, ["inspect", *words])
        if isinstance(done.exception, ValueError):
            return str(done.exception)
        assert done.exit_code == 0, done.output
        return done.output

    return run


def test_a_model_in_the_current_folder_is_shown(inspect):
    printed = inspect("my_models:ready")
    assert printed.startswith("1 weight constrained (8 neurons,")
    assert "output layer: '2'" in printed


def test_a_callable_is_called_with_its_arguments(inspect):
    assert "(16 neurons," in inspect("my_models:build", "--set", "width=16", "--set", "deep=true")
    assert "(8 neurons," in inspect("my_models:Holder.make")


def test_the_networks_of_the_paper_are_shown_as_the_experiments_constrain_them(inspect):
    assert inspect("resnet-20").startswith("19 weights constrained (688 neurons,")
    assert "output layer: 'classifier' (as given)" in inspect("resnet-20")
    assert "classifier.weight" not in inspect("mlp").partition("left alone  ")[2]  # the MLP's output is constrained
    assert "100x64" in inspect("resnet-20", "--set", "num_classes=100")
    ladder = inspect("ladder", "--skip", "decoder.0.linear")  # beside those that the experiments skip
    assert "skipped by 'decoder.*.combinator.*'" in ladder
    assert "skipped by 'decoder.0.linear'" in ladder


def test_wishes_are_those_of_attach(inspect):
    assert "(13 neurons," in inspect("my_models:build", "--also", "0")
    assert "(5 neurons," in inspect("my_models:build", "--only", "0")
    assert "(2 neurons," in inspect("my_models:build", "--output-layer", "1")
    assert "(10 neurons," in inspect("my_models:build", "--output-layer", "none")
    assert "(5 neurons," in inspect("my_models:build", "--axes", "0.weight=[0]", "--skip", "1")
    assert "(4 neurons," in inspect("my_models:ready", "--direction", "outgoing")


MISUSES = {
    "no such network": (["resnet20"], "unknown model 'resnet20': did you mean 'resnet-20'?"),
    "a way to name one's own": (["my_models"], "For a model of your own, write MODULE:CALLABLE"),
    "a depth that cannot be": (["resnet-21"], "resnet-21 cannot be built: resnet: depth 21"),
    "an option that it lacks": (
        ["resnet-20", "--set", "depht=3"],
        "resnet-20 cannot be built: resnet-20 has no option",
    ),
    "nothing behind the colon": (["my_models:"], "'my_models:' does not name a model"),
    "no such module": (["my_modles:build"], "no module named 'my_modles': install it, or run from the folder"),
    "a module that lacks another": (["my_needs:build"], "module 'my_needs' needs 'no_such_package'"),
    "a script": (
        ["my_script:build"],
        "module 'my_script' cannot be imported (SystemExit: usage: my_script FILE at my_script.py:1)",
    ),
    "a slip of the pen": (
        ["my_slip:build"],
        "module 'my_slip' cannot be imported (SyntaxError: invalid syntax at my_slip.py:2): fix it",
    ),
    "no such name": (["my_models:bild"], "module 'my_models' has no 'bild': did you mean 'build'?"),
    "no model": (["my_models:number"], "my_models:number is of type int: expected a callable that returns a model"),
    "another thing returned": (
        ["my_models:text"],
        "my_models:text returned an object of type str: expected a torch.nn.Module",
    ),
    "a call that fails": (["my_models:raising"], "my_models:raising() failed with KeyError: 'the weights'"),
    "a wrong argument": (["my_models:build", "--set", "wide=3"], "my_models:build(wide=3) failed with TypeError"),
    "an argument that is missing": (["my_models:Holder.needs"], ". Pass arguments with --set: see --help"),
    "an argument for a model": (["my_models:ready", "--set", "width=3"], "is a model already: it takes no --set width"),
    "an argument without value": (["my_models:build", "--set", "width"], "--set 'width': write NAME=VALUE"),
    "axes in words": (
        ["my_models:build", "--axes", "0.weight=first"],
        "axes are integers, such as 0.weight=[0,1]",
    ),
    "a pattern that fits nothing": (["my_models:ready", "--skip", "head"], "my_models:ready: "),
    "axes that nobody knows": (["my_models:build", "--axes", "0.weight=[7]"], "my_models:build: "),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_each_misuse_is_answered_with_what_to_do(misuse, inspect):
    words, answer = MISUSES[misuse]
    assert answer in inspect(*words)


def test_the_scale_of_each_weight_is_shown_for_a_network_of_the_paper(inspect):
    printed = inspect("mlp", "--invariance")
    assert "its scale" in printed
    assert "passes on" in printed


def test_a_model_of_the_users_own_needs_the_shape_of_its_inputs(inspect):
    assert "--inputs 8x3x32x32" in inspect("my_models:build", "--invariance")
    printed = inspect("my_models:build", "--inputs", "4x3:5")
    assert "0.weight  5x8    has meaning  not constrained" in printed
    assert "sizes such as 8x3x32x32" in inspect("my_models:build", "--inputs", "4,5")
    assert "refuses these inputs" in inspect("my_models:ready", "--inputs", "4x5")
    assert "for token ids below 96" in inspect("my_models:build", "--invariance")
    refused = inspect("my_models:build", "--inputs", "4x3")
    assert refused.endswith("For token ids, write --inputs 4x3:VOCABULARY")
