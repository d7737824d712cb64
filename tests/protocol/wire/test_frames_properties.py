from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peer.errors import BadPayload
from peer.protocol.wire.frames import Frame, Kind, PayloadReader, PayloadWriter, pack, unpack
from peer.protocol.wire.payload import BufferSink

DATA = bytes(range(200))


@given(st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=100))
def test_a_frame_is_unpacked_as_it_was_packed(kind: Kind, offset: int, body: bytes) -> None:
    assert unpack(pack(kind, offset, body)) == Frame(kind, offset, body)


@given(st.data())
def test_no_change_of_order_or_bytes_completes_another_payload(data: st.DataObject) -> None:
    writer, at, frames = PayloadWriter(), 0, []
    while at < len(DATA):
        size = data.draw(st.integers(1, 80))
        frames.append(writer.chunk(DATA[at : at + size]))
        at += size
    frames.append(writer.end())
    for _ in range(data.draw(st.integers(0, 3))):
        frames.insert(data.draw(st.integers(0, len(frames))), data.draw(st.sampled_from(frames)))
    del frames[data.draw(st.integers(0, len(frames))) : data.draw(st.integers(0, len(frames)))]
    reader, sink = PayloadReader(len(DATA)), BufferSink(len(DATA))
    try:
        for raw in frames:
            frame = reader.take(raw)
            if frame.kind is Kind.CHUNK:
                sink.write(frame.offset, frame.body)
    except BadPayload:
        pass  # refused at this frame; what was complete before was checked
    if reader.complete:
        assert sink.data == DATA
