"""Stopping when asked to: finish the step, save, say how to resume."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The run was asked to stop, and has saved its state."""


class StopRequest:
    """While entered, SIGTERM and SIGINT ask for a stop; a second one leaves at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            os._exit(128 + number)
        self.requested = True
