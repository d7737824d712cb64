"""One connection to another machine: decrypts and checks its frames for gRPC, and encrypts gRPC's answers.

A caller is connected to gRPC once it has sent its SETTINGS. Each direction waits for its receiver: beyond
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
"""Largest read in bytes, from gRPC and from callers with an admitted call."""
FIRST_READ = 2**14
"""Largest read in bytes from any other caller."""
TLS_RECORD = 22
"""First byte of a connection that starts with TLS."""


class Scratch(threading.local):
    """Buffers for reading that all sessions of a thread's event loop share, because no session keeps data in them
    between callbacks."""

    def __init__(self) -> None:
        self.read = memoryview(bytearray(READ))
        self.plain = memoryview(bytearray(READ + 2 * MAX_RECORD))


SCRATCH = Scratch()


class SessionOwner(Protocol):
    """The front that owns a session and is notified of its events."""

    limits: FrontLimits

    def now(self) -> float:
        """Return seconds from any origin."""


class CallerOwner(SessionOwner, Protocol):
    """The owner of callers' sessions."""

    rates: dict[CallerRank, FrameRates]

    def accepted(self, session: FrontSession) -> bool:
        """Give the caller that has just connected a place. Return whether there is one."""

    def take_circuit(self, session: FrontSession, early: bytes) -> bool:
        """Return whether this caller, by its first bytes, is an end of a circuit instead of TLS. It is called again
        with more bytes while they are incomplete."""

    def handshake_wait_s(self, session: FrontSession) -> float:
        """Return the seconds that a caller waits for its TLS handshake; infinity: too many of its block wait."""

    def tls(self) -> TlsEnd:
        """Return the TLS state of a new connection."""

    def connect(self, session: FrontSession) -> asyncio.Task[None]:
        """Start connecting `session.inner` to gRPC. The task raises OSError or TimeoutError."""

    def charge_frames(self, session: FrontSession, frames: float) -> bool:
        """Charge frames to the caller's block. Return whether the caller may continue."""

    def record_held(self, session: FrontSession, nbytes: int) -> None:
        """Record the bytes that a caller occupies here, or recently passed to gRPC."""

    def gone(self, session: FrontSession) -> None:
        """Called when both connections are closed."""


class SessionEnd(asyncio.BufferedProtocol):
    """One of the two connections of a session, as an asyncio protocol."""

    def __init__(self, session: Session, received: Callable[[memoryview], None]) -> None:
        self._session = session
        self._received = received
        self._waits = set[str]()
        self.transport: asyncio.Transport | None = None
        self.full = False
        """Whether the write buffer is full."""

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
        """Stop reading until `resume` with the same reason."""
        self._waits.add(reason)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self, reason: str) -> None:
        """Resume reading, unless it is paused for another reason."""
        self._waits.discard(reason)
        if not self._waits and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    @property
    def paused(self) -> bool:
        """Whether reading is paused."""
        return bool(self._waits)

    @property
    def held(self) -> int:
        """Bytes in the write buffer."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        """Send data if the connection is open."""
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Close the connection after the buffered data is sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection at once, discarding buffered data."""
        if self.transport is not None:
            self.transport.abort()


class Session:
    """A connection to another machine (`outer`) and one to gRPC (`inner`). When one of them ends, the other has
    `linger_s` to send its buffered data."""

    def __init__(self, owner: SessionOwner, frames: FrameWalker) -> None:
        """`frames` checks the frames that the other machine sends."""
        self.owner = owner
        self.outer = SessionEnd(self, self._from_outside)
        self.inner = SessionEnd(self, self._from_grpc)
        self.closed = asyncio.get_running_loop().create_future()
        """Done when both connections are closed."""
        self.refused = ""
        """Why the front closed the connection; empty: it did not."""
        self._tls: TlsEnd | None = None
        self._frames = frames
        self._connecting: asyncio.Task[None] | None = None
        """Task that opens the second connection."""
        self._timers: list[asyncio.TimerHandle] = []
        self._pause: asyncio.TimerHandle | None = None
        self._overdrawn = False
        """Whether reading is paused because the other machine exceeded its rate."""
        self._open = 0
        self._over = False
        """Whether the session is closing."""

    def other(self, end: SessionEnd) -> SessionEnd:
        """Return the other end."""
        return self.inner if end is self.outer else self.outer

    def abort(self) -> None:
        """Close both connections at once."""
        self._over = True
        if self._connecting is not None:
            self._connecting.cancel()
        self.outer.abort()
        self.inner.abort()

    def abort_after(self, seconds: float, unless: Callable[[], bool] = lambda: False) -> None:
        """Close both connections after a time, unless `unless()` is true then."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, self._abort_unless, unless))

    def read_size(self, end: SessionEnd) -> int:
        """Return the largest read from this end in bytes."""
        return READ

    # -- called by the ends --------------------------------------------------------------------------------------------

    def made(self, end: SessionEnd) -> None:
        """Called by an end when it has connected."""
        self._open += 1
        if self._over:  # the other end has closed in the meantime
            self.abort()

    def lost(self, end: SessionEnd) -> None:
        """Called by an end when it has closed. Closes the other end after its buffered data is sent."""
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
        """Decrypt data from the other machine, and pass complete and allowed frames to gRPC."""
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
        """Send checked frames to gRPC."""
        self.inner.send(b"".join(passed))  # join copies, because the next read overwrites the scratch buffer

    def _excess(self) -> str:
        """Return why the other machine is disconnected for exceeding a shared limit; empty: it did not exceed one."""
        return ""

    def _from_grpc(self, data: memoryview) -> None:
        if self._over or self._tls is None:
            return
        self._frames.answered()
        self.outer.send(self._tls.encrypt(data))
        self._frames.sent(len(data))

    def _refuse(self, reason: str) -> None:
        """Close the connection to the other machine, with a TLS alert."""
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
        """Stop reading for some seconds; infinity: until the rank of the other end changes."""
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
        """Resume reading after `_pause_for`."""
        self._overdrawn = False
        if not self._over:
            self.outer.resume("overdrawn")

    def _ended(self) -> None:
        """Called when both connections are closed."""

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
    """The session of a caller that the front accepted."""

    owner: CallerOwner

    def __init__(self, owner: CallerOwner) -> None:
        super().__init__(owner, FrameWalker(owner.rates[CallerRank.UNKNOWN], owner.now()))
        self.caller: FrontCaller | None = None
        self._rank = CallerRank.UNKNOWN
        self._early = bytearray()
        """Data that the caller sent before its protocol was known, or before gRPC was connected."""
        self._reported = False
        """Whether the last report to the owner was of more than 0 bytes."""

    def serve(self, caller: FrontCaller) -> None:
        """Set the caller of this session."""
        self.caller = caller

    def serve_transport(self, transport: asyncio.Transport, first: bytes) -> None:
        """Serve an existing connection, from which `first` has already been read."""
        transport.set_protocol(self.outer)
        self.outer.connection_made(transport)
        if first and not self._over:
            self._from_outside(memoryview(first))
        if not self._over and not self.outer.paused:
            transport.resume_reading()

    def release(self) -> asyncio.Transport:
        """Give up the caller's connection and return it, paused. The new owner has to report its end."""
        assert self.outer.transport is not None
        self._over = True
        self._early.clear()
        self._cancel_timers()
        self.outer.pause("released")
        return self.outer.transport

    def rank_changed(self) -> None:
        """Apply the limits for the caller's present rank and number of admitted calls."""
        assert self.caller is not None
        if self.caller.rank is not self._rank:
            self._rank = self.caller.rank
            self._frames.change(self.owner.rates[self._rank])
        self._frames.admit(self.caller.calls)
        if self._overdrawn:
            self._pause_for(self._frames.owes_s(self.owner.now()))
        self._report()

    def read_size(self, end: SessionEnd) -> int:
        """Return the largest read from this end in bytes."""
        return FIRST_READ if end is self.outer and not self._frames.admitted else READ

    def made(self, end: SessionEnd) -> None:
        """Request a place for the caller when it connects."""
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
        """Determine from its first bytes which protocol the caller speaks, and start TLS, perhaps after a wait."""
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
        """Start the TLS handshake with the data received so far."""
        first, self._early = bytes(self._early), bytearray()
        self._decrypt(memoryview(first))
        self._report()

    def _pass(self, passed: list[memoryview | bytes]) -> None:
        """Send checked frames to gRPC. Connect to it once the caller has sent its SETTINGS."""
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
        """Resume reading, and start a handshake that had to wait."""
        super()._resume()
        if not self._over and self._tls is not None and not self._tls.established and self._early:
            self._greet()

    def _report(self) -> None:
        """Report the bytes that the caller occupies. With an admitted call they are bounded elsewhere, so 0 is reported
        once."""
        if not self._over and self.caller is not None and (self._reported or not self._frames.admitted):
            self._reported = not self._frames.admitted
            buffers = self.outer.held + self.inner.held + len(self._early) + self._frames.held
            self.owner.record_held(self, buffers + self._frames.unadmitted)

    def _ended(self) -> None:
        self.owner.gone(self)

    def _connected(self, connecting: asyncio.Task[None]) -> None:
        """Send the early data to gRPC. Either connection may be lost by now."""
        failed = connecting.cancelled() or connecting.exception() is not None
        if failed or self._over:
            self.abort()
        else:
            self.inner.send(bytes(self._early))
            self._early.clear()
            self.outer.resume("connecting")
        self._end_if_closed()
