"""`pbwn demo`: a table and a report at its end, at once when called again, resumed otherwise."""

import math
import re

import pytest

from pbwn_repro import commands
from pbwn_repro.catalog.demo import NETWORKS
from pbwn_repro.commands.demo import compare, conclusions


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    place = tmp_path_factory.mktemp("demo")
    compare(place, "smoke", quiet=True)
    return place


def results(out):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("demo/smoke/*/result.json")}


def test_it_ends_with_tables_a_reading_and_the_path_of_the_report(out, capsys):
    compare(out, "smoke", quiet=True)
    printed = capsys.readouterr().out
    for network in NETWORKS.values():
        assert f"{network}: test error (%) by learning rate" in printed
    for method in ("Normal", "PBWN", "Unit norm at the start only"):
        assert len([line for line in printed.splitlines() if line.startswith(f"│ {method} ")]) == len(NETWORKS)
    assert "One of the 360 test images is 0.28 points" in " ".join(printed.split())
    assert printed.splitlines()[-1] == f"Report: {out / 'report.html'}"
    page = (out / "report.html").read_text()
    assert "Figure 2a in miniature" in page
    assert "One of the 360 test images is 0.28 points" in page
    assert "<summary>Protocol" in page  # its own, not the paper's


def test_the_command_that_it_names_works_from_here(out, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands.shutil, "which", lambda name: None)
    monkeypatch.setattr(commands.sys, "argv", [str(tmp_path / ".venv" / "bin" / "pbwn"), "demo"])
    compare(out, "smoke", quiet=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "The paper's networks and data: .venv/bin/pbwn reproduce figure-2a --scale paper." in said


ERRORS = {"normal": 10.0, "pbwn": 8.0, "unit-start": 10.2}


@pytest.mark.parametrize(
    ("best", "words"),
    [
        (ERRORS, "The constraint explains the gain: the start alone does not produce it."),
        ({**ERRORS, "unit-start": 9.0}, "The start explains a part of the gain, the constraint the rest."),
        ({**ERRORS, "unit-start": 8.3}, "The start alone explains the gain, not the constraint."),
        ({**ERRORS, "pbwn": 9.7}, "All three are equal within noise."),
        ({**ERRORS, "pbwn": 9.7, "unit-start": 5.0}, "PBWN and normal training are equal within noise."),
        ({**ERRORS, "pbwn": 13.0}, "PBWN is worse than normal training."),
        (
            {**ERRORS, "normal": math.inf},
            "normal training none (it diverges at every rate). The start explains a part",
        ),
    ],
)
def test_it_says_what_is_true(best, words):
    errors = {
        (method, network, rate): error * factor
        for method, error in best.items()
        for network in NETWORKS
        for rate, factor in ((0.3, 1.0), (0.1, 1.5))
    }
    first, second, last = conclusions(errors)
    assert words in first
    assert words in second
    assert first.startswith("Without normalisation, each at its best learning rate, PBWN reaches a test error of ")
    assert "noise" in last


def test_a_rate_that_diverges_is_a_result(out, capsys):
    compare(out, "smoke", quiet=True)
    path, *_ = out.glob("demo/smoke/mlp-normal-*/result.json")
    content = path.read_text()
    path.unlink()
    (path.parent / "diverged.json").write_text('{"message": "the loss is nan"}')
    capsys.readouterr()
    compare(out, "smoke", quiet=True)
    (path.parent / "diverged.json").unlink()
    path.write_text(content)
    assert "diverged" in capsys.readouterr().out
    compare(out, "smoke", quiet=True)  # as it was, for the others


def test_called_again_it_makes_nothing_anew(out):
    before, page = results(out), (out / "report.html").stat().st_mtime_ns
    assert len(before) == 12
    compare(out, "smoke", quiet=True)
    assert results(out) == before
    assert (out / "report.html").stat().st_mtime_ns == page


def test_what_is_missing_is_made_and_the_report_drawn_anew(out, capsys):
    before, page = results(out), (out / "report.html").stat().st_mtime_ns
    lost, *kept = before
    lost.unlink()
    compare(out, "smoke", quiet=False)
    told = capsys.readouterr().err
    assert re.search(r"^(Normal|PBWN|Unit start) with(out)? batch norm, lr 0\.[13], seed 1: done, test", told, re.M)
    after = results(out)
    assert after[lost][0] == before[lost][0]
    assert all(after[path] == before[path] for path in kept)
    assert (out / "report.html").stat().st_mtime_ns > page


def test_a_damaged_run_is_named_and_left_out(out, capsys):
    compare(out, "smoke", quiet=True)
    path, *_ = out.glob("demo/smoke/mlp-normal-*/result.json")
    content = path.read_text()
    path.write_text(content[:-20])
    capsys.readouterr()
    compare(out, "smoke", quiet=True)
    path.write_text(content)
    printed = capsys.readouterr()
    assert f"left out: {path.parent}: result.json cannot be read" in printed.err
    assert "│ PBWN " in printed.out
