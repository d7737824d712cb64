"""The process of a daemon: Ctrl+C, SIGTERM or a closed terminal drains, the second Ctrl+C or SIGTERM leaves at once;
garbage and buffers."""

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
    """Within the context the first SIGINT, SIGTERM or SIGHUP calls `drain`. An early signal does so at once.

    The second SIGINT or SIGTERM calls `at_last` and ends the process with exit code 130. Its children see their
    connection to it close and exit by themselves.

    A closed terminal sends SIGHUP more than once, and a log-out adds a SIGTERM: no SIGHUP is anybody's second word.
    Under `nohup` SIGHUP does nothing, as the person wants."""
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
    """Run a daemon, and return its exit code. A SIGTERM or SIGHUP ends it with 0 while it cannot drain yet.

    Such a signal cancels it. From its own `on_stop_signals` on, signals are its own matter."""
    running, told = asyncio.create_task(main), False

    def end() -> None:
        nonlocal told
        told = True
        running.cancel()

    # without Ctrl+C, which ends the loop with exit code 130 until the daemon hears it
    with on_stop_signals(end, heard=STOPS[1:]):
        try:
            return await running
        except asyncio.CancelledError:
            if not told:
                raise
            say("left: it was told to before there was anything to drain")
            return 0


def leave_when_stdin_closes() -> None:
    """Send this process a SIGTERM, which drains it, when standard input ends. A thread of its own waits for that: an
    event loop cannot watch every kind of file."""

    def wait() -> None:
        while _read_some():
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="standard input", daemon=True).start()


def _read_some() -> bytes:
    try:
        return os.read(0, 4096)
    except OSError:  # closed, or a terminal that is gone
        return b""


THRESHOLDS = (700, 2, 2)
"""New objects until the youngest are looked through, and how often that is done until the older ones are too."""


def freeze_gc() -> None:
    """When all is loaded, and once more when all is built: what there is now stays for good and is never looked through
    again. The rest is so little (a ms) that it is all looked through after some 6,000 new objects."""
    gc.collect()
    gc.freeze()
    gc.collect()  # of nothing: it sets the number of old objects that the new ones are compared with
    gc.set_threshold(*THRESHOLDS)


FILES = 4096
"""Open files that a daemon asks for: its callers may hold three each."""


def raise_file_limit() -> None:
    """Raise the number of files that this process may open, as far as the system lets it."""
    soft, hard = open_file_limits()
    if soft >= min(FILES, hard):
        return
    import resource

    with contextlib.suppress(OSError, ValueError):  # fewer callers find a place, then
        most = resource.RLIM_INFINITY if math.isinf(hard) else int(hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(min(FILES, hard)), most))


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


_M_ARENA_MAX = -8


ARENAS = 2


def tune_malloc() -> str:
    """Once at a daemon's start. Returns what was done and why, for the log."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return "malloc left alone: not glibc"
    libc = ctypes.CDLL(None)
    buffers = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20))
    set_to = (*buffers, (_M_ARENA_MAX, ARENAS))
    if all(libc.mallopt(name, value) == 1 for name, value in set_to):
        return "malloc keeps freed buffers: chunk buffers are reused without page faults"
    return "malloc left alone: mallopt refused"
