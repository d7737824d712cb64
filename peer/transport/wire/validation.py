"""Decodes parts of messages that several calls share. No I/O."""

from __future__ import annotations

from typing import Protocol

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import BadPayload
from peer.protocol.messages import Reach
from peer.protocol.wire.frames import Kind, unpack
from peer.v1 import exchange_pb2 as pb

MAX_SNAPSHOT_NAME = 128
"""Longest name of a snapshot, in characters."""
MAX_REQUEST = 4096
"""Largest request for a piece, in bytes."""
MAX_RATE = 1e15
"""Bytes per second, more than any real rate."""


class _ReachMessage(Protocol):
    """A message with the fields that say how its sender can be called."""

    undialable: bool
    relayed: bool


def reach_of(said: _ReachMessage) -> Reach:
    """Decode how another peer can be called, by its own claim."""
    if not said.undialable:
        return Reach.DIRECT
    return Reach.RELAYED if said.relayed else Reach.NONE


def piece_request_of(raw: bytes) -> pb.PieceRequest:
    """Decode a request for a piece. Raises BadPayload."""
    if len(raw) > MAX_REQUEST:
        raise BadPayload(Code.REQUEST, f"a request of {len(raw)} bytes; at most {MAX_REQUEST} are read")
    try:
        request = pb.PieceRequest.FromString(raw)
    except DecodeError:
        raise BadPayload(Code.REQUEST, "the request cannot be read") from None
    if not 0 <= request.max_rate < MAX_RATE:
        raise BadPayload(Code.REQUEST, "an impossible rate")
    return request


def open_of(raw: bytes) -> pb.SwapOpen:
    """Decode the frame that opens a stream of a payload. Raises BadPayload."""
    frame = unpack(raw)
    if frame.kind is not Kind.OPEN:
        raise BadPayload(Code.ORDER, f"{frame.kind.name} where OPEN is due")
    try:
        return pb.SwapOpen.FromString(frame.body)
    except DecodeError:
        raise BadPayload(Code.FRAME, "the opening message cannot be read") from None
