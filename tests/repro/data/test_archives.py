"""Tar archives: only what is asked for is read, and nothing that reaches out of its folder is trusted."""

import io
import tarfile

import pytest

from pbwn_repro.data import DamagedFileError
from pbwn_repro.data.archives import read_members


def test_the_named_members_are_read(tmp_path, make):
    archive = make.tar_gz(tmp_path / "a.tar.gz", {"d/one": b"1", "d/two": b"22", "three": b"333"})
    assert read_members(archive, ["d/two", "three"]) == {"d/two": b"22", "three": b"333"}


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "d/../../evil"])
def test_a_path_that_leaves_the_folder_is_refused_even_if_not_asked_for(tmp_path, make, name):
    archive = make.tar_gz(tmp_path / "a.tar.gz", {"good": b"1", name: b"2"})
    with pytest.raises(DamagedFileError, match=rf"expected paths inside.*found '{name}'"):
        read_members(archive, ["good"])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_that_leaves_the_folder_is_refused(tmp_path, kind):
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        link = tarfile.TarInfo("good")
        link.type, link.linkname = kind, "../../etc/passwd"
        tar.addfile(link, io.BytesIO())
    with pytest.raises(DamagedFileError, match=r"expected paths inside"):
        read_members(archive, ["good"])


def test_a_missing_member_is_named(tmp_path, make):
    archive = make.tar_gz(tmp_path / "a.tar.gz", {"one": b"1"})
    with pytest.raises(DamagedFileError, match=r"expected the members one, two, found no two"):
        read_members(archive, ["one", "two"])


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_file_that_is_no_whole_archive_is_an_error(tmp_path, make, content):
    archive = make.tar_gz(tmp_path / "a.tar.gz", {"one": bytes(range(256)) * 100})
    archive.write_bytes(archive.read_bytes()[:60] if content is None else content)
    with pytest.raises(DamagedFileError, match=r"expected a whole tar.gz archive"):
        read_members(archive, ["one"])
