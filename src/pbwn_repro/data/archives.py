"""Files out of tar archives, without ever unpacking to disk."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from pbwn_repro.data.errors import DamagedFileError


def read_members(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of the named files."""
    return dict(iterate_members(archive, names))


def iterate_members(archive: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the named files one after the other; refuse an archive with any path that leaves its folder."""
    found = set()
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                refuse_leaving(archive, member)
                stream = tar.extractfile(member) if member.name in names and member.isfile() else None
                if stream is not None:
                    found.add(member.name)
                    yield member.name, stream.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DamagedFileError.about(
            archive,
            expected="a whole tar.gz archive",
            found=f"{archive.stat().st_size:,} bytes that do not unpack ({error})",
            remedy="Fetch the file anew.",
        ) from error
    if missing := [name for name in names if name not in found]:
        raise DamagedFileError.about(
            archive,
            expected=f"the members {', '.join(names)}",
            found=f"no {', '.join(missing)}",
            remedy="Fetch the published archive (CIFAR: the binary version).",
        )


def refuse_leaving(archive: Path, member: tarfile.TarInfo) -> None:
    """Raise if a member, or what it links to, lies outside of the archive's folder."""
    paths = [PurePosixPath(member.name)]
    if member.issym():
        paths.append(PurePosixPath(member.name).parent / member.linkname)
    elif member.islnk():
        paths.append(PurePosixPath(member.linkname))
    for path in paths:
        if path.is_absolute() or leaves(path):
            raise DamagedFileError.about(
                archive,
                expected="paths inside of the archive's folder",
                found=f"{str(path)!r}",
                remedy="Do not use this archive: it is not the published one.",
            )


def leaves(path: PurePosixPath) -> bool:
    """Return whether a relative path climbs above where it starts."""
    depth = 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False
