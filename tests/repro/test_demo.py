"""`pbwn demo`: a table and a report at its end, at once when called again, from where it was cut off otherwise."""

import pytest

from pbwn_repro.commands.demo import compare


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    place = tmp_path_factory.mktemp("demo")
    compare(place, "smoke", quiet=True)
    return place


def results(out):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("demo/smoke/*/result.json")}


def test_it_ends_with_the_table_and_the_path_of_the_report(out, capsys):
    compare(out, "smoke", quiet=True)
    printed = capsys.readouterr().out
    for method in ("Normal", "WN", "PBWN-Riem", "PBWN", "PBWN-Epoch"):
        [row] = [line for line in printed.splitlines() if line.startswith(f"│ {method} ")]
        assert row.count("(1)") == 2  # runs of the loss and of the error
    assert printed.splitlines()[-1] == f"Report: {out / 'report.html'}"
    page = (out / "report.html").read_text()
    assert "handwritten digits" in page
    assert "<summary>Protocol" in page  # its own, not the paper's


def test_called_again_it_makes_nothing_anew(out):
    before, page = results(out), (out / "report.html").stat().st_mtime_ns
    assert len(before) == 5
    compare(out, "smoke", quiet=True)
    assert results(out) == before
    assert (out / "report.html").stat().st_mtime_ns == page


def test_what_is_missing_is_made_and_the_report_drawn_anew(out):
    before, page = results(out), (out / "report.html").stat().st_mtime_ns
    lost, *kept = before
    lost.unlink()
    compare(out, "smoke", quiet=True)
    after = results(out)
    assert after[lost][0] == before[lost][0]
    assert all(after[path] == before[path] for path in kept)
    assert (out / "report.html").stat().st_mtime_ns > page


def test_a_damaged_run_is_named_and_left_out(out, capsys):
    compare(out, "smoke", quiet=True)
    [path] = out.glob("demo/smoke/resnet-20-normal-*/result.json")
    content = path.read_text()
    path.write_text(content[:-20])
    capsys.readouterr()
    compare(out, "smoke", quiet=True)
    path.write_text(content)
    printed = capsys.readouterr()
    assert f"left out: {path.parent}: result.json cannot be read" in printed.err
    assert "│ PBWN " in printed.out
