"""Import a user's own models and methods, named as MODULE:NAME."""

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
    """Whether a name refers to the user's own code, not to a part of the suite."""
    return ":" in name


def import_object(target: str, *, kind: str, example: str) -> Any:
    """Import the object that `module:name` refers to; modules are also searched for in the current folder.

    Error messages use `kind`, what the object should be, and `example`, how to write its name.
    """
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise UsageError(f"{target!r} does not name a {kind}: write {example}")
    found = _import_module(module_name)
    for name in path.split("."):
        found = _attribute(found, name, module_name)
    return found


def source_digest(target: str) -> str | None:
    """The sha256 of the file of the module in `module:name`; None if the module has no file."""
    path = getattr(_import_module(target.partition(":")[0]), "__file__", None)
    return None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()


def user_location(error: BaseException) -> str:
    """Return " at FILE:LINE" for the innermost frame of the user's code in an exception's traceback, or "".

    Frames of the suite and of torch never count; those of other installed packages count if there are no others.
    """
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():  # code that does not parse has no frame
        return f" at {_relative(Path(str(error.filename)).resolve())}:{error.lineno}"
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(Path(frame.f_code.co_filename).resolve(), number) for frame, number in frames]
    lines = [(path, number) for path, number in lines if path.is_file() and _SUITE not in path.parents]
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")}
    for path, number in reversed(lines):
        if installed.isdisjoint(path.parents):
            return f" at {_relative(path)}:{number}"
    others = [f" at {path}:{number}" for path, number in lines if "torch" not in path.parts]
    return others[-1] if others else ""


def _relative(path: Path) -> Path:
    """A path relative to the current folder if it is below it, else unchanged."""
    return path.relative_to(Path.cwd()) if Path.cwd() in path.parents else path


def import_from(folder: Path | str) -> None:
    """Add a folder to the front of the module search path."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_module(name: str) -> Any:
    folder = os.getcwd()
    import_from(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"no module named {error.name!r}: install it, or run from the folder that contains it "
                f"(currently {folder})"
            ) from None
        raise UsageError(f"module {name!r} needs {error.name!r}, which is not installed") from error
    except SyntaxError as error:
        raise UsageError(
            f"module {name!r} cannot be imported ({type(error).__name__}: {error.msg}{user_location(error)}): fix it"
        ) from error
    except (Exception, SystemExit) as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UsageError(
            f"module {name!r} cannot be imported ({cause}{user_location(error)}): fix it; code that is only meant to "
            "run as a script belongs under `if __name__ == '__main__':`"
        ) from error


def _attribute(holder: Any, name: str, module_name: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError:
        public = [each for each in dir(holder) if not each.startswith("_")]
        closest = difflib.get_close_matches(name, public, n=1)
        raise UsageError(
            f"module {module_name!r} has no {name!r}" + (f": did you mean {closest[0]!r}?" if closest else "")
        ) from None
