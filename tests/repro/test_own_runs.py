"""A user's own model: trained, swept over a grid, reported, by the commands that a user writes."""

import html
import json
import re
import shutil
import subprocess
import sys

import pytest
import safetensors.torch

from pbwn.monitor import QUANTITIES
from pbwn_repro import cli
from pbwn_repro.exit_codes import NON_FINITE, USAGE
from pbwn_repro.report.sections import collect
from storm import contents

MODULE = """
from torch import nn

def build(num_classes, image_size, *, width=16):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(image_size**2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, num_classes),
    )

def tied(num_classes, image_size):
    model = nn.Sequential(build(16, image_size), nn.ReLU(), build(num_classes, 4))
    model[2][3].weight = model[0][3].weight
    return model

def regression(image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(image_size**2, 1))

def looks_at_values(num_classes):
    model = build(num_classes, 8)
    assert model[1].weight.sum().item() < 100  # which no meta tensor can answer
    return model

def any_options(**options):
    return build(image_size=8, **options)

def divides(num_classes):
    return build(num_classes // 0, 8)

def takes_seven(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, num_classes))

class Fails(nn.Module):
    def __init__(self, num_classes):
        super().__init__()

    def forward(self, images):
        return images.nonsense

def embedding(num_classes, context):
    return nn.Embedding(num_classes, num_classes)
"""
CHANGED = "own_models:build changed after the run finished: to run it again, choose another --out"
SHORT = ("--data", "digits", "--steps", "4", "--batch-size", "32")


@pytest.fixture
def here(here, monkeypatch, tmp_path):
    """A command in a folder with the user's module: its exit code and what it printed to both outputs."""
    (tmp_path / "own_models.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("\nbuild = bulid\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PBWN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    yield here
    sys.modules.pop("own_models", None)


def test_a_model_of_the_user_s_trains_resumes_and_is_exported(here, tmp_path):
    words = ("train", "--model", "own_models:build", *SHORT, "--set", "model_options.width=8")
    code, said, _ = here(*words)
    assert code == 0
    [folder] = (tmp_path / "runs" / "train").iterdir()
    assert folder.name.startswith("own_models.build-pbwn-seed1-")
    assert said.startswith(f"{folder.name}: test error ")
    assert json.loads((folder / "config.json").read_text())["model"] == "own_models:build"
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    assert weights["1.weight"].shape == (8, 64)
    assert weights["1.weight"].norm(dim=1).tolist() == pytest.approx([1.0] * 8)
    before = contents(folder)
    (folder / "result.json").unlink()
    assert here(*words)[0] == 0
    assert contents(folder) == before


def test_a_model_with_tied_weights_trains_resumes_and_is_exported(here, tmp_path):
    words = ("train", "--model", "own_models:tied", *SHORT, "--checkpoint-every", "2")
    assert here(*words)[0] == 0
    [folder] = (tmp_path / "runs" / "train").iterdir()
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    assert weights["2.3.weight"].equal(weights["0.3.weight"])
    before = contents(folder)
    (folder / "result.json").unlink()
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    assert here(*words)[0] == 0
    assert contents(folder) == before


def test_a_bug_in_a_method_of_the_user_s_keeps_its_traceback(here, tmp_path):
    (tmp_path / "own_methods.py").write_text(
        "from pbwn_repro.methods import Method\n"
        "class Mine(Method):\n"
        "    def prepare(self, model, layers):\n"
        "        raise ValueError('a bug of mine')\n"
    )
    with pytest.raises(ValueError, match="a bug of mine"):
        here("train", "--model", "own_models:build", *SHORT, "--method", "own_methods:Mine")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("optimizer(self, model, settings, layers)", "optimizer() returned None: return the optimizer of the model"),
        (
            "attach(self, model, optimizer, layers, *, initial=True, state=None)",
            "attach() returned None: return what pbwn.attach returns, so that its state is saved, or set constraint",
        ),
    ],
)
def test_a_method_of_the_user_s_that_forgets_to_return_says_so(step, words, here, tmp_path):
    head = "import pbwn\nfrom pbwn_repro.methods import Method\nclass Mine(Method):\n    constraint = pbwn.UnitNorm()\n"
    (tmp_path / "forgetful.py").write_text(f"{head}    def {step}:\n        pass\n")
    try:
        code, _, told = here("train", "--model", "own_models:build", *SHORT, "--method", "forgetful:Mine")
    finally:
        sys.modules.pop("forgetful", None)
    assert (code, f"pbwn: forgetful:Mine: {words}" in told) == (USAGE, True), told


def test_what_the_library_refuses_about_a_model_of_the_user_s_is_one_line(here):
    words = ("train", "--model", "own_models:embedding", "--data", "text:own_models.py", "--steps", "2")
    words += ("--set", "data.context=8")
    code, _, told = here(*words)
    assert code == 2
    assert told.startswith("pbwn: own_models:embedding: nothing to constrain")


def test_a_finished_run_whose_model_has_changed_says_so(here, tmp_path):
    words = ("train", "--model", "own_models:build", *SHORT)
    assert here(*words)[0] == 0
    (tmp_path / "own_models.py").write_text(f"{MODULE}\n# another\n")
    code, _, told = here(*words)
    assert code == 0
    assert CHANGED in told


def test_a_sweep_of_finished_runs_whose_model_has_changed_says_so_once(here, tmp_path):
    words = ("sweep", "--model", "own_models:build", *SHORT, "--quiet")
    assert here(*words) == (0, "2 of 2 runs done, in runs\n", "")
    (tmp_path / "own_models.py").write_text(f"{MODULE}\n# another\n")
    assert here(*words) == (0, f"{CHANGED}\n2 of 2 runs done (2 from before), in runs\n", "")


@pytest.mark.parametrize(
    ("model", "more", "words"),
    [
        ("own_models:regression", (), "returns scores of shape (2, 1) for inputs of shape (2, 1, 8, 8)"),
        ("own_models:bulid", (), "module 'own_models' has no 'bulid': did you mean 'build'?"),
        ("own_models:build", ("--set", "model_options.depth=2"), "unexpected keyword argument 'depth'"),
        ("own_models:build", ("--set", "model_options.num_classes=2"), "is determined by the data and cannot be set"),
        ("own_models:build", ("--set", "model_options.depth=2"), "Pass arguments with --set: see --help"),
        ("own_models:embedding", ("--data", "sentences"), "own_models:embedding: nothing to constrain"),
        (
            "own_models:divides",
            (),
            "ZeroDivisionError: integer division or modulo by zero at own_models.py:",
        ),
        ("own_models:Fails", (), "AttributeError: 'Tensor' object has no attribute 'nonsense' at own_models.py:"),
        ("own_models:takes_seven", (), "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x64 and 7x10)\n"),
        ("own_broken:build", (), "cannot be imported (NameError: name 'bulid' is not defined at own_broken.py:2)"),
    ],
)
def test_a_model_that_cannot_be_trained_says_what_to_change(model, more, words, here):
    code, _, told = here("train", "--model", model, *SHORT, *more)
    assert (code, words in told) == (USAGE, True), told


def test_a_package_that_a_method_of_the_user_s_lacks_is_not_blamed_on_the_suite(tmp_path):
    lines = ["from pbwn_repro.methods import Method", "class Lazy(Method):", "    def prepare(self, model, layers):"]
    (tmp_path / "own_methods.py").write_text("\n".join([*lines, "        import notthere_lib", ""]))
    words = ("train", "--model", "mlp", *SHORT, "--method", "own_methods:Lazy")
    command = [sys.executable, "-m", "pbwn_repro", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "pip install" not in done.stderr
    assert "own_methods.py" in done.stderr
    assert done.stderr.endswith("No module named 'notthere_lib'\n")


def test_a_callable_that_takes_any_options_is_told_the_number_of_classes(here):
    code, said, told = here("train", "--model", "own_models:any_options", *SHORT)
    assert (code, "test error" in said) == (0, True), told


GRID = ("--methods", "normal,pbwn", "--rates", "0.1,0.3,1", "--decays", "0,5e-4", "--seeds", "2")


def test_what_the_monitor_has_recorded_is_drawn_in_the_report(here, tmp_path):
    words = ("train", "--model", "own_models:build", *SHORT)
    assert here(*words, "--monitor", "1")[0] == 0
    assert here(*words, "--method", "normal")[0] == 0  # which has nothing to record
    [folder] = (tmp_path / "runs" / "train").glob("*-pbwn-*")
    records = [json.loads(line) for line in (folder / "monitor.jsonl").read_text().splitlines()]
    [section] = collect(tmp_path / "runs").sections
    plots = {plot.name.partition("-monitor-")[2]: plot for plot in section.plots if "-monitor-" in plot.name}
    assert set(plots) == {quantity.replace("_", "-") for quantity in QUANTITIES}
    for quantity in QUANTITIES:
        [curve] = plots[quantity.replace("_", "-")].curves
        assert (curve.row.key, curve.x) == ("pbwn", (1.0, 2.0, 3.0, 4.0))
        by_step = [[record[quantity] for record in records if record["step"] == step] for step in curve.x]
        assert list(curve.mean) == pytest.approx([sum(values) / len(values) for values in by_step])
    assert here("report", "runs")[0] == 0
    page = html.unescape((tmp_path / "runs" / "report.html").read_text())
    for words in QUANTITIES.values():
        assert f"{words[:1].upper()}{words[1:]}, mean over weights" in page


def test_a_run_with_a_damaged_record_of_the_monitor_is_named_and_left_out(here, tmp_path):
    assert here("train", "--model", "own_models:build", *SHORT, "--monitor", "2")[0] == 0
    [folder] = (tmp_path / "runs" / "train").iterdir()
    with (folder / "monitor.jsonl").open("a") as file:
        file.write('{"weight": "1.weight"}\n')
    report = collect(tmp_path / "runs")
    assert report.left_out == {folder: "monitor.jsonl has lines that are not records"}
    assert not report.sections


def test_a_sweep_makes_the_same_search_for_each_method_and_the_report_shows_it(here, tmp_path):
    words = ("sweep", "--model", "own_models:build", *SHORT)
    code, said, _ = here(*words, *GRID, "--dry-run")
    assert code == 0
    assert "24 of 24 runs left to do in runs" in said
    assert not (tmp_path / "runs").exists()
    small = ("--rates", "0.1,0.3", "--decays", "0,5e-4", "--seeds", "2", "--jobs", "2")
    code, said, told = here(*words, *small)
    assert (code, said.splitlines()[0]) == (0, "16 of 16 runs done, in runs"), told
    assert "PBWN lr 0.3 weight_decay 0.0005 seed 2: done" in told
    before = contents(tmp_path / "runs")
    code, said, _ = here(*words, *small, "--quiet")
    assert (code, said) == (0, "16 of 16 runs done (16 from before), in runs\n")
    assert contents(tmp_path / "runs") == before
    one = ("--method", "pbwn", "--lr", "0.3", "--weight-decay", "0.0005", "--seed", "2")
    assert here("train", "--model", "own_models:build", *SHORT, *one)[0] == 0  # the same run, which is there
    assert contents(tmp_path / "runs") == before
    code, said, _ = here("report", "runs")
    assert (code, said.splitlines()[0]) == (0, "Your runs: own_models:build on digits: 16 runs")
    text = (tmp_path / "runs" / "report.md").read_text()
    assert "Each is the best of its method's 4 settings." in text
    assert "The same method twice" not in text  # one run against one says nothing
    assert "PBWN is within 5 % of its best" in text
    drawn = {path.name.removeprefix("own-own-models-build-digits-") for path in (tmp_path / "runs/figures").iterdir()}
    assert {"dots.svg", "search.svg"} <= drawn


def test_the_example_of_the_help_is_a_command_that_runs(here):
    [example] = [line for line in cli.HELP.splitlines() if line.startswith("pbwn sweep")]
    words = example.replace("MODULE:CALLABLE", "own_models:build").replace("SET", "digits").split()
    code, said, told = here(*words[1:], "--dry-run")
    assert (code, "6 of 6 runs left to do" in said, said.count("not started")) == (0, True, 6), told


def test_a_sweep_says_in_a_line_each_what_diverged_and_when_and_once_what_to_do(here):
    words = ("sweep", "--model", "own_models:build", *SHORT, "--methods", "normal", "--rates", "0.1,1e30")
    advice = "Lower the learning rate, or skip such steps with --set on_nonfinite=skip (pbwn train, pbwn sweep)."
    code, said, _ = here(*words, "--seeds", "2")
    [first, second, *rest] = said.splitlines()
    assert code == NON_FINITE
    for line in (first, second):
        assert re.fullmatch(r"Normal lr 1e\+30 seed [12]: diverged: step \d: .* is not finite", line)
    assert rest == [advice, "2 of 4 runs done, in runs", "Run `pbwn report runs` to see the results"]
    code, said, told = here(*words, "--seeds", "1")
    earlier = "Normal lr 1e+30 seed 1: diverged earlier, not run again (use --retry to repeat it)"
    assert said.splitlines()[:3] == [earlier, advice, "1 of 2 runs done (1 from before), in runs"]
    assert "diverged" not in told


def test_a_report_of_nothing_but_diverged_runs_names_them(here, tmp_path):
    assert here("train", "--model", "own_models:build", *SHORT, "--lr", "1e30")[0] == NON_FINITE
    assert here("report", tmp_path)[2] == f"pbwn: {tmp_path} holds no runs: did you mean {tmp_path / 'runs'}?\n"
    code, said, _ = here("report")
    assert (code, said.splitlines()[0]) == (0, "Your runs: own_models:build on digits: 0 runs")
    page = (tmp_path / "runs/report.md").read_text()
    assert "Diverged: PBWN, lr = 1e+30, weight_decay = 0.0, seed 1." in page
    assert "verdict" not in page  # there are none to explain


def test_a_sweep_that_leaves_rates_out_takes_the_recipe_s(here, tmp_path):
    code, said, _ = here("sweep", "--model", "mlp", *SHORT, "--dry-run")
    assert code == 0
    assert [line.split("  ")[0] for line in said.splitlines()[1:3]] == ["Normal seed 1", "PBWN seed 1"]


def test_a_text_is_swept_too(here, tmp_path):
    (tmp_path / "tale.txt").write_text("once upon a time " * 60)
    small = ("model_options.width=8", "model_options.depth=1", "model_options.heads=2", "data.context=8")
    settings = [word for each in small for word in ("--set", each)]
    words = ("--model", "char-gpt", "--data", "text:tale.txt", "--steps", "4", "--batch-size", "4", *settings)
    code, said, _ = here("sweep", *words, "--methods", "pbwn", "--rates", "1e-3,3e-3", "--quiet")
    assert (code, said) == (0, "2 of 2 runs done, in runs\n")
    assert here("train", *words, "--method", "pbwn", "--lr", "1e-3", "--quiet")[0] == 0
    code, said, _ = here("report", "runs")
    assert (code, said.splitlines()[0]) == (0, "Your runs: char-gpt on text-tale: 2 runs")
    assert "(bits/char)" in (tmp_path / "runs" / "report.md").read_text()
    assert here("train", *words, "--set", "model_options.width=4", "--method", "pbwn", "--quiet")[0] == 0
    assert here("report", "runs")[0] == 0
    titles = [line for line in (tmp_path / "runs" / "report.md").read_text().splitlines() if line.startswith("## ")]
    assert [title.rpartition(" (")[2] for title in titles] == ["model_options.width=4)", "model_options.width=8)"]


def test_a_model_that_looks_at_its_weights_can_be_estimated(here):
    code, said, _ = here("sweep", "--model", "own_models:looks_at_values", *SHORT, "--dry-run")
    assert code == 0
    assert "2 of 2 runs left to do" in said


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--rates", "0.1,fast"), "--rates '0.1,fast': write comma-separated numbers"),
        (("--rates", ","), "--rates ',': the list is empty"),
        (("--rates", "0.1,-1"), "--rates must be greater than 0, not -1.0"),
        (("--methods", "normal,pbnw"), "unknown method 'pbnw'"),
        (("--set", "seed=4"), "--set seed=4: --seeds also sets seed; remove one of the two"),
        (("--rates", "0.1", "--set", "optimizer.lr=1"), "--set optimizer.lr=1: --rates also sets optimizer.lr"),
        (("--model", "own_models:regression"), "returns scores of shape (2, 1) for inputs of shape (2, 1, 8, 8)"),
        (("--model", "own_models:embedding", "--data", "sentences"), "own_models:embedding: nothing to constrain"),
        (("--jobs", "0"), "--jobs 0: must be at least 1"),
    ],
)
def test_a_sweep_that_cannot_be_made_says_what_to_change(more, words, here, tmp_path):
    code, _, told = here("sweep", "--model", "own_models:build", *SHORT, *more)
    assert (code, words in told) == (USAGE, True), told
    assert not (tmp_path / "runs").exists()
