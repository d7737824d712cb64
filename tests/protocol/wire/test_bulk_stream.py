"""Chunks are as large as the receiver accepts, and the next one is made while one is being sent."""

from __future__ import annotations

import asyncio

import pytest

from peer.protocol.messages import RoundKey
from peer.protocol.wire.frames import HEADER, LEAST_TOLD, MAX_CHUNK, USUAL_CHUNK, Kind, largest_for, pack, unpack
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.wire.pacing import FIRST_CHUNK, Pacer, whole_grains
from peer.transport.wire.payload_stream import Caps, Meter, SwapTerms, read_open, send_payload, swap_payloads
from peer.v1 import exchange_pb2 as pb

KEY = RoundKey(3, 1)
DATA = bytes(range(256)) * 16384
"""4 MiB."""


def caps() -> Caps:
    return Caps(Pacer(None), Pacer(None), Meter())


class Pipe:
    """One direction between two sides."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.seen: list[bytes] = []

    async def write(self, frame: bytes) -> None:
        self.seen.append(frame)
        await self.frames.put(frame)

    async def read(self) -> bytes:
        return await self.frames.get()

    def chunks(self) -> list[int]:
        return [len(raw) - HEADER.size for raw in self.seen if unpack(raw).kind is Kind.CHUNK]


def test_two_of_us_send_large_chunks() -> None:
    there, back = Pipe(), Pipe()
    sinks = [BufferSink(len(DATA)), BufferSink(len(DATA))]

    async def main() -> None:
        ends = [(back.read, there.write), (there.read, back.write)]
        terms = [SwapTerms(KEY, "bf16", BytesSource(DATA), sink) for sink in sinks]
        await asyncio.gather(*(swap_payloads(*end, term, caps()) for end, term in zip(ends, terms, strict=True)))

    asyncio.run(main())
    assert [bytes(sink.data) for sink in sinks] == [DATA, DATA]
    assert max(there.chunks()) == max(back.chunks()) == MAX_CHUNK


@pytest.mark.parametrize(
    ("told", "largest"), [(0, USUAL_CHUNK), (1, LEAST_TOLD), (200_000, 200_000), (2**32 - 1, MAX_CHUNK)]
)
def test_no_chunk_is_larger_than_the_other_said(told: int, largest: int) -> None:
    there, back = Pipe(), Pipe()

    async def main() -> None:
        theirs = pb.SwapOpen(round=3, fragment=1, codec="bf16", nbytes=4, max_chunk=told)
        for frame in (pack(Kind.OPEN, 0, theirs.SerializeToString()), pack(Kind.CHUNK, 0, b"abcd")):
            await back.write(frame)
        end = Pipe()
        await send_payload(end.write, BytesSource(b"abcd"), caps(), 0.0)
        await back.write(end.seen[-1])
        await swap_payloads(back.read, there.write, SwapTerms(KEY, "bf16", BytesSource(DATA), BufferSink(4)), caps())

    asyncio.run(main())
    assert max(there.chunks()) == largest == largest_for(told)
    assert sum(there.chunks()) == len(DATA)


def test_no_chunk_is_larger_than_the_source_makes_in_one_go() -> None:
    class Slow(BytesSource):
        most = 100_000

    there = Pipe()
    asyncio.run(send_payload(there.write, Slow(DATA), caps(), 0.0, None, MAX_CHUNK))
    assert max(there.chunks()) == 100_000


def test_we_tell_what_we_take() -> None:
    opening = SwapTerms(KEY, "bf16", BytesSource(b""), BufferSink(0)).opening(caps())

    async def read() -> bytes:
        return opening

    assert asyncio.run(read_open(read)).max_chunk == MAX_CHUNK


def test_the_next_chunk_is_made_while_one_is_on_its_way() -> None:
    made: list[int] = []
    begun: list[int] = []

    class Noted(BytesSource):
        def read(self, offset: int, size: int) -> bytes:
            made.append(len(begun))
            return super().read(offset, size)

    async def write(frame: bytes) -> None:
        begun.append(unpack(frame).offset)
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(send_payload(write, Noted(DATA), caps(), 0.0))
    growing = [0, FIRST_CHUNK, 2 * FIRST_CHUNK, 4 * FIRST_CHUNK]
    assert begun == [*growing, *range(8 * FIRST_CHUNK, len(DATA), USUAL_CHUNK), len(DATA)], "in order"
    assert made[:3] == [0, 0, 1], "the second is made before the first has gone"


def test_a_broken_line_ends_the_sending_and_leaves_nothing_running() -> None:
    async def main() -> int:
        count = 0

        async def write(frame: bytes) -> None:
            nonlocal count
            count += 1
            await asyncio.sleep(0)
            if count == 3:
                raise ConnectionError("gone")

        with pytest.raises(ConnectionError):
            await send_payload(write, BytesSource(DATA), caps(), 0.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return count

    assert asyncio.run(main()) == 3


def test_cancelled_in_the_middle_of_a_write_nothing_is_left_running() -> None:
    async def main() -> None:
        writing = asyncio.Event()

        async def write(frame: bytes) -> None:
            writing.set()
            await asyncio.Event().wait()

        meter = caps()
        sending = asyncio.create_task(send_payload(write, BytesSource(DATA), meter, 0.0))
        await writing.wait()
        sending.cancel()
        await asyncio.wait({sending})
        assert sending.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert meter.meter.sent == 0, "it did not go"

    asyncio.run(main())


def test_chunks_hold_whole_grains_where_one_fits() -> None:
    assert whole_grains(0, 1000, 300) == 900
    assert whole_grains(0, 1000, 1) == whole_grains(0, 1000, 1000) == whole_grains(0, 1000, 1001) == 1000
    assert whole_grains(100, 1000, 300) == 900, "who goes on in the middle of a grain ends with one"
