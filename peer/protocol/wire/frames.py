"""A payload on the wire: raw frames, one gRPC message each. Checks come before trust: every length is compared with
what was announced, and that with a bound, before anything is kept.

    frame  = header | body
    header = magic "PEER" | version u8 | kind u8 | 0 u16 | offset u64 | length u32 | crc32c of the body u32
             (24 bytes, little endian)

    OPEN   what follows: a small message (SwapOpen), at most 4 KiB
    CHUNK  `length` bytes of the payload at `offset`; in order, without a gap
    END    BLAKE3 of the whole payload; offset = its length
    STRIPES  no bytes; what follows goes over `offset` streams in turn (`peer.transport.wire.striping`)

A payload outlives the stream it came on: reader and writer go on over another one where the bytes ended."""

from __future__ import annotations

import enum
import struct
from collections import deque
from dataclasses import dataclass

import google_crc32c
from blake3 import blake3

from peer.errors import BadPayload

MAGIC = b"PEER"
VERSION = 1
HEADER = struct.Struct("<4sBBHQII")
MAX_CHUNK = 9 * 2**16
"""Four tiles of the codecs of 4 bits with their scales, two of 8, one of 16. Over a long way no more than a message
and the window before it go in a round trip. A receiver holds one message of each call that it reads from, also of
a hostile one: `peer.transport.server.read_slots` says how many."""
USUAL_CHUNK = 5 * 2**16
"""Of whom it is not known that it takes larger ones. As much may be sent ahead of a reader
(`peer.transport.client.connections`): when a stream breaks, that and the chunk being taken go again, which are two
chunks at most."""
LEAST_TOLD = 2**17
"""Who tells that it takes less is not heard."""
MAX_OPEN = 4096
DIGEST = 32
REWIND = 2**23
"""So many bytes may have been sent and not have arrived when a stream breaks: what gRPC's window and its buffers hold,
several times. Who lacks more than that is not gone on with."""
MARK = 2**16
"""Bytes between two places that a writer goes back to cheaply."""


class Kind(enum.IntEnum):
    OPEN = 1
    CHUNK = 2
    END = 3
    STRIPES = 4


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    offset: int
    """Of a chunk in the payload; of END the payload's length."""
    body: bytes


def pack(kind: Kind, offset: int, body: bytes) -> bytes:
    """One frame's bytes."""
    return HEADER.pack(MAGIC, VERSION, kind, 0, offset, len(body), google_crc32c.value(body)) + body


def largest_for(told: int) -> int:
    """Bytes of the largest chunk that may be sent to one who told that it takes so many; 0: it did not tell."""
    return min(max(told, LEAST_TOLD), MAX_CHUNK) if told else USUAL_CHUNK


def kind_of(raw: bytes) -> int:
    """What a frame says it is, unverified; 0: no frame."""
    return raw[5] if len(raw) >= HEADER.size else 0


def unpack(raw: bytes) -> Frame:
    """One frame, its header and checksum verified. Raises BadPayload for anything else, whatever the bytes."""
    if len(raw) < HEADER.size:
        raise BadPayload("frame", f"a frame of {len(raw)} bytes has no whole header")
    magic, version, kind, zero, offset, length, checksum = HEADER.unpack_from(raw)
    if magic != MAGIC or version != VERSION or zero != 0 or kind not in Kind.__members__.values():
        raise BadPayload("frame", "not a frame of this version")
    limit = MAX_CHUNK if kind == Kind.CHUNK else MAX_OPEN
    if length > limit or length != len(raw) - HEADER.size:
        raise BadPayload("length", f"a frame announces {length} bytes, holds {len(raw) - HEADER.size}, may {limit}")
    body = raw[HEADER.size :]
    if google_crc32c.value(body) != checksum:
        raise BadPayload("checksum", f"the frame at offset {offset} does not match its checksum")
    return Frame(Kind(kind), offset, body)


class PayloadReader:
    """Takes the frames that follow OPEN, for a payload of exactly `nbytes`."""

    def __init__(self, nbytes: int, begun: PayloadReader | None = None) -> None:
        """`begun`: the reader whose progress this one continues."""
        self._nbytes = nbytes
        self._digest: blake3 = blake3() if begun is None else begun._digest.copy()
        self.received: int = 0 if begun is None else begun.received
        """Bytes, from the beginning, whose frames were taken."""
        self.complete: bool = begun is not None and begun.complete
        """All of it is here, and its digest is right."""
        self.over = False
        """This stream has had its END."""

    def fork(self) -> PayloadReader:
        """One that goes on by itself from where this one is, on another stream."""
        return PayloadReader(self._nbytes, self)

    def go_on(self) -> None:
        """What follows comes on another stream, from `received` on: the missing chunks, and END."""
        self.over = False

    def take(self, raw: bytes) -> Frame:
        """The next frame. A chunk may be used at once, the payload only when `complete`. Raises BadPayload."""
        frame = unpack(raw)
        if self.over or frame.kind not in (Kind.CHUNK, Kind.END):
            raise BadPayload("order", f"{frame.kind.name} where nothing of the kind is due")
        if frame.offset != self.received:
            raise BadPayload("order", f"offset {frame.offset} where {self.received} is due")
        if frame.kind is Kind.CHUNK:
            self._chunk(frame)
        else:
            self._end(frame)
        return frame

    def _chunk(self, frame: Frame) -> None:
        if not frame.body:
            raise BadPayload("length", "an empty chunk")
        if self.received + len(frame.body) > self._nbytes:
            raise BadPayload("length", f"more than the announced {self._nbytes} bytes")
        self.received += len(frame.body)
        self._digest.update(frame.body)

    def _end(self, frame: Frame) -> None:
        if self.received != self._nbytes:
            raise BadPayload("length", f"ended after {self.received} of {self._nbytes} bytes")
        if frame.body != self._digest.digest():
            raise BadPayload("digest", "the payload does not match its digest")
        self.complete = self.over = True


class PayloadWriter:
    """Makes the frames that follow OPEN, in order. The digest at a few places of the last `REWIND` bytes is kept, so
    that it can go back without hashing everything again."""

    def __init__(self) -> None:
        self._digest = blake3()
        self._marks = deque([(0, self._digest.copy())])
        self.offset = 0
        """Where the next chunk begins."""

    def chunk(self, data: bytes) -> bytes:
        assert 0 < len(data) <= MAX_CHUNK
        frame = pack(Kind.CHUNK, self.offset, data)
        self.skip(data)
        return frame

    def skip(self, data: bytes) -> None:
        """These bytes belong to the payload; the receiver has them already."""
        self._digest.update(data)
        self.offset += len(data)
        if self.offset >= self._marks[-1][0] + MARK:
            self._marks.append((self.offset, self._digest.copy()))
        while len(self._marks) > 1 and self._marks[1][0] <= self.offset - REWIND:
            self._marks.popleft()

    def reaches(self, offset: int) -> bool:
        """Whether `go_back` can."""
        return self._marks[0][0] <= offset <= self.offset

    def go_back(self, offset: int) -> None:
        """To the last mark that is not behind `offset`; what lies between the two is to be skipped."""
        assert self.reaches(offset), (offset, self.offset)
        while self._marks[-1][0] > offset:
            self._marks.pop()
        self.offset, digest = self._marks[-1]
        self._digest = digest.copy()

    def end(self) -> bytes:
        return pack(Kind.END, self.offset, self._digest.digest())
