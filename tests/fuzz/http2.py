"""Fuzz targets: HTTP/2 of callers and servers, compared with how `hyperframe` parses it."""

from __future__ import annotations

import math
from random import Random

from hyperframe.exceptions import HyperframeError
from hyperframe.frame import (
    AltSvcFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from peer.protocol.token_bucket import Rate
from peer.protocol.wire.http2 import (
    HEADER_BYTES,
    MAX_BLOCK,
    MAX_FIELDS,
    PREFACE,
    AnswerWalker,
    FrameRates,
    FrameRefused,
    FrameWalker,
    fields_of,
)
from tests.fuzz.engine import Target

FREE = Rate(math.inf, math.inf)
UNBOUNDED = FrameRates(control=FREE, small=FREE, data=FREE)
BLOCK = bytes.fromhex("83868440") + b"\x0apeer-token\x03abc" + b"\x0f\x10\x02xy"
GREETING = PREFACE + SettingsFrame(0, {1: 4096, 4: 65535}).serialize() + WindowUpdateFrame(0, 65536).serialize()


def walked(parts: list[bytes], kind: type[FrameWalker] = FrameWalker) -> bytes:
    """Return the bytes that pass the frame walker. Raises FrameRefused."""
    walker, passed = kind(UNBOUNDED, 0.0), b""
    walker.answered()
    for part in parts:
        passed += b"".join(walker.walk(memoryview(part), 0.0))
        assert walker.held < HEADER_BYTES + MAX_BLOCK
    return passed


def in_pieces(raw: bytes) -> list[bytes]:
    """Cut the bytes into pieces, at places that depend on the bytes."""
    rng, parts = Random(raw), list[bytes]()
    while raw:
        size = rng.choice((1, 1, 2, 9, 24, 60))
        parts.append(raw[:size])
        raw = raw[size:]
    return parts


def frames_of(passed: bytes, preface: bytes = PREFACE) -> list[Frame]:
    """Parse with `hyperframe` the bytes that the front let through. The last DATA frame may be incomplete."""
    assert preface.startswith(passed[: len(preface)])
    frames, pos = list[Frame](), len(preface)
    while pos < len(passed):
        frame, length = Frame.parse_frame_header(memoryview(passed[pos : pos + HEADER_BYTES]))
        body = passed[pos + HEADER_BYTES : pos + HEADER_BYTES + length]
        assert len(body) == length or isinstance(frame, DataFrame)
        if len(body) == length and not isinstance(frame, AltSvcFrame):  # gRPC does not know that kind
            frame.parse_body(memoryview(body))
        frames.append(frame)
        pos += HEADER_BYTES + length
    return frames


def checked(raw: bytes, kind: type[FrameWalker], preface: bytes) -> list[Frame]:
    """Check the frames that pass: a prefix of the input, independent of the pieces, readable, and of types that gRPC
    sends."""
    passed = walked(in_pieces(raw), kind)
    assert raw.startswith(passed)
    assert walked([raw[:60], raw[60:]] if len(raw) > 60 else [raw], kind) == passed, "however it arrives"
    assert walked([raw], kind) == passed, "however it arrives"
    acknowledged = False
    try:
        frames = frames_of(passed, preface)
    except HyperframeError as error:
        raise AssertionError(f"hyperframe refuses what passed: {error}") from error
    for number, frame in enumerate(frames):
        assert number or isinstance(frame, SettingsFrame)
        if isinstance(frame, SettingsFrame):
            acknowledged |= "ACK" in frame.flags
        elif isinstance(frame, HeadersFrame):
            assert acknowledged
            assert frame.stream_id % 2 == 1
            assert "END_HEADERS" in frame.flags
            assert len(frame.data) <= MAX_BLOCK
            assert fields_of(frame.data) <= MAX_FIELDS
        elif isinstance(frame, DataFrame | RstStreamFrame):
            assert frame.stream_id % 2 == 1
        elif isinstance(frame, PingFrame | GoAwayFrame):
            assert frame.stream_id == 0
        else:
            assert type(frame).__name__ in ("WindowUpdateFrame", "PriorityFrame", "ExtensionFrame", "AltSvcFrame")
    return frames


def http2() -> Target:
    """Check that a caller's frames that pass are frames that a gRPC client sends, in that order."""

    def run(raw: bytes) -> None:
        opened = 0
        for frame in checked(raw, FrameWalker, PREFACE):
            if isinstance(frame, HeadersFrame):
                assert frame.stream_id > opened
                opened = frame.stream_id
            elif isinstance(frame, DataFrame | RstStreamFrame):
                assert frame.stream_id <= opened

    ack = SettingsFrame(0, flags=["ACK"]).serialize()
    headers = HeadersFrame(1, BLOCK, flags=["END_HEADERS"]).serialize()
    data = DataFrame(1, bytes(40), flags=["END_STREAM"]).serialize()
    calls = GREETING + ack + headers + WindowUpdateFrame(1, 5).serialize() + data + PingFrame(0, bytes(8)).serialize()
    more = calls + RstStreamFrame(1, 8).serialize() + HeadersFrame(3, BLOCK, flags=["END_HEADERS"]).serialize()
    whole = more + GoAwayFrame(0, 3).serialize()

    def mend(raw: bytes) -> bytes:
        return GREETING + ack + raw[len(GREETING) + len(ack) :]

    tokens = (ack, headers, data, BLOCK, b"\x82" * 40, b"\x7f\xff\xff\xff\x0f", b"\0\0\0\x09\x04\0\0\0\1")
    return Target(
        name="http2", run=run, corpus=(GREETING, calls, whole), refuses=(FrameRefused,), tokens=tokens, mend=mend
    )


def http2_answers() -> Target:
    """Check the same for a server, whose frames of a call may come in any number."""

    def run(raw: bytes) -> None:
        checked(raw, AnswerWalker, b"")

    greeting = SettingsFrame(0, {3: 64, 4: 65535}).serialize() + SettingsFrame(0, flags=["ACK"]).serialize()
    headers = HeadersFrame(1, BLOCK, flags=["END_HEADERS"]).serialize()
    trailers = HeadersFrame(1, BLOCK, flags=["END_HEADERS", "END_STREAM"]).serialize()
    answered = greeting + headers + DataFrame(1, bytes(40)).serialize() + trailers
    whole = answered + PingFrame(0, bytes(8)).serialize() + RstStreamFrame(3, 8).serialize() + trailers
    ended = whole + GoAwayFrame(0, 3).serialize()

    def mend(raw: bytes) -> bytes:
        return greeting + raw[len(greeting) :]

    tokens = (headers, trailers, BLOCK, b"\x82" * 40, b"\x7f\xff\xff\xff\x0f", b"\0\0\0\x09\x04\0\0\0\1")
    return Target(
        name="http2-answers",
        run=run,
        corpus=(greeting, answered, ended),
        refuses=(FrameRefused,),
        tokens=tokens,
        mend=mend,
    )


TARGETS = (http2, http2_answers)
