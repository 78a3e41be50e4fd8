"""What a user names as MODULE:NAME, from whatever Python can import: a model, a method."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from pbwn_repro.errors import UsageError

_SUITE = Path(__file__).resolve().parent


def is_own(name: str) -> bool:
    """Whether a name is that of something of the user's, not of the suite."""
    return ":" in name


def imported(target: str, *, kind: str, example: str) -> Any:
    """The object that `module:name` stands for; the current folder can be imported from.

    kind: what it has to be, for the message where it cannot be had, with an example of how to write it.
    """
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise UsageError(f"{target!r} names no {kind}: write {example}")
    found = _module(module_name)
    for name in path.split("."):
        found = _attribute(found, name, module_name)
    return found


def source_digest(target: str) -> str | None:
    """The sha256 of the file that holds what `module:name` stands for; None where there is no such file."""
    path = getattr(_module(target.partition(":")[0]), "__file__", None)
    return None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()


def where(error: BaseException) -> str:
    """The line of the user's code that an exception came through last, for a message; nothing if it came through none.

    The suite and torch are not the user's code; what else is installed is, if there is no other.
    """
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():  # no frame is in what is not parsed
        return f" at {_from_here(Path(str(error.filename)).resolve())}:{error.lineno}"
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(Path(frame.f_code.co_filename).resolve(), number) for frame, number in frames]
    lines = [(path, number) for path, number in lines if path.is_file() and _SUITE not in path.parents]
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")}
    for path, number in reversed(lines):
        if installed.isdisjoint(path.parents):
            return f" at {_from_here(path)}:{number}"
    others = [f" at {path}:{number}" for path, number in lines if "torch" not in path.parts]
    return others[-1] if others else ""


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if Path.cwd() in path.parents else path


def import_from(folder: Path | str) -> None:
    """Have modules found in a folder too."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _module(name: str) -> Any:
    here = os.getcwd()
    import_from(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {error.name!r}: install it, or start in the folder that holds it (this is {here})"
            ) from None
        raise UsageError(f"module {name!r} needs {error.name!r}, which is not installed") from error
    except SyntaxError as error:
        raise UsageError(
            f"module {name!r} cannot be imported ({type(error).__name__}: {error.msg}{where(error)}): correct it"
        ) from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UsageError(
            f"module {name!r} cannot be imported ({said}{where(error)}): correct it; what a script runs belongs below "
            "`if __name__ == '__main__':`"
        ) from error


def _attribute(holder: Any, name: str, module_name: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError:
        public = [each for each in dir(holder) if not each.startswith("_")]
        nearest = difflib.get_close_matches(name, public, n=1)
        raise UsageError(
            f"module {module_name!r} has no {name!r}" + (f": did you mean {nearest[0]!r}?" if nearest else "")
        ) from None
