"""A side that receives fast and sends slowly is not cut off while its sending progresses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from peer.lab.sim.virtual_clock import run_virtual
from peer.protocol.messages import RoundKey, SwapReport
from peer.protocol.wire.frames import Kind, PayloadWriter, pack
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.wire.pacing import Pacer
from peer.transport.wire.payload_stream import Caps, Meter, SwapTerms, swap_payloads
from peer.v1 import exchange_pb2 as pb

KEY, NBYTES = RoundKey(3, 0), 3 * 2**20


def swap(write: Callable[[bytes], Awaitable[None]]) -> tuple[SwapReport, float]:
    """Swap with a partner whose payload arrives at once. Return the report and the virtual seconds."""
    payload, writer = bytes(NBYTES), PayloadWriter()
    opening = pb.SwapOpen(round=KEY.round, codec="fp32", nbytes=NBYTES).SerializeToString()
    frames = [pack(Kind.OPEN, 0, opening)]
    frames += [writer.chunk(payload[at : at + 2**17]) for at in range(0, NBYTES, 2**17)] + [writer.end()]

    async def read() -> bytes | None:
        return frames.pop(0) if frames else None

    async def main() -> tuple[SwapReport, float]:
        caps = Caps(Pacer(None), Pacer(None), Meter())
        terms = SwapTerms(KEY, "fp32", BytesSource(payload), BufferSink(NBYTES))
        report = await swap_payloads(read, write, terms, caps)
        return report, asyncio.get_running_loop().time()

    return run_virtual(main())


@pytest.mark.parametrize("frame_s", [0.0, 3.0])
def test_who_sends_slowly_is_let_finish(frame_s: float) -> None:
    async def write(frame: bytes) -> None:
        await asyncio.sleep(frame_s)

    report, took = swap(write)
    assert report.sent_all
    assert report.bytes_sent == NBYTES
    assert took >= 10 * frame_s


def test_who_does_not_send_at_all_is_given_up() -> None:
    opened = False

    async def write(frame: bytes) -> None:
        nonlocal opened
        if opened:
            await asyncio.Event().wait()
        opened = True

    report, took = swap(write)
    assert not report.sent_all
    assert report.bytes_received == NBYTES
    assert took < 15.0
