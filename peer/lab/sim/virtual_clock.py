"""An asyncio loop on a virtual clock: when every task waits, time jumps to the next timer. A simulated day takes only
the time to compute its events, and two runs with the same seed are identical.

    run_virtual(scenario())       # like asyncio.run, in virtual time"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import selectors
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar, TypeVarTuple

from peer.clock.clock_filter import ClockFilter

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_750_000_000.0
"""Seconds since the epoch that the virtual wall clock shows at loop time 0."""


class VirtualDeadlock(RuntimeError):
    """No task can run and no timer is set: the code under test has deadlocked."""


class Gate:
    """Stops and resumes all tasks of one machine. A closed gate simulates SIGSTOP: time passes and timers fall due, but
    no task of the machine runs until the gate opens. A gate that never opens again simulates SIGKILL: not even
    `finally` runs."""

    def __init__(self) -> None:
        self.shut = False
        self._held: list[_Step] = []
        self._opened: asyncio.Event = asyncio.Event()
        self._opened.set()

    def close(self) -> None:
        """Stop the machine. Callbacks that were about to run are held back too."""
        self.shut = True
        self._opened.clear()
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            loop.shut_gates.add(self)
            self._held += loop.withhold(self)

    def open(self) -> None:
        """Resume the machine, and run the held-back callbacks in order."""
        self.shut = False
        self._opened.set()
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            loop.shut_gates.discard(self)
        held, self._held = self._held, []
        for step in held:
            loop.call_soon(step.callback, *step.args, context=step.context)

    async def opened(self) -> None:
        """Wait until the gate is open. Messages to a stopped process wait here, as in its kernel's buffers."""
        while self.shut:
            await self._opened.wait()

    def hold(self, step: _Step) -> None:
        """Hold a callback back until the gate opens."""
        self._held.append(step)


GATE: contextvars.ContextVar[Gate | None] = contextvars.ContextVar("gate", default=None)
"""The gate of the current task's machine. A task inherits it from the task that started it."""


class _Step:
    """A replacement of `asyncio.Handle` that is small and fast to make, because a simulation makes millions of them."""

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Callable[..., object], args: Sequence[Any], context: contextvars.Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context

    def cancel(self) -> None:
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.callback is _nothing


class _Timer(_Step):
    """A replacement of `asyncio.TimerHandle`: a callback with the loop time at which it is due."""

    __slots__ = ("in_heap", "loop", "moment")

    def __init__(
        self,
        loop: VirtualLoop,
        moment: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        context: contextvars.Context,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.loop = loop
        self.moment = moment
        self.in_heap = True
        """True while the timer is in the loop's heap."""

    def when(self) -> float:
        return self.moment

    def mark_left_heap(self) -> None:
        """Mark the timer as taken out of the heap."""
        self.in_heap = False

    def cancel(self) -> None:
        if self.callback is not _nothing:
            self.callback, self.args = _nothing, ()
            if self.in_heap:
                self.loop.count_cancelled()


def _nothing() -> None:
    """Do nothing. Stands in for the callback of a cancelled handle, so that the handle keeps no references."""


class _BlindSelector(selectors.SelectSelector):
    """A selector that never blocks: in virtual time, I/O that is not ready now never becomes ready."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if timeout is None and not ready:
            raise VirtualDeadlock("every task waits and no timer is set")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time. Threads and sockets cannot be awaited in it, because no real time passes.

    Timers are tuples in a heap, because asyncio's own heap compares handles in Python, which is slow. For the same
    reason the loop runs its handles itself, and polls sockets only when no callback and no timer is left."""

    _ready: deque[_Step]
    _stopping: bool

    def __init__(self) -> None:
        self._now = 0.0
        self.shut_gates = set[Gate]()
        self._timers: list[tuple[float, int, _Timer | asyncio.Future[None]]] = []
        self._set = self._cancelled = 0
        super().__init__(_BlindSelector())

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]  # a handle of our own, that does what asyncio's does
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> _Timer:
        timer = _Timer(self, when, callback, args, contextvars.copy_context() if context is None else context)
        self._set += 1
        heapq.heappush(self._timers, (when, self._set, timer))
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> _Timer:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def future_in(self, seconds: float) -> asyncio.Future[None]:
        """Return a future that resolves after `seconds` (positive). Cheaper than a timer, because the heap holds the
        future itself."""
        future: asyncio.Future[None] = asyncio.Future(loop=self)
        self._set += 1
        heapq.heappush(self._timers, (self._now + seconds, self._set, future))
        return future

    def count_cancelled(self) -> None:
        """Count a cancelled timer. When most timers in the heap are cancelled, remove them."""
        self._cancelled += 1
        if self._cancelled > 100 and 2 * self._cancelled > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _run_once(self) -> None:
        """Run all callbacks that are ready. When none is, jump to the next timer."""
        ready = self._ready
        if not ready and not self._stopping and not self._jump():
            super()._run_once()  # type: ignore[misc]
            return
        while ready:
            step = ready.popleft()
            try:
                step.context.run(step.callback, *step.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  as asyncio's own handles do
                said = f"Exception in callback {step.callback!r}"
                self.call_exception_handler({"message": said, "exception": error})
            if self._stopping:
                return

    def withhold(self, gate: Gate) -> list[_Step]:
        """Remove from the ready queue the callbacks of this gate's machine, and return them in order."""
        ready, held = list(self._ready), list[_Step]()
        self._ready.clear()
        for step in ready:
            behind = step.context.get(GATE) is gate
            (held if behind else self._ready).append(step)
        return held

    def _jump(self) -> bool:
        """Advance the time to the next timer and make everything due then ready. Return False if there is no timer."""
        timers, pop = self._timers, heapq.heappop
        while timers and timers[0][2].cancelled():
            if isinstance(pop(timers)[2], _Timer):
                self._cancelled -= 1
        if not timers:
            return False
        self._now = now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= now:
            due = pop(timers)[2]
            if isinstance(due, _Timer):
                due.mark_left_heap()
                self._cancelled -= due.cancelled()
                self._ready.append(due)
            elif not due.done():
                due.set_result(None)
        return True

    def call_soon(  # type: ignore[override]
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> _Step:
        if context is None:
            context = contextvars.copy_context()
        step = _Step(callback, args, context)
        if self.shut_gates and (gate := context.get(GATE)) in self.shut_gates:
            assert gate is not None
            gate.hold(step)
        else:
            self._ready.append(step)
        return step

    call_soon_threadsafe = call_soon  # type: ignore[assignment]
    """Not thread-safe: only the handler of Ctrl+C calls this, in the loop's own thread."""

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)


def nap(seconds: float) -> Awaitable[None]:
    """Sleep on any loop, as `asyncio.sleep`, but cheaper on a virtual one. Await the result at once: its time counts
    from the call."""
    loop = asyncio.get_running_loop()
    return loop.future_in(seconds) if seconds > 0 and isinstance(loop, VirtualLoop) else asyncio.sleep(seconds)


class VirtualClock:
    """The `Clock` port in virtual time. `skew_s`: error of this peer's uncorrected clock. Offsets observed at Hello
    correct it, as with the real clock."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self._skew = self._off = skew_s
        self._correction = 0.0
        self._filter = ClockFilter()
        self._loop: VirtualLoop | None = None

    def now(self) -> float:
        loop = self._loop or self._found()
        return EPOCH + loop._now + self._off

    def _found(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "a virtual clock goes with a virtual loop"
        self._loop = loop
        return loop

    @property
    def correction(self) -> float:
        return self._correction

    def raw(self, run_time: float) -> float:
        return run_time - self._correction

    async def sleep(self, seconds: float) -> None:
        await nap(max(seconds, 0.0))

    def bound(self, seconds: float) -> None:
        self._filter.bound(seconds)
        self._correct(self._filter.within(self._correction))

    def forget_offsets(self) -> None:
        self._filter.forget()

    def observe(self, offset_s: float, voice: str = "") -> None:
        self._filter.observe(offset_s, voice)
        if (found := self._filter.correction()) is not None:
            self._correct(found)

    def _correct(self, seconds: float) -> None:
        self._correction, self._off = seconds, self._skew + seconds


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time, and return its result. Meanwhile the garbage collector ignores
    objects that existed before, and rarely looks at old ones, because a full collection in a large swarm takes long and
    frees little."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 20, 1_000_000)
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
