"""`pbwn doctor`: it finds what is broken, says what to do, and breaks nothing itself."""

import os
import sys
from importlib.metadata import metadata
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from pbwn_repro import doctor as examination
from pbwn_repro.cli import app
from pbwn_repro.runs import pools


def doctor(tmp_path, *words):
    places = ["--out", str(tmp_path / "runs"), "--cache-dir", str(tmp_path / "cache")]
    return CliRunner().invoke(app, ["doctor", *places, *words])


def package(folder, name, code, version="0.1"):
    """An installed package whose import does as told."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    facts = folder / f"{name}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_a_healthy_machine_has_nothing_to_mend(tmp_path):
    done = doctor(tmp_path)
    assert done.exit_code == 0, done.output
    for topic in (
        "python",
        "torch",
        "threads",
        "OMP_WAIT_POLICY",
        "projection",
        "memory",
        "GPU",
        "output folder",
        "disk",
    ):
        assert f" {topic}" in done.output
    assert "info  data cifar10: not downloaded" in done.output
    assert "pbwn data get cifar10" in done.output
    assert "nothing needs to be fixed" in done.output
    assert not (tmp_path / "runs").exists()


BROKEN = {
    "built for another torch": ("raise RuntimeError('operator torchvision::nms does not exist')", "nms does not exist"),
    "lacking a library": ("import ctypes; ctypes.CDLL('libmissing.so')", "libmissing.so"),
    "killing its process": ("import os; os._exit(139)", "exit code 139"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_torchvision_is_found_without_breaking_the_doctor(how, tmp_path, monkeypatch):
    code, said = BROKEN[how]
    monkeypatch.syspath_prepend(package(tmp_path / "site", "torchvision", code))
    done = doctor(tmp_path)
    assert done.exit_code == 1
    [line] = [line for line in done.output.splitlines() if "torchvision:" in line]
    assert line.startswith("fail")
    assert said in line
    assert "pip uninstall torchvision" in done.output
    assert "1 of the above must be fixed first" in done.output
    assert "torchvision" not in sys.modules


def test_a_torchvision_that_works_is_fine(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(package(tmp_path, "torchvision", ""))
    finding = examination.torchvision(examination.Import.begin("torchvision"))
    assert (finding.level, finding.detail[:15]) == ("ok", "0.1 with torch ")


def test_a_package_that_is_not_there_is_not_imported():
    assert examination.Import.begin("no_such_package") is None


def findings(tmp_path, monkeypatch, *requirements, name="thing"):
    """What is said of a distribution with these requirements."""
    package(tmp_path, name, "")
    lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
    with (tmp_path / f"{name}-0.1.dist-info" / "METADATA").open("a") as file:
        file.write(lines)
    monkeypatch.syspath_prepend(tmp_path)
    return {finding.topic: finding for finding in examination.installed(name)}


def test_a_missing_or_old_package_that_is_needed_fails(tmp_path, monkeypatch):
    package(tmp_path, "ancient", "")
    found = findings(tmp_path, monkeypatch, "no-such-package>=1", "ancient>=2; extra == 'repro'", "torch>=2.6")
    assert found["no-such-package"].level == found["ancient"].level == "fail"
    assert found["no-such-package"].detail == "not installed"
    assert found["ancient"].detail == "0.1, but >=2 is required"
    assert found["ancient"].remedy == "pip install 'ancient>=2'"
    assert found["torch"].level == "ok"


def test_extras_that_are_not_installed_are_named_with_their_purpose_and_do_not_fail(tmp_path, monkeypatch):
    package(tmp_path, "ancient", "")
    needs = ("no-such-package; extra == 'hf'", "ancient>=2; extra == 'fast'", "other; extra == 'unheard-of'")
    found = findings(tmp_path, monkeypatch, *needs)
    assert found["extra hf"].level == "info"
    assert found["extra hf"].detail == "not installed (data sets from Hugging Face): no-such-package"
    assert found["extra hf"].remedy == "pip install 'pbwn[hf]'"
    assert found["extra fast"].level == "warn"
    assert "extra unheard-of" not in found


def test_a_package_that_runs_from_a_folder_is_told_how_to_be_installed():
    *_, finding = examination.installed("no-such-distribution")
    assert (finding.level, finding.remedy) == ("warn", "pip install -e '.[repro]'")


@pytest.mark.parametrize(("policy", "level"), [("passive", "ok"), ("ACTIVE", "warn"), ("", "ok")])
def test_threads_that_spin_are_worth_knowing(policy, level, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    [finding] = [each for each in examination.threads() if each.topic == "OMP_WAIT_POLICY"]
    assert finding.level == level
    assert ("OMP_WAIT_POLICY=passive" in finding.remedy) == (policy != "passive")


def test_more_threads_than_cores_are_worth_knowing(monkeypatch):
    monkeypatch.setattr(examination, "available_cores", lambda: 0.5)
    finding, *_ = examination.threads()
    assert (finding.topic, finding.level, finding.remedy) == ("threads", "warn", "--threads 1")


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 1), ("max 100000", 8), ("1000 100000", 1)])
def test_a_container_s_quota_limits_how_many_runs_share_it(quota, cores, monkeypatch):
    monkeypatch.setattr(pools.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(pools.Path, "read_text", lambda _: quota)
    assert pools.cores() == cores


def test_a_busy_machine_is_worth_knowing(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    [finding] = [each for each in examination.threads() if each.topic == "load"]
    assert finding.level == "warn"
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    [finding] = [each for each in examination.threads() if each.topic == "load"]
    assert finding.level == "ok"


def test_a_numba_that_cannot_be_imported_is_worth_knowing(monkeypatch):
    monkeypatch.setattr(examination, "missing", lambda backend: f"{backend} cannot be imported")
    [finding] = examination.compiled_projection()
    assert (finding.level, finding.detail) == ("warn", "not compiled: numba cannot be imported")


def test_without_numba_the_projection_works_which_is_no_warning(monkeypatch):
    monkeypatch.setattr(examination, "missing", lambda backend: f"{backend} cannot be imported")
    monkeypatch.setattr(examination, "version_of", lambda package: None)
    [finding] = examination.compiled_projection()
    assert (finding.level, "numba" in finding.detail) == ("ok", False)  # the extra names it


def test_an_output_folder_that_is_a_file_fails(tmp_path):
    (tmp_path / "runs").write_text("")
    done = doctor(tmp_path)
    assert done.exit_code == 1
    assert f"fail  output folder: {tmp_path / 'runs'} is a file" in done.output
    assert "--out" in done.output


def test_an_output_folder_that_cannot_be_made_fails(tmp_path):
    (tmp_path / "file").write_text("")
    finding, _ = examination.output(tmp_path / "file" / "runs")
    assert finding.level == "fail"
    assert "nothing can be created in" in finding.detail


@pytest.mark.parametrize(("free", "level"), [(1e8, "fail"), (1e9, "warn"), (1e11, "ok")])
def test_little_room_is_said(free, level, tmp_path, monkeypatch):
    monkeypatch.setattr(examination.shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    _, finding = examination.output(tmp_path)
    assert finding.level == level


def test_a_damaged_data_set_fails_and_is_named(tmp_path):
    split = tmp_path / "cache" / "mnist" / "decoded" / "train-0123456789abcdef"
    split.mkdir(parents=True)
    (split / "manifest.json").write_text("{")
    done = doctor(tmp_path)
    assert done.exit_code == 1
    assert "fail  data mnist: damaged" in done.output
    assert "pbwn data check mnist" in done.output


def test_the_extras_that_it_asks_for_are_those_that_there_are():
    assert set(examination.OPTIONAL) <= set(metadata("pbwn").get_all("Provides-Extra"))
