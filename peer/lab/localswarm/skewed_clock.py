"""`python -m peer.lab.localswarm.skewed_clock FILE …`: runs `peer …` with a wall clock that is wrong by the number of
seconds in FILE, which may change at any time. Only chaos runs use it; the daemon does not know about it."""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

LOOK_EVERY_S = 0.1


def skewed(file: Path, real: Callable[[], float], monotonic: Callable[[], float]) -> Callable[[], float]:
    """Return a wrong `time.time`, which reads its error from `file`. If the file is missing or incomplete, the former
    error stays."""
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
    # The daemon takes no wall clock as an argument, so replace the process's before any module has imported it.
    time.time = skewed(file, time.time, time.monotonic)
    runpy.run_module("peer", run_name="__main__")


if __name__ == "__main__":
    main()
