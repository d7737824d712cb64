"""The daemon as an operating system process: stop signals, the garbage collector, malloc, and the limit on open
files."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import math
import os
import platform
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from peer.early_signals import EARLY_SIGNALS, INTERRUPTED_EXIT
from peer.process_limits import open_file_limits

STOPS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@contextlib.contextmanager
def on_stop_signals(
    drain: Callable[[], None], at_last: Callable[[], None] = lambda: None, heard: Iterable[signal.Signals] = STOPS
) -> Iterator[None]:
    """Handle stop signals within the context. The first SIGINT, SIGTERM or SIGHUP calls `drain`, at once if it arrived
    before the context was entered.

    The second SIGINT or SIGTERM calls `at_last` and ends the process with exit code 130. Child processes see their
    connection close and exit by themselves.

    SIGHUP never counts as a second signal, because a closed terminal sends it more than once and a log-out adds a
    SIGTERM. Under `nohup` SIGHUP stays ignored."""
    loop = asyncio.get_running_loop()
    draining, asked = False, 0

    def handle(number: signal.Signals) -> None:
        nonlocal draining, asked
        asked += number is not signal.SIGHUP
        if asked > 1:
            at_last()
            os._exit(INTERRUPTED_EXIT)
        if not draining:
            draining = True
            drain()

    before = {number: signal.getsignal(number) for number in heard}
    if before.get(signal.SIGHUP) is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        loop.add_signal_handler(number, handle, number)
    for number in EARLY_SIGNALS.drain():
        handle(number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def run_until_early_signal(main: Coroutine[Any, Any, int], say: Callable[[str], None]) -> int:
    """Run a daemon and return its exit code. A SIGTERM or SIGHUP that arrives before the daemon can drain cancels it,
    and the exit code is 0.

    The daemon's own `on_stop_signals` replaces these handlers as soon as it is entered."""
    running, told = asyncio.create_task(main), False

    def end() -> None:
        nonlocal told
        told = True
        running.cancel()

    # not SIGINT: until the daemon handles it, Ctrl+C ends the event loop with exit code 130
    with on_stop_signals(end, heard=STOPS[1:]):
        try:
            return await running
        except asyncio.CancelledError:
            if not told:
                raise
            say("left: it was told to before there was anything to drain")
            return 0


def leave_when_stdin_closes() -> None:
    """Send this process a SIGTERM, which drains it, when standard input ends. A thread waits for that, because an event
    loop cannot watch every kind of file."""

    def wait() -> None:
        while _read_some():
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="standard input", daemon=True).start()


def _read_some() -> bytes:
    try:
        return os.read(0, 4096)
    except OSError:  # standard input is closed, or its terminal is gone
        return b""


THRESHOLDS = (700, 2, 2)
"""Thresholds of `gc.set_threshold`: new objects until the youngest generation is collected, and collections of each
generation until the next older one is collected."""


def freeze_gc() -> None:
    """Exempt all present objects from garbage collection. Called once after the imports and once after the parts are
    created.

    The remaining objects are so few that a full collection takes about a millisecond, after some 6,000 new objects."""
    gc.collect()
    gc.freeze()
    gc.collect()  # finds nothing, and resets the count of old objects that gates a full collection
    gc.set_threshold(*THRESHOLDS)


FILES = 4096
"""Open files that a daemon asks for: each caller may hold three."""


def raise_file_limit() -> None:
    """Raise the number of files that this process may open to `FILES`, or as far as the system allows."""
    soft, hard = open_file_limits()
    if soft >= min(FILES, hard):
        return
    import resource

    with contextlib.suppress(OSError, ValueError):  # then fewer callers are admitted
        most = resource.RLIM_INFINITY if math.isinf(hard) else int(hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(min(FILES, hard)), most))


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


_M_ARENA_MAX = -8


ARENAS = 2


def tune_malloc() -> str:
    """Configure glibc's malloc so that freed chunk buffers are reused without page faults. Called once at a daemon's
    start. Return what was done and why, for the log."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return "malloc left alone: not glibc"
    libc = ctypes.CDLL(None)
    buffers = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20))
    set_to = (*buffers, (_M_ARENA_MAX, ARENAS))
    if all(libc.mallopt(name, value) == 1 for name, value in set_to):
        return "malloc keeps freed buffers: chunk buffers are reused without page faults"
    return "malloc left alone: mallopt refused"
