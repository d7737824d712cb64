"""Encoding of a payload on the wire: raw frames, one gRPC message each. The reader is strict: every length is compared
with the announced one, and the announced one with a bound, before anything is stored.

    frame  = header | body
    header = magic "PEER" | version u8 | kind u8 | 0 u16 | offset u64 | length u32 | crc32c of the body u32
             (24 bytes, little endian)

    OPEN   announces the payload: a small message (SwapOpen), at most 4 KiB
    CHUNK  `length` bytes of the payload at `offset`; in order, without a gap
    END    BLAKE3 of the whole payload; offset = its length
    STRIPES  empty body; the frames after it go over `offset` streams in turn (`peer.transport.wire.striping`)

A payload can outlive its stream: reader and writer continue on another stream at the byte where the last one ended."""

from __future__ import annotations

import enum
import struct
from collections import deque
from dataclasses import dataclass

import google_crc32c
from blake3 import blake3

from peer.codes import Code
from peer.errors import BadPayload

MAGIC = b"PEER"
VERSION = 1
HEADER = struct.Struct("<4sBBHQII")
MAX_CHUNK = 9 * 2**16
"""Maximum bytes of a chunk: four tiles of the 4-bit codecs with their scales, two of the 8-bit ones, one of 16 bits.
Over a long path, no more than one message and the window before it are sent per round trip. A receiver has one message
in memory for each call that it reads from, also of hostile ones (`peer.transport.server.read_slots` limits these)."""
USUAL_CHUNK = 5 * 2**16
"""Maximum bytes of a chunk for a reader that gave no limit. A sender may be this many
bytes ahead of a reader (`peer.transport.client.channels`). When a stream breaks, they are sent again, and so is the
chunk that was under way."""
LEAST_TOLD = 2**17
"""Minimum limit in bytes that a reader may give. A smaller one is ignored."""
MAX_OPEN = 4096
"""Maximum bytes of the body of a frame other than CHUNK."""
DIGEST = 32
"""Bytes of a BLAKE3 digest."""
REWIND = 2**23
"""Maximum bytes that were sent, but had not arrived, when a stream breaks: several times gRPC's window and its buffers.
If more are missing, the transfer cannot be resumed."""
MARK = 2**16
"""Bytes between the offsets to which a writer can go back without hashing from the start."""


class Kind(enum.IntEnum):
    """Kinds of frames."""

    OPEN = 1
    CHUNK = 2
    END = 3
    STRIPES = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame."""

    kind: Kind
    offset: int
    """Offset of a chunk in the payload. For END: length of the payload. For STRIPES: number of streams."""
    body: bytes


def pack(kind: Kind, offset: int, body: bytes) -> bytes:
    """Return the bytes of one frame."""
    return HEADER.pack(MAGIC, VERSION, kind, 0, offset, len(body), google_crc32c.value(body)) + body


def largest_for(told: int) -> int:
    """Return the maximum bytes of a chunk for a reader that gave the limit `told`. 0: it gave none."""
    return min(max(told, LEAST_TOLD), MAX_CHUNK) if told else USUAL_CHUNK


def kind_of(raw: bytes) -> int:
    """Return the kind in a frame's header, without verification. 0: the bytes are no frame."""
    return raw[5] if len(raw) >= HEADER.size else 0


def unpack(raw: bytes) -> Frame:
    """Decode one frame and verify its header and checksum. Raises BadPayload for any other bytes."""
    if len(raw) < HEADER.size:
        raise BadPayload(Code.FRAME, f"a frame of {len(raw)} bytes has no complete header")
    magic, version, kind, zero, offset, length, checksum = HEADER.unpack_from(raw)
    if magic != MAGIC or version != VERSION or zero != 0 or kind not in Kind.__members__.values():
        raise BadPayload(Code.FRAME, "not a frame of this version")
    limit = MAX_CHUNK if kind == Kind.CHUNK else MAX_OPEN
    if length > limit or length != len(raw) - HEADER.size:
        raise BadPayload(Code.LENGTH, f"a frame announces {length} bytes, holds {len(raw) - HEADER.size}, may {limit}")
    body = raw[HEADER.size :]
    if google_crc32c.value(body) != checksum:
        raise BadPayload(Code.CHECKSUM, f"the frame at offset {offset} does not match its checksum")
    return Frame(Kind(kind), offset, body)


class PayloadReader:
    """The receiving end of a payload of exactly `nbytes`, after OPEN."""

    def __init__(self, nbytes: int, begun: PayloadReader | None = None) -> None:
        """`begun`: a reader of an earlier stream, whose progress this one continues."""
        self._nbytes = nbytes
        self._digest: blake3 = blake3() if begun is None else begun._digest.copy()
        self.received: int = 0 if begun is None else begun.received
        """Bytes received so far, from the start of the payload."""
        self.complete: bool = begun is not None and begun.complete
        """Whether the payload is complete and its digest correct."""
        self.over = False
        """Whether this stream has ended with END."""

    @property
    def digest(self) -> bytes:
        """BLAKE3 of the bytes received so far."""
        return self._digest.digest()

    def fork(self) -> PayloadReader:
        """Return a reader that continues from here on another stream."""
        return PayloadReader(self._nbytes, self)

    def go_on(self) -> None:
        """Prepare for another stream, which sends the missing chunks from `received` on, and END."""
        self.over = False

    def take(self, raw: bytes) -> Frame:
        """Process the next frame and return it. A chunk may be used at once, the payload only when `complete`. Raises
        BadPayload."""
        frame = unpack(raw)
        if self.over or frame.kind not in (Kind.CHUNK, Kind.END):
            raise BadPayload(Code.ORDER, f"{frame.kind.name} where nothing of the kind is due")
        if frame.offset != self.received:
            raise BadPayload(Code.ORDER, f"offset {frame.offset} where {self.received} is due")
        if frame.kind is Kind.CHUNK:
            self._chunk(frame)
        else:
            self._end(frame)
        return frame

    def _chunk(self, frame: Frame) -> None:
        if not frame.body:
            raise BadPayload(Code.LENGTH, "an empty chunk")
        if self.received + len(frame.body) > self._nbytes:
            raise BadPayload(Code.LENGTH, f"more than the announced {self._nbytes} bytes")
        self.received += len(frame.body)
        self._digest.update(frame.body)

    def _end(self, frame: Frame) -> None:
        if self.received != self._nbytes:
            raise BadPayload(Code.LENGTH, f"ended after {self.received} of {self._nbytes} bytes")
        if frame.body != self._digest.digest():
            raise BadPayload(Code.DIGEST, "the payload does not match its digest")
        self.complete = self.over = True


class PayloadWriter:
    """The sending end of a payload, after OPEN. It stores the state of the digest at intervals over the last `REWIND`
    bytes, so that it can go back without hashing everything again."""

    def __init__(self) -> None:
        self._digest = blake3()
        self._marks = deque([(0, self._digest.copy())])
        self.offset = 0
        """Offset of the next chunk."""

    def chunk(self, data: bytes) -> bytes:
        """Return the frame of the next chunk."""
        assert 0 < len(data) <= MAX_CHUNK
        frame = pack(Kind.CHUNK, self.offset, data)
        self.skip(data)
        return frame

    def skip(self, data: bytes) -> None:
        """Advance over these bytes without sending them: the receiver has them already."""
        self._digest.update(data)
        self.offset += len(data)
        if self.offset >= self._marks[-1][0] + MARK:
            self._marks.append((self.offset, self._digest.copy()))
        while len(self._marks) > 1 and self._marks[1][0] <= self.offset - REWIND:
            self._marks.popleft()

    @property
    def digest(self) -> bytes:
        """BLAKE3 of the bytes up to `offset`."""
        return self._digest.digest()

    def reaches(self, offset: int) -> bool:
        """Return whether `go_back` can go to `offset`."""
        return self._marks[0][0] <= offset <= self.offset

    def go_back(self, offset: int) -> None:
        """Go back to the last stored state at or before `offset`. The caller then skips the bytes up to `offset`."""
        assert self.reaches(offset), (offset, self.offset)
        while self._marks[-1][0] > offset:
            self._marks.pop()
        self.offset, digest = self._marks[-1]
        self._digest = digest.copy()

    def end(self) -> bytes:
        """Return the END frame."""
        return pack(Kind.END, self.offset, self._digest.digest())
