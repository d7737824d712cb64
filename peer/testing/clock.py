"""A virtual clock with autojump: when every task waits, time jumps to the next timer. A simulated day takes as long as
its events take to compute, and two runs with one seed are the same run.

    run_virtual(scenario())       # like asyncio.run, in virtual time"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH = 1_750_000_000.0
"""What the virtual wall clock says at loop time 0."""


class EverybodyWaitsForever(RuntimeError):
    """No task can run and no timer is set: the code under test has deadlocked."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of sleeping, moves the loop's time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            ready = super().select(0)
            if not ready:
                raise EverybodyWaitsForever("every task waits and no timer is set")
            return ready
        self.time += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time. Threads and sockets have no place in it: real time does not pass here."""

    def __init__(self) -> None:
        self._jumper = _JumpingSelector()
        super().__init__(self._jumper)

    def time(self) -> float:
        return self._jumper.time


class VirtualClock:
    """The `Clock` interface in virtual time. `skew_s` makes this peer's raw clock wrong; as with the real one, what is
    observed at Hello corrects it."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self._skew = skew_s
        self._correction = 0.0

    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time() + self._skew + self._correction

    def raw(self, run_time: float) -> float:
        return run_time - self._correction

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))

    def observe(self, offset_s: float) -> None:
        self._correction = offset_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


async def inline(work: Callable[[], T]) -> T:
    """The `Offload` of virtual time: heavy work runs in place and costs no virtual time."""
    return work()
