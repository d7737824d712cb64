"""Worker thread of low priority, for computations that would block the event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)

BULK_NICE = 5
"""Default niceness of the thread, relative to the daemon. On a busy machine, Linux gives hardly any time to a thread of
niceness 19.

Source: results/studies/bulk_priority.json."""

LOWEST = 19
"""Largest niceness (lowest priority) in Linux."""


def _lower_this_thread(by: int) -> None:
    """Raise the niceness of the calling thread by `by`, relative to the present one.

    It is relative because the volunteer may have started the daemon at a raised niceness, and lowering that needs a
    privilege."""
    # Only Linux has a priority for each thread. Elsewhere the call would change the entire process.
    if sys.platform == "linux":
        thread = threading.get_native_id()
        try:
            own = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(own + by, LOWEST))
        except OSError as error:
            _warn_once(error.strerror)


@functools.cache
def _warn_once(reason: str) -> None:
    """Log, once per reason, that the priority could not be lowered. Service managers and containers may forbid it; the
    work is then done at the normal priority."""
    log.warning("codec and outer step run at the daemon's own priority: the system refused a lower one (%s)", reason)


class LowPriorityThread:
    """One thread that runs the codec and the outer step, one call after another.

    `nice`: niceness of the thread, relative to its process."""

    def __init__(self, nice: int = BULK_NICE) -> None:
        self._pool = ThreadPoolExecutor(1, "bulk", _lower_this_thread, (nice,))

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Run `work` in the thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def start(self, work: Callable[[], T], /) -> Future[T]:
        """Queue `work`, and return its future at once."""
        return self._pool.submit(work)

    def close(self) -> None:
        """Cancel the queued work. Work that is already running runs to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Start(Protocol):
    """Starts work in a thread of low priority, and returns a future of the result."""

    def __call__(self, work: Callable[[], T], /) -> Future[T]: ...


def at_once(work: Callable[[], T], /) -> Future[T]:
    """Run `work` in the caller's own thread: a `Start` for small work and for virtual time.

    An OSError (a full disk) is set on the returned future, as it would be if another thread had run the work."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except OSError as error:
        future.set_exception(error)
    return future


class Offload(Protocol):
    """Runs heavy work outside the event loop, at low priority, and awaits the result."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def inline(work: Callable[[], T], /) -> T:
    """Run `work` in the thread of the event loop: an `Offload` for small work and for virtual time."""
    return work()
