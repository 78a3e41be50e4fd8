"""Checkpoints: any damage is noticed, and no file can run code."""

import io
import json
import os
import pickle
import random
import subprocess
import sys

import pytest
import torch

from pbwn_repro.engine.checkpoint import MANIFEST, CheckpointStore, ForeignCheckpointError
from pbwn_repro.engine.state import unpack

FILES = {"model.safetensors": bytes(range(256)) * 9, "optimizer.pt": b"moments" * 50, "progress.json": b'{"step": 1}'}


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path, "run-a")


def test_what_is_saved_is_what_is_opened(store):
    store.save(3, FILES)
    found = store.newest(pytest.fail)
    assert (found.step, found.files) == (3, FILES)


def test_two_are_kept(store, tmp_path):
    for step in (3, 6, 9, 12):
        store.save(step, FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000009", "step-000000012"]


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_any_flipped_bit_is_noticed_and_the_one_before_is_used(store, tmp_path, name):
    store.save(3, FILES)
    numbers = random.Random(name)
    size = len((tmp_path / "step-000000003" / name).read_bytes())
    for offset in numbers.sample(range(size), min(size, 40)):
        store.save(6, FILES)
        path = tmp_path / "step-000000006" / name
        content = bytearray(path.read_bytes())
        content[offset] ^= 1 << numbers.randrange(8)
        path.write_bytes(content)
        said = []
        assert store.newest(said.append).step == 3, f"bit at {offset} of {name}"
        assert "step-000000006 is damaged" in said[0]
        assert name in said[0]


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize("kept", [0, 1, -1, None])
def test_a_cut_or_missing_file_is_noticed(store, tmp_path, name, kept):
    store.save(3, FILES)
    store.save(6, FILES)
    path = tmp_path / "step-000000006" / name
    if kept is None:
        path.unlink()
    else:
        os.truncate(path, kept if kept >= 0 else path.stat().st_size - 1)
    assert store.newest(lambda message: None).step == 3


def test_the_last_whole_one_survives_every_later_damage(store, tmp_path):
    store.save(3, FILES)
    store.save(6, FILES)
    (tmp_path / "step-000000006" / "optimizer.pt").unlink()
    assert store.newest(lambda message: None).step == 3
    store.save(6, FILES)
    assert store.newest(pytest.fail).step == 6


def test_a_checkpoint_of_another_run_is_refused(store, tmp_path):
    store.save(3, FILES)
    with pytest.raises(ForeignCheckpointError, match="another run"):
        CheckpointStore(tmp_path, "run-b").newest(pytest.fail)


class Malicious:
    def __reduce__(self):
        return os.system, ("touch stolen",)


def test_a_malicious_file_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO()
    torch.save({"state": Malicious()}, file)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        unpack(file.getvalue())
    assert not (tmp_path / "stolen").exists()


def test_the_rest_of_a_process_that_was_killed_is_cleared_away(store, tmp_path):
    left = tmp_path / ".writing-000000003"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    store.save(3, FILES)
    assert not left.exists()
    assert json.loads((tmp_path / "step-000000003" / MANIFEST).read_text())


# Writes one checkpoint, and then a larger one for which there is no room.
FULL = """
import resource, signal, sys
from pathlib import Path
from pbwn_repro.engine.checkpoint import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]), "run-a")
store.save(3, {"model.safetensors": bytes(1_000)})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
store.save(6, {"model.safetensors": bytes(50_000)})
"""


def test_where_there_is_no_room_for_the_next_the_last_one_stays_whole(store, tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True)
    assert "File too large" in done.stderr
    assert store.newest(pytest.fail).step == 3
    store.save(6, FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000003", "step-000000006"]
