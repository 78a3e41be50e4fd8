"""Importing a package that may be broken, in a process that may die of it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass

SECONDS = 60


@dataclass(frozen=True)
class Import:
    """A package that another process is importing."""

    package: str
    _process: subprocess.Popen[str]

    @classmethod
    def begin(cls, package: str) -> Import | None:
        """Start importing a package, as this process would; None if it is not installed."""
        if importlib.util.find_spec(package) is None:
            return None
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        words = [sys.executable, "-W", "ignore", "-c", f"import {package}"]
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        return cls(package, subprocess.Popen(words, env=environment, text=True, stdout=null, stderr=pipe))

    def problem(self) -> str | None:
        """Wait for it: what went wrong in one line, or None."""
        try:
            _, said = self._process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return f"the import took longer than {SECONDS} seconds"
        code = self._process.returncode
        if code == 0:
            return None
        lines = [line for line in said.splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"the import ended with exit code {code}"
