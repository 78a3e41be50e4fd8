"""`pbwn data` as a user sees it: what is printed, where, and the exit code."""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile

import numpy
import pytest
from PIL import Image

from pbwn_repro.data.readers import CIFAR10_MEMBERS


@pytest.fixture
def pbwn(here, tmp_path, monkeypatch):
    """Run the command line in this process; return its exit code and what it printed to both outputs."""
    monkeypatch.setenv("PBWN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return here


def test_list_shows_every_set_and_the_cache_folder(pbwn, tmp_path):
    code, out, _ = pbwn("data", "list")
    assert code == 0
    for name in ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "imagenet", "folder:PATH", "hf:"):
        assert name in out
    assert "not downloaded" in out
    assert str(tmp_path / "cache") in out
    assert not (tmp_path / "cache").exists()


def test_get_tells_number_classes_origin_and_digest(pbwn):
    code, out, _ = pbwn("data", "get", "digits")
    assert code == 0
    assert "digits: 1,437 train, 360 test; 10 classes; from scikit-learn; verified" in out
    assert "sha256 d7b5244e1822ad2e385953f071cba8fb0897832aaabbcd97d75649c504bf1662" in out


def test_an_unknown_name_is_one_message_and_no_traceback(pbwn):
    code, out, err = pbwn("data", "get", "cifar-10")
    assert (code, out) == (2, "")
    assert err.startswith("pbwn: unknown data set 'cifar-10': did you mean 'cifar10'? Choose from digits, mnist")
    assert "Traceback" not in err


def test_check_without_anything_here_says_what_to_do(pbwn):
    code, _, err = pbwn("data", "check", "mnist")
    assert code == 1
    assert "Run `pbwn data get mnist` first" in err


def test_a_damaged_file_is_named_by_get_and_by_check(pbwn, tmp_path):
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb") as stream:
        stream.write(b"\x00\x00\x08\x03")
    code, _, err = pbwn("data", "get", "mnist", "--data-dir", tmp_path)
    assert code == 1
    assert "train-images-idx3-ubyte.gz: expected 9,912,422 bytes with md5 f68b3c2dcbeaaa9fbdd348bbdeb94873" in err
    code, out, err = pbwn("data", "check", "mnist", "--data-dir", tmp_path)
    assert code == 1
    assert out.startswith("WRONG  train-images-idx3-ubyte.gz: ")
    assert "mnist: 1 of these checks failed" in err


def test_get_looks_at_the_given_files_even_if_the_set_is_in_the_cache(pbwn, tmp_path, monkeypatch):
    from pbwn_repro.data.download import SourceFile
    from pbwn_repro.data.published import KNOWN_SETS, KnownSet, KnownSplit
    from pbwn_repro.data.readers import read_idx_split

    files = {
        "images": b"\x00\x00\x08\x03" + bytes([0, 0, 0, 1]) * 3 + b"7",
        "labels": b"\x00\x00\x08\x01\x00\x00\x00\x01\x03",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    described = [
        SourceFile(name, hashlib.md5(content).hexdigest(), len(content), ()) for name, content in files.items()
    ]
    splits = {"train": KnownSplit(1, tuple(described))}
    known = KnownSet("tiny", (1, 1, 1), tuple("0123456789"), splits, read_idx_split)
    monkeypatch.setattr("pbwn_repro.data.loading.KNOWN_SETS", {**KNOWN_SETS, "tiny": known})
    code, out, _ = pbwn("data", "get", "tiny", "--data-dir", tmp_path)
    assert (code, out.splitlines()[0]) == (0, "tiny: 1 train; 10 classes; from your files; verified")
    assert "tiny: all checks passed" in pbwn("data", "check", "tiny")[1]
    assert "tiny" in pbwn("data", "list")[1]
    (tmp_path / "images").write_bytes(b"damaged")
    code, _, err = pbwn("data", "get", "tiny", "--data-dir", tmp_path)
    assert code == 1
    assert "images: expected 17 bytes" in err
    assert pbwn("data", "get", "tiny")[0] == 0


def test_a_cifar_archive_in_pickle_form_is_not_taken(pbwn, tmp_path):
    content = b"pickles"
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo(CIFAR10_MEMBERS["test"][0])
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    code, _, err = pbwn("data", "get", "cifar10", "--data-dir", tmp_path)
    assert code == 1
    assert "expected 170,052,171 bytes with md5 c32a1d4ab5d03f1284b67883e8d87530" in err


def test_an_image_folder_is_checked_image_by_image(pbwn, tmp_path):
    for part in ("train", "val"):
        (tmp_path / "pets" / part / "cat").mkdir(parents=True)
        Image.fromarray(numpy.zeros((9, 9, 3), numpy.uint8)).save(tmp_path / "pets" / part / "cat" / "0.png")
    name = f"folder:{tmp_path}/pets"
    assert pbwn("data", "check", name)[0] == 0
    (tmp_path / "pets" / "val" / "cat" / "0.png").write_bytes(b"no image")
    code, out, _ = pbwn("data", "check", name)
    assert code == 1
    assert "ok     train: 1 images" in out
    assert "WRONG  test: " in out
    assert "0.png: expected an image" in out


WITHOUT = "import sys; sys.modules[{package!r}] = None; from pbwn_repro.__main__ import main; main()"


@pytest.mark.parametrize("package", ["typer", "pooch"])
def test_without_the_extra_the_command_prints_the_install_line(package):
    command = [sys.executable, "-c", WITHOUT.format(package=package), "data", "list"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert result.stderr == (
        f"pbwn: this command needs the package {package!r}, which is not installed: pip install 'pbwn[repro]'. "
        "The library itself (import pbwn) works without it.\n"
    )
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("word", "said"), [("--version", "pbwn 0."), ("--help", "The library works without this command")]
)
def test_version_and_help_work_without_the_extra(word, said):
    command = [sys.executable, "-c", WITHOUT.format(package="typer"), word]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert said in result.stdout


def test_help_comes_without_loading_torch():
    program = "import sys; from pbwn_repro import cli; print('torch' in sys.modules, 'typer' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.stdout.split() == ["False", "True"], result.stderr


def test_the_module_runs_as_the_command_does():
    environment = {**os.environ, "COLUMNS": "100"}
    command = [sys.executable, "-m", "pbwn_repro", "data", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 0
    for name in ("list", "get", "check"):
        assert name in result.stdout
