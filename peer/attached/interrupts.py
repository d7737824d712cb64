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
        self._former_handler: Any = None
        """The handler of the program; None: it is in place."""
        self._pending: tuple[int, FrameType | None] | None = None

    @property
    def waiting(self) -> bool:
        """Whether an interrupt waits for the end of the block."""
        return self._pending is not None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._former_handler = handler
                signal.signal(signal.SIGINT, self._postpone)

    def _postpone(self, number: int, frame: FrameType | None) -> None:
        again, self._pending = self.waiting, (number, frame)
        if again:
            self.deliver()

    def deliver(self) -> None:
        """Raise what the program's handler raises, if an interrupt waits. Called where no order is under way."""
        if self._pending is not None:
            came, self._pending = self._pending, None
            self._former_handler(*came)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._former_handler is None:
            return
        signal.signal(signal.SIGINT, self._former_handler)
        try:
            if kind is None:
                self.deliver()
        finally:
            self._former_handler = self._pending = None
