"""One connection to another machine: TLS and the walk of its frames on the way in, TLS on the way out, gRPC behind it.

A caller's connection inside begins once the caller has said its SETTINGS. Each direction waits for its receiver: beyond
`FrontLimits.buffer` nothing more is read for it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Protocol, cast

from peer.protocol.wire.http2 import FrameRates, FrameRefused, FrameWalker
from peer.transport.front.callers import CallerRank, FrontCaller, FrontLimits
from peer.transport.front.tls_end import MAX_RECORD, TlsEnd, TlsRefused

READ = 2**18
"""Bytes read at a time of a caller with an admitted call, and of gRPC."""
FIRST_READ = 2**14
"""Bytes read at a time of any other caller."""
TLS_RECORD = 22
"""First byte of a caller that speaks TLS."""


class Scratch(threading.local):
    """Memory that all sessions of a loop read into, one after the other, and that none keeps. Each thread has its own,
    as it has its own loop."""

    def __init__(self) -> None:
        self.read = memoryview(bytearray(READ))
        self.plain = memoryview(bytearray(READ + 2 * MAX_RECORD))


SCRATCH = Scratch()


class SessionOwner(Protocol):
    """The one that made a session, and is told of it."""

    limits: FrontLimits

    def now(self) -> float:
        """Return seconds of any origin."""


class CallerOwner(SessionOwner, Protocol):
    """The owner of callers' sessions."""

    rates: dict[CallerRank, FrameRates]

    def accepted(self, session: FrontSession) -> bool:
        """Return whether the caller that has just connected has a place."""

    def take_circuit(self, session: FrontSession, early: bytes) -> bool:
        """Return whether this caller does not want TLS, by its first bytes. More of them may be needed to tell."""

    def handshake_wait_s(self, session: FrontSession) -> float:
        """Return the seconds that a caller waits for its TLS handshake; infinity: too many of its block wait."""

    def tls(self) -> TlsEnd:
        """Return the TLS of a new connection."""

    def connect(self, session: FrontSession) -> asyncio.Task[None]:
        """Start the connection to gRPC, for `session.inner`. The task raises OSError or TimeoutError."""

    def charge_frames(self, session: FrontSession, frames: float) -> bool:
        """Charge frames to the caller's block; return whether it may go on."""

    def record_held(self, session: FrontSession, nbytes: int) -> None:
        """Take note of the bytes that a caller holds here, or lately left with gRPC."""

    def gone(self, session: FrontSession) -> None:
        """Take note that both connections are closed."""


class SessionEnd(asyncio.BufferedProtocol):
    """One of the two connections of a session."""

    def __init__(self, session: Session, received: Callable[[memoryview], None]) -> None:
        self._session = session
        self._received = received
        self._waits = set[str]()
        self.transport: asyncio.Transport | None = None
        self.full = False
        """Whether more is to be sent here than the connection takes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self._session.owner.limits.buffer)
        self._session.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return SCRATCH.read[: self._session.read_size(self)]

    def buffer_updated(self, nbytes: int) -> None:
        self._received(SCRATCH.read[:nbytes])

    def pause_writing(self) -> None:
        self.full = True
        self._session.other(self).pause("receiver")

    def resume_writing(self) -> None:
        self.full = False
        self._session.other(self).resume("receiver")

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.lost(self)

    def pause(self, reason: str) -> None:
        """Read nothing more until `resume` for the same reason."""
        self._waits.add(reason)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self, reason: str) -> None:
        """Read on, unless there is another reason to wait."""
        self._waits.discard(reason)
        if not self._waits and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    @property
    def paused(self) -> bool:
        """Whether nothing is read here."""
        return bool(self._waits)

    @property
    def held(self) -> int:
        """Bytes that are to be sent here."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        """Send, if the connection still stands."""
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Close the connection once all is sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Drop the connection at once, with all that was to be sent."""
        if self.transport is not None:
            self.transport.abort()


class Session:
    """A connection to another machine, and one inside. When one of them ends, the other has `linger_s` to send what it
    holds."""

    def __init__(self, owner: SessionOwner, frames: FrameWalker) -> None:
        """`frames`: walks what the other machine sends."""
        self.owner = owner
        self.outer = SessionEnd(self, self._from_outside)
        self.inner = SessionEnd(self, self._from_grpc)
        self.closed = asyncio.get_running_loop().create_future()
        """Done when both connections are closed."""
        self.refused = ""
        """Why the front hung up; empty: it did not."""
        self._tls: TlsEnd | None = None
        self._frames = frames
        self._connecting: asyncio.Task[None] | None = None
        """Makes the second connection."""
        self._timers: list[asyncio.TimerHandle] = []
        self._pause: asyncio.TimerHandle | None = None
        self._overdrawn = False
        """Whether nothing is read because the other machine has sent too much."""
        self._open = 0
        self._over = False

    def other(self, end: SessionEnd) -> SessionEnd:
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
        self._timers.append(asyncio.get_running_loop().call_later(seconds, self._abort_unless, unless))

    def read_size(self, end: SessionEnd) -> int:
        """Return how much is read at a time."""
        return READ

    # -- told by the ends ----------------------------------------------------------------------------------------------

    def made(self, end: SessionEnd) -> None:
        """Take note of a connection."""
        self._open += 1
        if self._over:  # the other end left meanwhile
            self.abort()

    def lost(self, end: SessionEnd) -> None:
        """Close the other end once it has sent what it holds."""
        self._open -= 1
        first, self._over = not self._over, True
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        if self._open:
            if first and end is self.inner and self._tls is not None:
                self.outer.send(self._tls.close())
            self.other(end).close()
            self.abort_after(self.owner.limits.linger_s)
        self._end_if_closed()

    def _from_outside(self, data: memoryview) -> None:
        if not self._over:
            self._decrypt(data)

    def _decrypt(self, data: memoryview) -> None:
        """Pass on what the other machine sent, as far as its frames are complete and allowed."""
        assert self._tls is not None
        now, plain = self.owner.now(), SCRATCH.plain
        try:
            nbytes = self._tls.receive(data, plain)
            passed = self._frames.walk(plain[:nbytes], now) if nbytes else []
            waits_s = self._frames.owes_s(now) if nbytes else 0.0
        except (TlsRefused, FrameRefused) as refused:
            self._refuse(str(refused))
            return
        self.outer.send(self._tls.outgoing())
        self._pass(passed)
        if self._tls.ended:
            self.outer.close()
        elif excess := self._excess():
            self._refuse(excess)
        elif waits_s > 0:
            self._pause_for(waits_s)

    def _pass(self, passed: list[memoryview | bytes]) -> None:
        """Send to gRPC what may pass."""
        self.inner.send(b"".join(passed))  # a copy, as the next read overwrites what it was read into

    def _excess(self) -> str:
        """Return why the other machine sent more than all may that are like it; empty: it did not."""
        return ""

    def _from_grpc(self, data: memoryview) -> None:
        if self._over or self._tls is None:
            return
        self._frames.answered()
        self.outer.send(self._tls.encrypt(data))
        self._frames.sent(len(data))

    def _refuse(self, reason: str) -> None:
        """Hang up, with the alert that TLS has for it."""
        self.refused = reason
        if self._tls is not None:
            self.outer.send(self._tls.close())
        self._over = True
        if self._connecting is not None:
            self._connecting.cancel()
        self.inner.abort()
        self.outer.close()
        self.abort_after(self.owner.limits.linger_s)

    def _pause_for(self, seconds: float) -> None:
        """Read nothing more for a time; infinity: until more is known of the other end."""
        self._overdrawn = True
        self.outer.pause("overdrawn")
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if seconds == 0.0:
            self._resume()
        elif seconds < math.inf:
            self._pause = asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        """Read on after a wait."""
        self._overdrawn = False
        if not self._over:
            self.outer.resume("overdrawn")

    def _ended(self) -> None:
        """Take note that both connections are closed."""

    def _abort_unless(self, unless: Callable[[], bool]) -> None:
        if not unless():
            self.abort()

    def _cancel_timers(self) -> None:
        while self._timers:
            self._timers.pop().cancel()
        if self._pause is not None:
            self._pause.cancel()

    def _end_if_closed(self) -> None:
        if self._open or (self._connecting is not None and not self._connecting.done()):
            return
        self._cancel_timers()
        self._ended()
        if not self.closed.done():
            self.closed.set_result(None)


class FrontSession(Session):
    """The session of a caller, which the front has accepted."""

    owner: CallerOwner

    def __init__(self, owner: CallerOwner) -> None:
        super().__init__(owner, FrameWalker(owner.rates[CallerRank.UNKNOWN], owner.now()))
        self.caller: FrontCaller | None = None
        self._rank = CallerRank.UNKNOWN
        self._early = bytearray()
        """What the caller said before the front knows what it wants, or before gRPC is connected."""
        self._reported = False
        """Whether the last report was of some bytes."""

    def serve(self, caller: FrontCaller) -> None:
        """Take note whose connection it is."""
        self.caller = caller

    def take(self, transport: asyncio.Transport, first: bytes) -> None:
        """Serve a connection that stands already, of which these bytes were read."""
        transport.set_protocol(self.outer)
        self.outer.connection_made(transport)
        if first and not self._over:
            self._from_outside(memoryview(first))
        if not self._over and not self.outer.paused:
            transport.resume_reading()

    def release(self) -> asyncio.Transport:
        """Give the caller's connection away, which nobody reads for the moment. Its taker tells of its end."""
        assert self.outer.transport is not None
        self._over = True
        self._early.clear()
        self._cancel_timers()
        self.outer.pause("released")
        return self.outer.transport

    def rank_changed(self) -> None:
        """Go by what is known of the caller now: a key, or an admitted call, has come or gone."""
        assert self.caller is not None
        if self.caller.rank is not self._rank:
            self._rank = self.caller.rank
            self._frames.change(self.owner.rates[self._rank])
        self._frames.admit(self.caller.calls)
        if self._overdrawn:
            self._pause_for(self._frames.owes_s(self.owner.now()))
        self._report()

    def read_size(self, end: SessionEnd) -> int:
        """Return how much is read at a time."""
        return FIRST_READ if end is self.outer and not self._frames.admitted else READ

    def made(self, end: SessionEnd) -> None:
        """Ask for a place for the caller, or take note of the connection inside."""
        super().made(end)
        if end is self.outer and not self.owner.accepted(self):
            self.abort()

    def _from_outside(self, data: memoryview) -> None:
        if self._over:
            return
        if self._tls is None:
            self._begin(data)
        else:
            self._decrypt(data)
            self._report()

    def _begin(self, data: memoryview) -> None:
        """Find out what the caller wants from its first bytes. TLS may have to wait for its turn."""
        self._early += data
        if self._early[0] != TLS_RECORD:
            if not self.owner.take_circuit(self, bytes(self._early)):
                self._refuse("it speaks neither TLS nor the mark of a relay")
            return
        waits_s = self.owner.handshake_wait_s(self)
        if waits_s == math.inf:
            self._refuse("too many connections of its network begin")
            return
        self._tls = self.owner.tls()
        if waits_s > 0:
            self._pause_for(waits_s)
        else:
            self._greet()

    def _greet(self) -> None:
        """Begin the TLS handshake with what the caller said first."""
        first, self._early = bytes(self._early), bytearray()
        self._decrypt(memoryview(first))
        self._report()

    def _pass(self, passed: list[memoryview | bytes]) -> None:
        """Send to gRPC what may pass, and connect to it once the caller has said its SETTINGS."""
        if self.inner.transport is not None:
            super()._pass(passed)
            return
        for part in passed:
            self._early += part
        if self._frames.greeted and self._connecting is None:
            self.outer.pause("connecting")
            self._connecting = self.owner.connect(self)
            self._connecting.add_done_callback(self._connected)

    def _excess(self) -> str:
        return "" if self.owner.charge_frames(self, self._frames.take_spent()) else "its network sends too many frames"

    def _from_grpc(self, data: memoryview) -> None:
        super()._from_grpc(data)
        self._report()

    def _resume(self) -> None:
        """Read on after a wait. A caller whose handshake waited begins with what it said first."""
        super()._resume()
        if not self._over and self._tls is not None and not self._tls.established and self._early:
            self._greet()

    def _report(self) -> None:
        """Report what the caller holds, unless an admitted call answers for it."""
        if not self._over and self.caller is not None and (self._reported or not self._frames.admitted):
            self._reported = not self._frames.admitted
            buffers = self.outer.held + self.inner.held + len(self._early) + self._frames.held
            self.owner.record_held(self, buffers + self._frames.unadmitted)

    def _ended(self) -> None:
        self.owner.gone(self)

    def _connected(self, connecting: asyncio.Task[None]) -> None:
        """Send what the caller said first. Either connection may be lost by now."""
        failed = connecting.cancelled() or connecting.exception() is not None
        if failed or self._over:
            self.abort()
        else:
            self.inner.send(bytes(self._early))
            self._early.clear()
            self.outer.resume("connecting")
        self._end_if_closed()
