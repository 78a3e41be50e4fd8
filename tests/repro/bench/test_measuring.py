"""The folder of a measurement: done once, gone on with after a kill, never mistaken for another."""

import json
import os
import signal
import subprocess
import sys

import pytest

from pbwn_repro.bench.measuring import MEASUREMENTS, folder_of, measure
from pbwn_repro.catalog import ARTEFACTS, MeasuredArtefact, find
from pbwn_repro.config import ConfigError
from pbwn_repro.runs.folder import BusyError

QUICK = {"start": 0.9, "surface_alpha": 2.0, "half_width": 1.0, "points": 3, "largest_alpha": 4.0, "alphas": 2}
TIMES = {
    "networks": ["resnet-8", "resnet-14"],
    "methods": ["normal", "pbwn"],
    "batch_sizes": {"resnet-8": 2, "resnet-14": 2},
    "rounds": 2,
}


def landscape(out, options=QUICK):
    return folder_of(out, "figure-1", "smoke", "landscape", options)


def test_every_measured_artefact_names_a_measurement_and_takes_its_options_as_json():
    measured = [each for each in ARTEFACTS.values() if isinstance(each, MeasuredArtefact)]
    assert [each.name for each in measured] == ["figure-1", "table-5"]
    for artefact in measured:
        assert artefact.measurement in MEASUREMENTS
        for scale in ("smoke", "short", "paper"):
            assert json.loads(json.dumps(artefact.options(scale))) == artefact.options(scale)


def test_the_folder_holds_what_it_was_made_with_and_the_result(tmp_path):
    folder = landscape(tmp_path)
    result = measure("landscape", QUICK, folder)
    assert folder.path.parent == tmp_path / "figure-1" / "smoke"
    assert folder.path.name.startswith("landscape-")
    assert json.loads(folder.config.read_text()) == {"measurement": "landscape", "options": QUICK}
    assert json.loads(folder.environment.read_text())["packages"]["torch"]
    assert json.loads(folder.result.read_text()) == result


def test_other_options_have_another_folder(tmp_path):
    assert landscape(tmp_path).path == landscape(tmp_path, dict(reversed(QUICK.items()))).path
    assert landscape(tmp_path).path != landscape(tmp_path, {**QUICK, "points": 5}).path


def test_what_is_done_is_not_made_again(tmp_path):
    folder = landscape(tmp_path)
    first, told = measure("landscape", QUICK, folder), []
    assert measure("landscape", QUICK, folder, progress=lambda *words: told.append(words)) == first
    assert told == []


def test_progress_is_told_to_the_end(tmp_path):
    told = []
    measure("landscape", QUICK, landscape(tmp_path), progress=lambda *words: told.append(words))
    assert told[0][:2] == (0, 2)
    assert told[-1] == (2, 2, "done")


def test_an_unknown_measurement_is_refused_with_the_nearest_one(tmp_path):
    with pytest.raises(ValueError, match=r"unknown measurement 'landscapes': did you mean 'landscape'\?"):
        measure("landscapes", QUICK, landscape(tmp_path))


def test_a_folder_with_another_measurement_is_refused(tmp_path):
    folder = landscape(tmp_path)
    folder.path.mkdir(parents=True)
    folder.config.write_text('{"measurement": "other", "options": {}}')
    with pytest.raises(ConfigError, match="holds another measurement"):
        measure("landscape", QUICK, folder)


def test_two_processes_do_not_measure_into_one_folder(tmp_path):
    folder = landscape(tmp_path)
    with folder.locked(), pytest.raises(BusyError):
        measure("landscape", QUICK, folder)


CHILD = """
import json, os, signal, sys
from pathlib import Path
from pbwn_repro.bench.measuring import folder_of, measure

options = json.loads(sys.argv[2])

def die_in_the_second_network(done, total, doing):
    if doing == "resnet-14" and done == 4:
        os.kill(os.getpid(), signal.SIGKILL)

folder = folder_of(Path(sys.argv[1]), "table-5", "smoke", "time-cost", options)
measure("time-cost", options, folder, progress=die_in_the_second_network)
"""


def test_a_killed_measurement_goes_on_with_the_next_network(tmp_path):
    words = [sys.executable, "-c", CHILD, str(tmp_path), json.dumps(TIMES)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    killed = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    folder = folder_of(tmp_path, "table-5", "smoke", "time-cost", TIMES)
    assert folder.state == "started"
    [part] = (folder.path / "parts").iterdir()
    kept = json.loads(part.read_text())
    result = measure("time-cost", TIMES, folder)
    assert result["networks"]["resnet-8"] == kept  # times are never twice the same: these were not taken again
    assert set(result["networks"]) == {"resnet-8", "resnet-14"}


def test_a_damaged_part_is_measured_again(tmp_path):
    folder = folder_of(tmp_path, "table-5", "smoke", "time-cost", TIMES)
    (folder.path / "parts").mkdir(parents=True)
    (folder.path / "parts" / "resnet-8.json").write_text('{"batch_size"')
    result = measure("time-cost", TIMES, folder)
    assert set(result["networks"]["resnet-8"]["methods"]) == {"normal", "pbwn"}


def test_both_measured_artefacts_are_found_by_name():
    assert find("figure-1").measurement == "landscape"
    assert find("table-5").measurement == "time-cost"
