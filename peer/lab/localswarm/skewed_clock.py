"""`python -m peer.lab.localswarm.skewed_clock FILE …`: the program `peer …` on a machine whose wall clock is wrong by
the number of seconds in FILE, which may change at any time. Only chaos runs start it; the daemon itself knows nothing
of it."""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

LOOK_EVERY_S = 0.1


def skewed(file: Path, real: Callable[[], float], monotonic: Callable[[], float]) -> Callable[[], float]:
    """Return a `time.time` that is wrong. An absent file, or one being written, leaves it as wrong as it was."""
    offset, looked_at = 0.0, -1.0

    def now() -> float:
        nonlocal offset, looked_at
        if looked_at < 0 or monotonic() - looked_at >= LOOK_EVERY_S:
            looked_at = monotonic()
            try:
                offset = float(file.read_text())
            except (OSError, ValueError):
                return real() + offset
        return real() + offset

    return now


def main() -> None:
    file = Path(sys.argv.pop(1))
    # The daemon takes no wall clock as an argument: this one replaces the process's before anything has bound it.
    time.time = skewed(file, time.time, time.monotonic)
    runpy.run_module("peer", run_name="__main__")


if __name__ == "__main__":
    main()
