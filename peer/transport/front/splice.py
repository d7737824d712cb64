"""A splice: two connections, of which each sends what the other receives. Nothing of that is looked at here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol, cast

from peer.transport.front.callers import FrontCaller, FrontLimits


class SpliceOwner(Protocol):
    """The one that made a splice, and is told of it."""

    limits: FrontLimits

    def takes_over(self, splice: Splice, early: bytes) -> bool:
        """Return whether this caller does not want gRPC, by its first bytes. More of them may be needed to tell."""

    def accepted(self, splice: Splice) -> bool:
        """Return whether the caller that has just connected has a place."""

    def connect(self, splice: Splice) -> asyncio.Task[None]:
        """Start the connection inside, for `splice.inner`. The task raises OSError or TimeoutError."""

    def connected(self, splice: Splice) -> None:
        """Take note of the connection inside, before a byte passes over it."""

    def gone(self, splice: Splice) -> None:
        """Take note that both connections are closed."""


class SpliceEnd(asyncio.Protocol):
    """One of the two connections."""

    def __init__(self, splice: Splice) -> None:
        self._splice = splice
        self.transport: asyncio.Transport | None = None
        self.ended = False
        """Whether nothing more comes in here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self._splice.owner.limits.buffer)
        self._splice.made(self)

    def data_received(self, data: bytes) -> None:
        self._splice.received(self, data)

    def eof_received(self) -> bool:
        self.ended = True
        self._splice.ended(self)
        return True  # what the other end still says is sent here

    def pause_writing(self) -> None:
        self._splice.other(self).read(False)

    def resume_writing(self) -> None:
        self._splice.other(self).read(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._splice.lost(self)

    def read(self, wanted: bool) -> None:
        """Read on, or wait. An end that is over is left alone: resumed, it would end a second time."""
        if self.transport is None or self.ended or self.transport.is_closing():
            return
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def send(self, data: bytes) -> None:
        """Send, if the connection still stands."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def send_end(self) -> None:
        """Tell that nothing more will be sent."""
        if self.transport is not None and not self.transport.is_closing():
            with contextlib.suppress(OSError):  # it broke, and `connection_lost` is about to tell
                self.transport.write_eof()

    def close(self) -> None:
        """Close the connection once all is sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Drop the connection at once, with all that was to be sent."""
        if self.transport is not None:
            self.transport.abort()


class Splice:
    """A caller's connection, and one inside from the caller's first byte on.

    On failure: when one connection ends, the other has `linger_s` to end as well."""

    def __init__(self, owner: SpliceOwner) -> None:
        self.owner = owner
        self.outer = SpliceEnd(self)
        self.inner = SpliceEnd(self)
        self.caller: FrontCaller | None = None
        self._early = b""
        self._connecting: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._open = 0
        self._over = False

    def serve(self, caller: FrontCaller) -> None:
        """Take note whose connection it is."""
        self.caller = caller

    def other(self, end: SpliceEnd) -> SpliceEnd:
        """Return the other end."""
        return self.inner if end is self.outer else self.outer

    def abort(self) -> None:
        """Drop both connections at once."""
        self._over = True
        if self._connecting is not None:
            self._connecting.cancel()
        self.outer.abort()
        self.inner.abort()

    def abort_after(self, seconds: float, unless: Callable[[], bool] = lambda: False) -> None:
        """Drop both connections after a time, unless something holds by then."""
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(seconds, self._abort_unless, unless))

    def release(self) -> asyncio.Transport:
        """Give the caller's connection away, which nobody reads for the moment. Its taker tells of its end."""
        assert self.outer.transport is not None
        self._over = True
        self._early = b""
        while self._timers:
            self._timers.pop().cancel()
        self.outer.read(False)
        return self.outer.transport

    # -- told by the ends ----------------------------------------------------------------------------------------------

    def made(self, end: SpliceEnd) -> None:
        """Ask for a place for the caller, or take note of the connection inside."""
        self._open += 1
        if end is self.outer:
            if not self.owner.accepted(self):
                self.abort()
        elif self._over:  # the caller left meanwhile
            self.abort()
        else:
            self.owner.connected(self)

    def received(self, end: SpliceEnd, data: bytes) -> None:
        """Pass on what came. The caller's first bytes wait for the connection inside."""
        if end is self.inner or self.inner.transport is not None:
            self.other(end).send(data)
        elif not self._over:
            assert self._connecting is None, "nothing is read while the connection inside is made"
            self._early += data
            if self.owner.takes_over(self, self._early):
                return
            self.outer.read(False)
            self._connecting = self.owner.connect(self)
            self._connecting.add_done_callback(self._connected)

    def ended(self, end: SpliceEnd) -> None:
        """Pass an end on."""
        other = self.other(end)
        if other.transport is None:  # a caller that said nothing
            self.abort()
        elif other.ended:
            self.outer.close()
            self.inner.close()
        else:
            other.send_end()
            self.abort_after(self.owner.limits.linger_s)

    def lost(self, end: SpliceEnd) -> None:
        """Close the other end once it has sent what it holds."""
        self._open -= 1
        self._over = True
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        if self._open:
            self.other(end).close()
            self.abort_after(self.owner.limits.linger_s)
        self._end_if_closed()

    def _abort_unless(self, unless: Callable[[], bool]) -> None:
        if not unless():
            self.abort()

    def _connected(self, connecting: asyncio.Task[None]) -> None:
        """Send what the caller said first. Either connection may be lost by now."""
        failed = connecting.cancelled() or connecting.exception() is not None
        if failed or self._over:
            self.abort()
        else:
            self.inner.send(self._early)
            self.outer.read(True)
        self._early = b""
        self._end_if_closed()

    def _end_if_closed(self) -> None:
        if self._open or (self._connecting is not None and not self._connecting.done()):
            return
        while self._timers:
            self._timers.pop().cancel()
        self.owner.gone(self)
