"""Graceful stops: on SIGTERM or SIGINT, a run finishes its step, saves and ends."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType


class Interrupted(Exception):  # noqa: N818 - not an error
    """The run was asked to stop and has saved its state."""


class StopRequest:
    """A context in which SIGTERM and SIGINT request a stop; a second signal exits immediately."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            os._exit(128 + number)
        self.requested = True
