"""Catches stop signals that arrive before the daemon can drain.

A daemon takes seconds to import, and a signal during that time would end it as if it had crashed. So the program's
first lines install handlers that only record the signal, and `peer.node.process.on_stop_signals` acts on it later. This
module imports nothing but `signal`, to be ready at once."""

from __future__ import annotations

import os
import signal
from types import FrameType

NAMES = ("SIGTERM", "SIGHUP")
"""The recorded signals. Not SIGINT (Ctrl+C), which ends the program with exit code 130 at any time."""
INTERRUPTED_EXIT = 130


class EarlySignals:
    """The stop signals that this process received before it could act on them."""

    def __init__(self) -> None:
        self._received: list[signal.Signals] = []

    def install_handlers(self) -> None:
        """Install the handlers. A signal that is ignored, such as SIGHUP under `nohup`, stays ignored.

        The second SIGTERM ends the process at once. To be called in the main thread."""
        for number in [getattr(signal, name) for name in NAMES if hasattr(signal, name)]:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._on_signal)

    def drain(self) -> list[signal.Signals]:
        """Return the signals received so far, and clear the list."""
        came, self._received = self._received, []
        return came

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and signal.SIGTERM in self._received:
            os._exit(INTERRUPTED_EXIT)
        self._received.append(signal.Signals(number))


EARLY_SIGNALS = EarlySignals()
"""The early signals of this process."""
