"""Handles Ctrl+C, or the interrupt of a notebook, while orders of the daemon are executed."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Context manager that postpones Ctrl+C to its end, so that no merge is cut off and no order stays unanswered.

    A loop in a notebook can thus be interrupted and continued with the same daemon. A second Ctrl+C takes effect at
    once."""

    def __init__(self) -> None:
        self._former_handler: Any = None
        """The program's own handler, while ours is installed. None: ours is not installed."""
        self._pending: tuple[int, FrameType | None] | None = None

    @property
    def waiting(self) -> bool:
        """Whether an interrupt was postponed."""
        return self._pending is not None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # Python runs signal handlers on this thread only
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._former_handler = handler
                signal.signal(signal.SIGINT, self._postpone)

    def _postpone(self, number: int, frame: FrameType | None) -> None:
        again, self._pending = self.waiting, (number, frame)
        if again:
            self.deliver()

    def deliver(self) -> None:
        """Call the program's handler if an interrupt was postponed. Only to be called while no order is executed."""
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
