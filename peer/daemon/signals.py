"""First Ctrl+C or SIGTERM drains, the second leaves at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

SECOND_SIGNAL_EXIT = 130


@contextlib.contextmanager
def on_stop_signals(drain: Callable[[], None], at_last: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within the context SIGINT and SIGTERM call `drain` once; the next one calls `at_last` and ends the process with
    exit code 130. Its children see their connection to it close and exit by themselves."""
    loop = asyncio.get_running_loop()
    seen = 0

    def handle() -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            at_last()
            os._exit(SECOND_SIGNAL_EXIT)
        drain()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
