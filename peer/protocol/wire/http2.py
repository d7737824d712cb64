"""Inspection of the other end's HTTP/2 frames before gRPC receives them (RFC 9113).

gRPC checks much of what the other end sends, but late: its limits of header blocks apply only after the other end has
acknowledged its SETTINGS, and it counts neither the frames nor the fragments that it stores. This holds for gRPC's
server and for its client. The walkers here allow what gRPC's own ends send, refuse the rest, and count frames that cost
more to process than to send. `FrameWalker` inspects what a client sends, `AnswerWalker` what a server sends.

Bytes pass unchanged and in order. DATA passes as it arrives; any other frame passes once it is complete. The module is
pure: `now` is seconds of any one clock."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from peer.protocol.token_bucket import Rate

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = struct.Struct(">BHBBI")
"""Length (two fields), kind, flags, stream."""
HEADER_BYTES = HEADER.size
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK, END_STREAM, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
MAX_DATA = 2**20
"""Maximum bytes of a DATA frame. gRPC's servers advertise 16 KiB, and more where they expect a larger message."""
MAX_BLOCK = 2**13
"""Maximum bytes of a header block. Our own requests have some hundred."""
MAX_FIELDS = 32
"""Maximum fields of a header block; our own requests have a dozen. A field of one byte may stand for an entry of the
decoder's table, of up to 4 KiB."""
LENGTHS = {PRIORITY: (5, 5), RST_STREAM: (4, 4), SETTINGS: (0, 192), PING: (8, 8), GOAWAY: (8, 1024)} | {
    WINDOW_UPDATE: (4, 4),
    HEADERS: (1, MAX_BLOCK),
}
"""Minimum and maximum bytes of a frame by kind."""
MAX_UNKNOWN = 1024
"""Maximum bytes of a frame of an unknown kind, which gRPC ignores."""
OFTEN = 1024
"""Bytes of DATA, sent or received, that pay for one frame of DATA or WINDOW_UPDATE. gRPC stores about 32 bytes for each
fragment of a message."""
MOST_PAID = 4096.0
"""Maximum frames that bytes may pay for in advance: those of 4 MiB."""
LEAST_DATA = 256
"""Bytes that a DATA frame counts as at least."""
MAX_GOAWAY = 4
"""Maximum GOAWAYs of a connection. gRPC's server sends three at most, and its client allocates memory for each."""
ODD = 8.0
"""Cost, in frames, of a frame that gRPC sends never or once per connection."""
MAX_STREAM = 2**31 - 1


class FrameRefused(Exception):
    """Raised when the other end sends what gRPC never sends, or more than it may. The connection has to be closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRates:
    """Rate limits of one connection. If it exceeds a rate, nothing more is read from it for a while. If it exceeds a
    rate of frames by more than a whole burst, it is refused."""

    control: Rate
    """Frames that start or end calls or require an answer: HEADERS, RST_STREAM, PING, SETTINGS."""
    small: Rate
    """Frames of WINDOW_UPDATE and DATA, beyond one for each `OFTEN` bytes of DATA in either direction."""
    data: Rate
    """Bytes of DATA while no call of the connection is admitted. A rate of 0: at most the burst, until `change`. An
    honest client sends the start of a payload before the server has admitted the call."""


class Allowance:
    """A token bucket whose level may be negative."""

    __slots__ = ("_at", "level", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self.level = rate.burst
        self._at = now

    def change(self, rate: Rate) -> None:
        """Use another rate. Tokens that were used stay used."""
        self.level += rate.burst - self.rate.burst
        self.rate = rate

    def spend(self, amount: float, now: float) -> None:
        """Use `amount` tokens, even if the level becomes negative."""
        level = self.level + max(0.0, now - self._at) * self.rate.per_s
        self.level, self._at = min(self.rate.burst, level) - amount, now

    def owes_s(self, now: float) -> float:
        """Return the seconds until the level is no longer negative."""
        self.spend(0.0, now)
        if self.level >= 0:
            return 0.0
        return -self.level / self.rate.per_s if self.rate.per_s else float("inf")


class FrameWalker:
    """Inspects what a client sends over one connection."""

    def __init__(self, rates: FrameRates, now: float) -> None:
        self._control = Allowance(rates.control, now)
        self._small = Allowance(rates.small, now)
        self._data = Allowance(rates.data, now)
        self._held = bytearray()
        self._needed = len(PREFACE)
        """Bytes that `_held` must have before they pass: the preface, a frame's header, or a frame."""
        self._skip = 0
        """Bytes of the current DATA frame that have not arrived yet."""
        self._begun = False
        """Whether the preface is complete."""
        self._last = 0
        """The highest stream that was opened."""
        self._answered = False
        self._acknowledged = False
        self.greeted = False
        """Whether the preface and the first SETTINGS have passed. The server then has to send its own SETTINGS."""
        self.admitted = False
        """Whether a call of this connection is admitted. The limits of the call then apply to DATA instead of
        `FrameRates.data`."""
        self._goaways = 0
        self._spent = 0.0
        self._paid = 0.0
        """Small frames that bytes have paid for in advance."""
        self._frames, self._bytes = 0, 0
        """Frames and bytes of DATA that are not counted yet."""

    def change(self, rates: FrameRates) -> None:
        """Replace the rates, for example once the client has proven its key."""
        self._control.change(rates.control)
        self._small.change(rates.small)
        self._data.change(rates.data)

    def admit(self, calls: int) -> None:
        """Set the number of admitted calls of this connection that are in progress."""
        self.admitted = calls > 0

    @property
    def held(self) -> int:
        """Bytes stored of an incomplete frame."""
        return len(self._held)

    @property
    def unadmitted(self) -> int:
        """Bytes of DATA that recently passed to gRPC without an admitted call."""
        return max(0, int(self._data.rate.burst - self._data.level))

    def answered(self) -> None:
        """Record that the server has sent its SETTINGS, so that the client may acknowledge them."""
        self._answered = True

    def sent(self, nbytes: int) -> None:
        """Record bytes that the server sent, for which the client returns WINDOW_UPDATEs."""
        self._paid = min(MOST_PAID, self._paid + nbytes / OFTEN)

    def owes_s(self, now: float) -> float:
        """Return the seconds for which nothing more must be read from this client; infinity: until `change`.

        Raises FrameRefused if it sent more than twice a burst of frames at once."""
        for what, allowance in (("frames", self._control), ("small frames", self._small)):
            if allowance.level < -allowance.rate.burst:
                raise FrameRefused(f"too many {what}")
        data_s = 0.0 if self.admitted else self._data.owes_s(now)
        return max(self._control.owes_s(now), self._small.owes_s(now), data_s)

    def take_spent(self) -> float:
        """Return the cost, in frames, for which no bytes paid since the last call of this method."""
        spent, self._spent = self._spent, 0.0
        return spent

    def walk(self, data: memoryview, now: float) -> list[memoryview | bytes]:
        """Inspect received bytes. Return the parts of `data`, and of bytes stored before, that may pass now.

        Raises FrameRefused. Nothing of `data` may pass then."""
        passed: list[memoryview | bytes] = []
        pos, size = self._complete(data, passed, now) if self._held or not self._begun else 0, len(data)
        start = pos
        while not self._held:
            if self._skip:
                step = min(self._skip, size - pos)
                pos += step
                self._skip -= step
            if size - pos < HEADER_BYTES:
                self._needed = HEADER_BYTES
                break
            upper, lower, kind, flags, stream = HEADER.unpack_from(data, pos)
            length = upper << 16 | lower
            if kind == DATA:
                self._begin_data(flags, stream, length)
                pos += HEADER_BYTES
                continue
            self._check(kind, flags, stream & MAX_STREAM, length, now)
            end = pos + HEADER_BYTES + length
            if end > size:
                self._needed = HEADER_BYTES + length
                break
            self._take(kind, flags, data[pos + HEADER_BYTES : end])
            pos = end
        if start < pos:
            passed.append(data[start:pos])
        if pos < size:
            self._held += data[pos:]
        if self._frames:
            self._count_data(now)
        return passed

    def _complete(self, data: memoryview, passed: list[memoryview | bytes], now: float) -> int:
        """Complete the stored bytes with the start of `data`. Return how many bytes of `data` were used."""
        pos = 0
        while True:
            step = min(self._needed - len(self._held), len(data) - pos)
            self._held += data[pos : pos + step]
            pos += step
            if not self._begun and not PREFACE.startswith(self._held):
                raise FrameRefused("this is not HTTP/2")
            if len(self._held) < self._needed:
                return pos
            if not self._begun:
                self._begun = True
            elif self._needed == HEADER_BYTES:
                upper, lower, kind, flags, stream = HEADER.unpack(self._held)
                length = upper << 16 | lower
                if kind == DATA:
                    self._begin_data(flags, stream, length)
                else:
                    self._check(kind, flags, stream & MAX_STREAM, length, now)
                    if length:
                        self._needed += length
                        continue
                    self._take(kind, flags, b"")
            else:
                self._take(self._held[3], self._held[4], bytes(self._held[HEADER_BYTES:]))
            passed.append(bytes(self._held))
            self._held.clear()
            return pos

    def _begin_data(self, flags: int, stream: int, length: int) -> None:
        """Check the header of a DATA frame."""
        if not (stream & 1 and stream <= self._last):
            raise FrameRefused("DATA on a stream that is not open")
        if length > MAX_DATA or flags & ~END_STREAM:
            raise FrameRefused(f"a DATA frame of {length} bytes with flags {flags:#x}")
        self._skip = length
        self._frames += 1
        self._bytes += length

    def _count_data(self, now: float) -> None:
        """Count the DATA frames that arrived in one read."""
        self._pay_small(self._frames - self._bytes / OFTEN, now)
        if not self.admitted:
            self._data.spend(max(self._bytes, self._frames * LEAST_DATA), now)
        self._frames = self._bytes = 0

    def _pay_small(self, frames: float, now: float) -> None:
        """Count small frames. Bytes that passed before pay for them first."""
        self._paid = min(MOST_PAID, self._paid - frames)
        if self._paid < 0:
            self._small.spend(-self._paid, now)
            self._spent -= self._paid
            self._paid = 0.0

    def _check(self, kind: int, flags: int, stream: int, length: int, now: float) -> None:
        """Check the header of a frame other than DATA, and count it."""
        if not self.greeted and (kind != SETTINGS or flags & ACK):
            raise FrameRefused("the first frame is not SETTINGS")
        least, most = LENGTHS.get(kind, (0, MAX_UNKNOWN))
        if not least <= length <= most:
            raise FrameRefused(f"a frame of kind {kind} with {length} bytes")
        if kind in (CONTINUATION, PUSH_PROMISE):
            raise FrameRefused(f"a frame of kind {kind}")
        if kind in (SETTINGS, PING, GOAWAY):
            if stream:
                raise FrameRefused(f"a frame of kind {kind} on a stream")
        elif kind == HEADERS:
            self._check_headers(flags, stream)
        elif kind in (RST_STREAM, WINDOW_UPDATE) and stream | (kind == WINDOW_UPDATE):
            if stream and not (stream & 1 and stream <= self._last):
                raise FrameRefused(f"a frame of kind {kind} on a stream that was not opened")
        elif kind == RST_STREAM:
            raise FrameRefused("RST_STREAM on no stream")
        self._count(kind, now)

    def _check_headers(self, flags: int, stream: int) -> None:
        if not self._acknowledged:
            raise FrameRefused("HEADERS before our SETTINGS were acknowledged")
        if not flags & END_HEADERS or flags & ~(END_HEADERS | END_STREAM):
            raise FrameRefused(f"HEADERS with flags {flags:#x}")
        self._open_stream(stream)

    def _open_stream(self, stream: int) -> None:
        """Record HEADERS on a stream."""
        if not (stream & 1 and stream > self._last):
            raise FrameRefused("HEADERS on a stream that cannot be opened")
        self._last = stream

    def _count(self, kind: int, now: float) -> None:
        if kind == WINDOW_UPDATE:
            self._pay_small(1.0, now)
            return
        if kind == GOAWAY:
            self._goaways += 1
            if self._goaways > MAX_GOAWAY:
                raise FrameRefused("too many GOAWAYs")
        cost = 1.0 if kind in (HEADERS, RST_STREAM, SETTINGS, PING) else ODD
        self._control.spend(cost, now)
        self._spent += cost

    def _take(self, kind: int, flags: int, body: memoryview | bytes) -> None:
        """Process a complete frame other than DATA."""
        if kind == SETTINGS and flags & ACK:
            if body or not self._answered:
                raise FrameRefused("an acknowledgement of SETTINGS that were not sent")
            self._acknowledged = True
        elif kind == SETTINGS:
            if len(body) % 6:
                raise FrameRefused(f"SETTINGS of {len(body)} bytes")
            self.greeted = True
        elif kind == WINDOW_UPDATE and not 0 < int.from_bytes(body, "big") < 2**31:
            raise FrameRefused("a WINDOW_UPDATE of nothing, or of too much")
        elif kind == HEADERS and (fields := fields_of(body)) > MAX_FIELDS:
            raise FrameRefused(f"a header block of {fields} fields")


class AnswerWalker(FrameWalker):
    """Inspects what a server sends over one connection.

    It does not know which calls are open. gRPC's client ignores frames of other calls, and limits the DATA of each call
    by its windows, so `FrameRates.data` is not used here."""

    def __init__(self, rates: FrameRates, now: float) -> None:
        super().__init__(rates, now)
        self._begun, self._needed = True, HEADER_BYTES  # a server sends no preface
        self._last = MAX_STREAM
        self.admitted = True

    def _begin_data(self, flags: int, stream: int, length: int) -> None:
        if not self._acknowledged:
            raise FrameRefused("DATA before our SETTINGS were acknowledged")
        super()._begin_data(flags, stream, length)

    def _open_stream(self, stream: int) -> None:
        if not stream & 1:
            raise FrameRefused("HEADERS on a stream that no client opens")


def fields_of(block: memoryview | bytes) -> int:
    """Return the number of fields and of table size updates in a header block (RFC 7541, section 6), without decoding
    it. Raises FrameRefused for a block that ends in the middle of a field."""
    pos, fields = 0, 0
    while pos < len(block):
        first, fields = block[pos], fields + 1
        if first & 0x80:  # indexed
            _, pos = _integer(block, pos, 7)
        elif first & 0xE0 == 0x20:  # size of the table
            _, pos = _integer(block, pos, 5)
        else:  # a literal, to be indexed (0x40) or not; index 0: its name follows
            index, pos = _integer(block, pos, 6 if first & 0x40 else 4)
            for _ in range(1 if index else 2):
                if pos >= len(block):
                    raise FrameRefused("a header block that is cut off")
                length, pos = _integer(block, pos, 7)
                pos += length
    if pos > len(block):
        raise FrameRefused("a header block that is cut off")
    return fields


def _integer(block: memoryview | bytes, pos: int, bits: int) -> tuple[int, int]:
    """Decode an integer with a prefix of `bits` bits (RFC 7541, section 5.1). Return it and the position after it.
    Raises FrameRefused."""
    value = block[pos] & ((1 << bits) - 1)
    pos += 1
    if value < (1 << bits) - 1:
        return value, pos
    for shift in range(0, 28, 7):
        if pos >= len(block):
            break
        value += (block[pos] & 0x7F) << shift
        pos += 1
        if not block[pos - 1] & 0x80:
            return value, pos
    raise FrameRefused("a header block with a number that is cut off or too large")
