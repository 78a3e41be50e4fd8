"""`pbwn train` as real processes: stopping, faults, several processes, bad words."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from pbwn_repro.__main__ import wait_passively
from pbwn_repro.exit_codes import FAILED, INTERRUPTED, NON_FINITE, USAGE
from storm import contents

QUICK = ("--model", "mlp", "--data", "digits", "--steps", "6", "--batch-size", "32", "--threads", "1")
PLAIN = ("--method", "normal", *QUICK)  # a process of its own need not load the compiled projection


def command(*words, launcher=(sys.executable, "-m", "pbwn_repro")):
    return [*map(str, launcher), "train", *map(str, words)]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def pbwn(*words, **options):
    return subprocess.run(command(*words), capture_output=True, text=True, env=environment(), **options)


def only_folder(out):
    [folder] = (out / "train").iterdir()
    return folder


def test_train_prints_progress_and_the_result(tmp_path):
    done = pbwn(*QUICK, "--evaluate-every", "1", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    folder = only_folder(tmp_path)
    assert done.stdout.startswith(f"{folder.name}: test error ")
    assert "starting, 6 steps" in done.stderr
    assert len(done.stderr.splitlines()) == 2  # evaluations have no lines of their own
    named = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("step ")]
    assert named
    assert len(named) == len(set(named))


@pytest.fixture
def here(here):
    """`pbwn train` in this process."""
    return lambda *words: here("train", *words)


def test_a_dry_run_shows_everything_and_writes_nothing(here, tmp_path):
    code, out, _ = here(*QUICK, "--dry-run", "--out", tmp_path / "runs")
    assert code == 0
    assert '"method": "pbwn"' in out
    assert "features.0.weight" in out
    assert "6 steps, about " in out
    assert "MB on disk" in out
    assert not (tmp_path / "runs").exists()


def test_a_configuration_file_does_what_options_do(here, tmp_path):
    assert here(*QUICK, "--lr", "0.05", "--out", tmp_path / "options")[0] == 0
    fields = {"model": "mlp", "data": "digits", "steps": 6, "batch_size": 32, "optimizer.lr": 0.05}
    (tmp_path / "fields.json").write_text(json.dumps(fields))
    assert here("--config", tmp_path / "fields.json", "--out", tmp_path / "file")[0] == 0
    assert contents(tmp_path / "options") == contents(tmp_path / "file")


def test_another_source_of_the_data_leaves_the_rest_of_a_file_as_it_is(here, tmp_path):
    ladder = ("--model", "ladder", "--data", "digits", "--labels", "20", "--steps", "4", "--batch-size", "50")
    assert here(*ladder, "--set", "schedule.constant_steps=2", "--out", tmp_path / "first")[0] == 0
    file = only_folder(tmp_path / "first") / "config.json"
    for words in ((), ("--data", "digits")):
        out = tmp_path / f"again {len(words)}"
        assert here("--config", file, *words, "--out", out)[0] == 0
        assert contents(out) == contents(tmp_path / "first")


def test_epochs_take_the_place_of_a_file_s_steps(here, tmp_path):
    assert here(*QUICK, "--out", tmp_path / "steps")[0] == 0
    file = only_folder(tmp_path / "steps") / "config.json"
    assert here("--config", file, "--epochs", "1", "--set", "batch_size=359", "--out", tmp_path / "epochs")[0] == 0
    found = json.loads((only_folder(tmp_path / "epochs") / "config.json").read_text())
    assert (found["epochs"], found["steps"]) == (1, None)


def test_damaged_files_of_a_run_are_named(here, tmp_path):
    words = (*QUICK, "--out", tmp_path)
    assert here(*words)[0] == 0
    folder = only_folder(tmp_path)
    whole = folder.joinpath("result.json").read_bytes()
    for content in ("", "{}", "[]", '{"loss": 1.0}', '{"test_error": null}'):
        folder.joinpath("result.json").write_text(content)
        code, _, told = here(*words)
        assert code == FAILED
        assert "result.json is damaged" in told
    folder.joinpath("result.json").unlink()
    for content in ("", "[]"):
        folder.joinpath("environment.json").write_text(content)
        folder.joinpath("checkpoints", "step-000000006 (copy)").mkdir(exist_ok=True)
        code, _, told = here(*words)
        assert (code, folder.joinpath("result.json").read_bytes()) == (0, whole)
        assert "environment.json was damaged" in told
        folder.joinpath("result.json").unlink()


def test_a_run_that_is_asked_to_stop_saves_and_says_how_to_go_on(tmp_path):
    words = (*PLAIN[:6], "--steps", "100000", "--batch-size", "1024", "--threads", "1", "--out", tmp_path)
    with subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True, env=environment()) as child:
        while "step " not in child.stderr.readline():
            pass
        child.send_signal(signal.SIGTERM)
        said = child.stderr.read()
    assert child.returncode == INTERRUPTED
    assert "run the same command to resume" in said
    folder = only_folder(tmp_path)
    assert not (folder / "result.json").exists()
    assert list((folder / "checkpoints").glob("step-*"))


def limit_file_size():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_full_disk_is_a_clear_error_and_the_run_goes_on_when_there_is_room(here, tmp_path):
    words = (*PLAIN, "--checkpoint-every", "2", "--out", tmp_path)
    full = pbwn(*words, preexec_fn=limit_file_size)
    assert full.returncode == FAILED
    assert "File too large" in full.stderr
    assert "Traceback" not in full.stderr
    assert not list((only_folder(tmp_path) / "checkpoints").glob("step-*"))
    assert here(*words)[0] == 0


def test_a_folder_that_cannot_be_made_is_a_clear_error(here, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = here(*QUICK, "--out", tmp_path / "file" / "runs")
    assert code == FAILED
    assert "Not a directory" in err


def test_a_loss_that_is_not_finite_has_its_own_exit_code(here, tmp_path):
    code, _, err = here(*QUICK, "--method", "normal", "--lr", "1e18", "--out", tmp_path)
    assert code == NON_FINITE
    assert "is not finite" in err or "the loss is" in err


def test_a_final_evaluation_that_is_not_finite_is_a_divergence(here, tmp_path):
    words = ("--model", "char-gpt", "--data", "sentences", "--method", "normal", "--steps", "1", "--threads", "1")
    small = ("model_options.width=8", "model_options.depth=1", "model_options.heads=2", "data.context=8")
    settings = [word for each in (*small, "schedule.warmup_steps=0") for word in ("--set", each)]
    code, _, err = here(*words, *settings, "--lr", "1e30", "--out", tmp_path)
    assert (code, "step 1: the test cross entropy at the end is not finite" in err) == (NON_FINITE, True), err
    folder = only_folder(tmp_path)
    assert (folder / "diverged.json").exists()
    assert not (folder / "result.json").exists()


def test_a_rate_that_would_fall_after_the_end_is_pointed_out(here, tmp_path):
    words = ("--model", "resnet-8", "--data", "digits", "--batch-size", "359", "--out", tmp_path)
    _, _, told = here(*words, "--epochs", "1")
    assert "drops in epoch 80, 120, after the run ends" in told


def test_tensorboard_gets_its_scalars(here, tmp_path):
    pytest.importorskip("tensorboard")
    assert here(*QUICK, "--tensorboard", "--out", tmp_path)[0] == 0
    assert list((only_folder(tmp_path) / "tensorboard").glob("events.*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "digits"), "no model given: pass --model"),
        (("--model", "resnet-21", "--data", "digits"), "6n+2"),
        (("--model", "mpl", "--data", "digits"), "did you mean 'mlp'"),
        (("--model", "mlp", "--data", "digit"), "data set 'digit'"),
        (("--model", "mlp", "--data", "digits", "--method", "pbnw"), "did you mean 'pbwn'"),
        (("--model", "mlp", "--data", "digits", "--lr", "-1"), "pbwn: --lr must be greater than 0, not -1"),
        (("--model", "mlp", "--data", "digits", "--lr", "nan"), "pbwn: --lr must be a finite number, not nan"),
        (("--model", "mlp", "--data", "digits", "--epochs", "0"), "pbwn: --epochs must be at least 1, not 0"),
        (("--model", "mlp", "--data", "digits", "--set", "batch_size=0"), "pbwn: batch_size must be at least 1, not 0"),
        (("--model", "mlp", "--data", "digits", "--epochs", "1e3"), "Invalid value for '--epochs': must be an integer"),
        (
            ("--model", "mlp", "--data", "digits", "--epochs", "1", "--steps", "1"),
            "--epochs and --steps are mutually exclusive",
        ),
        (
            ("--model", "torch.nn:Flatten", "--data", "digits"),
            "pbwn: the length of the run is missing: add --epochs N",
        ),
        (("--model", "torch.nm:Flatten", "--data", "digits"), "no module named 'torch.nm'"),
        (
            ("--model", "mlp", "--data", "digits", "--batch-size", "50", "--accumulation", "3"),
            "pbwn: --batch-size 50 cannot be divided into 3 equal parts",
        ),
        (("--model", "mlp", "--data", "digits", "--set", "optimizer.speed=3"), "unknown field"),
        (("--model", "mlp", "--data", "digits", "--device", "cuda"), "torch finds no GPU"),
        (("--model", "vgg-e", "--data", "digits"), "vgg-e"),
        (("--config", "nowhere.json"), "--config nowhere.json: no such file"),
        (("--config", "/"), "--config /: expected a file, found a folder"),
        (("--config", sys.executable), f"--config {sys.executable}: not JSON ("),
        (("--model", "mlp", "--data", "digits", "--shard"), "start them with torchrun"),
        (("--model", "mlp", "--data", "digits", "--device", "mps"), "choose from auto, cpu, cuda, cuda:<number>"),
        (("--model", "mlp", "--data", "digits", "--device", "cpu:3"), "choose from auto, cpu, cuda, cuda:<number>"),
        (("--model", "mlp", "--data", "digits", "--set", "model_options.foo=5"), "mlp has no option 'foo'"),
        (("--model", "mlp", "--data", "digits", "--set", "model_options.num_classes=3"), "is determined by the data"),
        (
            (
                *("--model", "ladder", "--data", "digits", "--labels", "20"),
                "--set",
                "model_options.hidden_sizes=[24, 12]",
            ),
            "denoising_weights for 2 hidden_sizes",
        ),
        (
            ("--model", "mlp", "--data", "digits", "--batch-size", "5000"),
            "--batch-size 5000 exceeds the 1437 images of the split: lower --batch-size\n",
        ),
        (("--model", "mlp", "--data", "digits", "--set", "data.train=5"), "data.train"),
        (("--model", "mlp", "--data", "digits", "--set", "data.train=train"), "data.train"),
        (("--model", "mlp", "--data", "digits", "--set", "data.train=[]"), "data.train"),
    ],
)
def test_bad_words_say_what_to_change_and_write_nothing(here, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = here(*words)
    assert code == USAGE
    assert message in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": 3, "data": "digits"}, "model: expected a name, found 3"),
        ({"model": "mlp", "data": 3}, "data: expected a name, found 3"),
        ({"model": "mlp", "data": {"name": 3}}, "data.name: expected a name, found 3"),
        ({"model": "mlp", "data": {"train": ["train"]}}, "data.name: expected a name, found None"),
        ({"model": "mlp", "data": "digits", "method": 3}, "method must be a string, not 3"),
        ({"model": "mlp", "data": "digits", "epochs": True}, "epochs must be an integer, not True"),
        ({"model": "mlp", "data": "digits", "model_options": 3}, "model_options must be an object, not 3"),
    ],
)
def test_a_file_with_values_of_the_wrong_type_says_which(here, fields, message, tmp_path):
    (tmp_path / "fields.json").write_text(json.dumps({**fields, "steps": 2}))
    code, _, err = here("--config", tmp_path / "fields.json", "--out", tmp_path / "runs")
    assert (code, message in err) == (USAGE, True), err


@pytest.mark.parametrize("data", [3, {"name": 3}, {"train": ["train"]}])
def test_another_set_of_data_takes_the_place_of_what_a_file_says_wrongly(here, data, tmp_path):
    (tmp_path / "fields.json").write_text(json.dumps({"model": "mlp", "data": data, "steps": 2}))
    words = ("--config", tmp_path / "fields.json", "--dry-run", "--out", tmp_path / "runs")
    assert here(*words, "--data", "digits")[0] == 0
    assert here(*words, "--set", 'data={"name": "digits"}')[0] == 0
    assert here(*words, "--set", "data=3")[0] == USAGE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, None),
        ({"LOCAL_WORLD_SIZE": "2"}, "passive"),
        ({"LOCAL_WORLD_SIZE": "2", "OMP_WAIT_POLICY": "active"}, "active"),
    ],
)
def test_threads_of_several_processes_sleep_while_they_wait(monkeypatch, before, after):
    for name in ("LOCAL_WORLD_SIZE", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    wait_passively()
    assert os.environ.get("OMP_WAIT_POLICY") == after


def torchrun(*words, program):
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    launcher = (*launcher, "--max-restarts", "1", *program)
    return subprocess.run(command(*words, launcher=launcher), capture_output=True, text=True, env=environment())


@pytest.mark.long
def test_a_worker_that_dies_is_restarted_and_the_run_ends_like_a_clean_one(tmp_path):
    words = (*QUICK, "--checkpoint-every", "2", "--quiet")
    clean = torchrun(*words, "--out", tmp_path / "clean", program=("-m", "pbwn_repro"))
    assert clean.returncode == 0, clean.stderr
    (tmp_path / "fragile.py").write_text(FRAGILE.format(flag=str(tmp_path / "killed")))
    storm = torchrun(*words, "--out", tmp_path / "storm", program=(tmp_path / "fragile.py",))
    assert storm.returncode == 0, storm.stderr
    assert (tmp_path / "killed").exists()
    assert contents(tmp_path / "storm") == contents(tmp_path / "clean")


# The command, but its second worker is killed, once, when it has taken its third step.
FRAGILE = """
import os, pathlib, signal
from torch.optim.optimizer import register_optimizer_step_post_hook
from pbwn_repro.__main__ import main

flag, steps = pathlib.Path({flag!r}), []

def count(*_):
    steps.append(1)
    if os.environ["RANK"] == "1" and len(steps) == 3 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)

register_optimizer_step_post_hook(count)
main()
"""


def test_the_monitor_writes_into_the_run_folder_and_the_result_does_not_notice(here, tmp_path):
    here(*QUICK, "--out", tmp_path / "plain")
    code, _, _ = here(*QUICK, "--monitor", "2", "--out", tmp_path / "watched")
    assert code == 0
    plain, watched = only_folder(tmp_path / "plain"), only_folder(tmp_path / "watched")
    assert watched.name == plain.name
    records = [json.loads(line) for line in (watched / "monitor.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["weight"] == "features.0.weight"] == [2, 4, 6]
    for name in ("result.json", "metrics.jsonl", "model.safetensors"):
        assert (watched / name).read_bytes() == (plain / name).read_bytes()


def test_a_method_without_a_projection_has_nothing_to_monitor(here, tmp_path):
    code, _, err = here(*QUICK, "--method", "normal", "--monitor", "2", "--out", tmp_path)
    assert code == USAGE
    assert "has no projection to monitor" in " ".join(err.split())
