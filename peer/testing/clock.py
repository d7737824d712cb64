"""A virtual clock with autojump: when every task waits, time jumps to the next timer. A simulated day takes as long as
its events take to compute, and two runs with one seed are the same run.

    run_virtual(scenario())       # like asyncio.run, in virtual time"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_750_000_000.0
"""What the virtual wall clock says at loop time 0."""


class EverybodyWaitsForever(RuntimeError):
    """No task can run and no timer is set: the code under test has deadlocked."""


class Gate:
    """Whether the tasks of one machine run. Shut, it is a process that got SIGSTOP: time passes, timers fall due, and
    nothing of it is noticed before it is opened. Shut for good, it is a process that got SIGKILL: not even `finally`
    runs."""

    def __init__(self) -> None:
        self.shut = False
        self._held: list[asyncio.Handle] = []
        self._opened: asyncio.Event = asyncio.Event()
        self._opened.set()

    def close(self) -> None:
        self.shut = True
        self._opened.clear()

    def open(self) -> None:
        """Everything that fell due meanwhile happens now, in order."""
        self.shut = False
        self._opened.set()
        held, self._held = self._held, []
        for handle in held:
            if not handle.cancelled():
                asyncio.get_running_loop().call_soon(handle._run)

    async def opened(self) -> None:
        """Wait until it is open: what is sent to a stopped process lies in its kernel's buffers."""
        while self.shut:
            await self._opened.wait()

    def hold(self, handle: asyncio.Handle) -> asyncio.Handle:
        self._held.append(handle)
        return handle


GATE: contextvars.ContextVar[Gate | None] = contextvars.ContextVar("gate", default=None)
"""The machine that a task belongs to; tasks inherit it from the task that started them."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of sleeping, moves the loop's time to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.jump: Callable[[], bool] = lambda: False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """`timeout` is 0 while there are tasks to run, and None when there are none."""
        assert timeout is None or timeout <= 0, timeout
        if timeout is None and not self.jump():
            ready = super().select(0)
            if not ready:
                raise EverybodyWaitsForever("every task waits and no timer is set")
            return ready
        return []  # there are no sockets to look at, and a real look costs as much as a task's step


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time. Threads and sockets have no place in it: real time does not pass here.

    Timers lie in a heap of tuples: asyncio's own compares handles in Python, which is a fifth of a simulation."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._set = self._cancelled = 0
        selector = _JumpingSelector()
        selector.jump = self._jump
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._set += 1
        heapq.heappush(self._timers, (when, self._set, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled += 1
        if self._cancelled > 100 and 2 * self._cancelled > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _jump(self) -> bool:
        """To the next moment at which something is due; False: there is none."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
            self._cancelled = max(0, self._cancelled - 1)
        if not self._timers:
            return False
        self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(self._timers)[2])  # type: ignore[attr-defined]
        return True

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        gate = GATE.get() if context is None else context.get(GATE)
        if gate is not None and gate.shut:
            return gate.hold(asyncio.Handle(callback, args, self, context))
        return super().call_soon(callback, *args, context=context)


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
    """Run a coroutine to its end in virtual time. Garbage is looked for more seldom meanwhile: a simulation makes
    millions of small objects that go by themselves, and a look at a large swarm takes long."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)
    finally:
        gc.set_threshold(*before)


async def inline(work: Callable[[], T]) -> T:
    """The `Offload` of virtual time: heavy work runs in place and costs no virtual time."""
    return work()
