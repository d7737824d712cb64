"""Ctrl+C, or the interrupt of a notebook, while orders of the daemon are carried out."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Postpones Ctrl+C to the end of its block, so that no result is merged in part and no order stays unanswered: a
    loop in a notebook is interrupted and goes on later, with the same daemon. The second Ctrl+C is not postponed."""

    def __init__(self) -> None:
        self._former: Any = None
        """The handler of the program; None: it is in place."""
        self._came: tuple[int, FrameType | None] | None = None

    @property
    def waiting(self) -> bool:
        """Whether an interrupt waits for the end of the block."""
        return self._came is not None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._former = handler
                signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self._came = self.waiting, (number, frame)
        if again:
            self.let_through()

    def let_through(self) -> None:
        """Raise what the program's handler raises, if an interrupt waits. Called where no order is under way."""
        if self._came is not None:
            came, self._came = self._came, None
            self._former(*came)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._former is None:
            return
        signal.signal(signal.SIGINT, self._former)
        try:
            if kind is None:
                self.let_through()
        finally:
            self._former = self._came = None
