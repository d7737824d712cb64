"""A payload over several streams: whatever arrived on each, the result is correct and no byte counts twice."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import BadPayload
from peer.protocol.wire.frames import MARK, MAX_CHUNK, REWIND, Kind, PayloadReader, PayloadWriter, kind_of, unpack

DATA = bytes(range(251)) * 8000
"""2 MB."""


def go_to(writer: PayloadWriter, have: int) -> None:
    """Move a writer as a sender does: back to a mark, and forward again."""
    writer.go_back(have)
    assert have - MARK - MAX_CHUNK < writer.offset <= have, "little is hashed again"
    writer.skip(DATA[writer.offset : have])


@settings(max_examples=50, deadline=None)
@given(
    size=st.integers(5_000, MAX_CHUNK),
    breaks=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), max_size=6),
)
def test_each_stream_goes_on_where_the_last_one_ended(size: int, breaks: list[tuple[int, int]]) -> None:
    """`breaks`: for each break (chunks sent since the last one, chunks of these that are lost)."""
    writer, reader, got = PayloadWriter(), PayloadReader(len(DATA)), bytearray()
    for sends, loses in breaks:
        frames = []
        while writer.offset < len(DATA) and len(frames) < sends:
            frames.append(writer.chunk(DATA[writer.offset : writer.offset + size]))
        for raw in frames[: max(0, len(frames) - loses)]:
            got += reader.take(raw).body
        reader.go_on()
        go_to(writer, reader.received)
    while writer.offset < len(DATA):
        got += reader.take(writer.chunk(DATA[writer.offset : writer.offset + size])).body
    assert not reader.complete
    reader.take(writer.end())
    assert reader.complete
    assert got == DATA


def test_who_is_complete_hears_the_end_again_and_nothing_else() -> None:
    writer, reader = PayloadWriter(), PayloadReader(4)
    for raw in (writer.chunk(b"abcd"), writer.end()):
        reader.take(raw)
    with pytest.raises(BadPayload):
        reader.take(writer.end())
    reader.go_on()
    assert reader.complete
    with pytest.raises(BadPayload):
        reader.take(writer.chunk(b"e"))
    go_back = PayloadWriter()
    go_back.skip(b"abcd")
    assert reader.take(go_back.end()).body == blake3(b"abcd").digest()
    assert reader.over


@pytest.mark.parametrize("size", [1000, MARK - 1, MAX_CHUNK])
def test_marks_reach_far_enough_back_and_are_few(size: int) -> None:
    writer = PayloadWriter()
    for at in range(0, 4 * REWIND, size):
        writer.skip(DATA[at % REWIND :][:size] if size < 2000 else bytes(size))
        assert writer.reaches(writer.offset)
        assert writer.reaches(max(0, writer.offset - REWIND))
        assert not writer.reaches(writer.offset + 1)
        assert len(writer._marks) <= REWIND // MARK + 2
    assert not writer.reaches(writer.offset - REWIND - MARK - MAX_CHUNK)


def test_a_frame_s_kind_is_seen_before_it_is_read() -> None:
    writer = PayloadWriter()
    assert [kind_of(raw) for raw in (writer.chunk(b"x"), writer.end(), b"", b"PEER\x01")] == [
        Kind.CHUNK,
        Kind.END,
        0,
        0,
    ]
    assert unpack(writer.end()).kind is Kind.END
