"""The wish to stop that comes before a daemon can drain.

A daemon takes seconds to load, and a signal would end it meanwhile as if it had crashed. So the first lines of the
program remember the signal, and `peer.node.process.on_stop_signals` obeys it. Nothing but `signal` is loaded for it."""

from __future__ import annotations

import os
import signal
from types import FrameType

NAMES = ("SIGTERM", "SIGHUP")
"""Ctrl+C is left out: it ends the program with exit code 130, wherever it comes."""
INTERRUPTED_EXIT = 130


class EarlySignals:
    """The signals of a process that came before anybody could obey them."""

    def __init__(self) -> None:
        self._received: list[signal.Signals] = []

    def install_handlers(self) -> None:
        """Remember the signals from here on. Under `nohup` SIGHUP goes on doing nothing.

        The second SIGTERM ends the process at once. To be called in the main thread."""
        for number in [getattr(signal, name) for name in NAMES if hasattr(signal, name)]:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._on_signal)

    def drain(self) -> list[signal.Signals]:
        """Return the signals that came, and forget them."""
        came, self._received = self._received, []
        return came

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and signal.SIGTERM in self._received:
            os._exit(INTERRUPTED_EXIT)
        self._received.append(signal.Signals(number))


EARLY_SIGNALS = EarlySignals()
"""Those of this process."""
