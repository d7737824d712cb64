"""A swap encodes and decodes chunk by chunk, and an invalid payload changes no state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from peer.aio.threads import inline
from peer.codec.lattice.codec import Modulo, decode_request
from peer.codec.plain import TILE
from peer.codec.registry import EVERY
from peer.codec.stream import Encoding
from peer.errors import BadPayload, PartnerLost
from peer.exchange.pair.lattice_swap import LatticeSwap
from peer.exchange.pair.swap import PairSwap, PartnerTerms
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.ports.transport import Transport
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Status, SwapReport
from peer.protocol.wire.payload import Sink, Source

KEY = RoundKey(4, 0)
ELEMENTS = 2 * TILE + 77
CHUNK = 100_000
PARTNER = PeerRecord(PeerId("p"), RunId(b"R" * 32), (), True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)


class Carrier:
    """A transport to a partner that sends `theirs`; everything after `upto` bytes is lost."""

    def __init__(self, theirs: Source, upto: int | None = None) -> None:
        self._theirs = theirs
        self._upto = theirs.nbytes if upto is None else upto
        self.sent = b""

    async def swap(self, partner: PeerRecord, key: RoundKey, source: Source, sink: Sink, *others: object) -> SwapReport:
        assert sink.nbytes == self._theirs.nbytes
        for offset in range(0, source.nbytes, CHUNK):
            self.sent += source.read(offset, min(CHUNK, source.nbytes - offset))
            await asyncio.sleep(0)
        for offset in range(0, self._upto, CHUNK):
            sink.write(offset, self._theirs.read(offset, min(CHUNK, self._upto - offset)))
            await asyncio.sleep(0)
        if self._upto < self._theirs.nbytes:
            raise PartnerLost("the stream ended in the middle")
        return SwapReport(source.nbytes, sink.nbytes, 1.0, True)


def normal(seed: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed))


async def alive() -> bool:
    return True


def swapped(carrier: Carrier, codec: str, own: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
    async def main() -> Any:
        exchange = PairSwap(cast(Transport, carrier), VirtualClock(), EVERY[codec], inline, None)
        into = torch.full((ELEMENTS,), 7.0)
        await exchange.swap(PartnerTerms(PARTNER, KEY, 2.0, True, alive), own, outer, into)
        return into

    return cast(torch.Tensor, run_virtual(main()))


@pytest.mark.parametrize("name", ["fp32", "bf16", "int8"])
def test_what_goes_and_what_comes_is_the_codec_s(name: str) -> None:
    codec, own, theirs = EVERY[name], normal(0), normal(1)
    before = own.clone()
    carrier = Carrier(Encoding(codec, theirs))
    got = swapped(carrier, name, own, own)
    assert carrier.sent == codec.encode(before)
    assert torch.equal(got, codec.decode(codec.encode(theirs), ELEMENTS))
    assert torch.equal(own, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_values_that_nobody_may_mix_in_change_nothing(value: float) -> None:
    own, outer, theirs = normal(0), normal(2), normal(1)
    theirs[-1] = value
    befores = own.clone(), outer.clone()
    with pytest.raises(BadPayload):
        swapped(Carrier(Encoding(EVERY["bf16"], theirs)), "bf16", own, outer)
    assert torch.equal(own, befores[0])
    assert torch.equal(outer, befores[1])


def test_a_code_that_no_encoder_writes_ends_the_swap_in_the_middle() -> None:
    class Crooked(Encoding):
        def read(self, offset: int, size: int) -> bytes:
            return b"\xff" * size

    own = normal(0)
    before = own.clone()
    with pytest.raises(BadPayload):
        swapped(Carrier(Crooked(EVERY["int8"], normal(1))), "int8", own, own)
    assert torch.equal(own, before)


def test_half_a_payload_changes_nothing() -> None:
    own = normal(0)
    before = own.clone()
    with pytest.raises(PartnerLost):
        swapped(Carrier(Encoding(EVERY["bf16"], normal(1)), 300_000), "bf16", own, own)
    assert torch.equal(own, before)


def test_an_exchange_of_differences_that_is_cancelled_ends_when_no_thread_writes_any_more() -> None:
    """Fault: a thread that still writes would change the buffer after it was lent to another exchange."""
    own, theirs, into = normal(0), normal(1), torch.full((ELEMENTS,), 7.0)
    codec, request = Modulo(7), list[bytes]()
    payload = codec.encode(theirs, 0.0)

    async def main() -> None:
        decoding, free = asyncio.Event(), asyncio.Event()

        async def offload(work: Callable[[], Any], /) -> Any:
            if getattr(getattr(work, "func", None), "__name__", "") == "complete":
                decoding.set()
                await free.wait()
            return work()

        async def swap(part: int, source: Source, sink: Sink) -> None:
            if part == 0:
                sink.write(0, payload)
            elif part == 1:
                request.append(source.read(0, source.nbytes))
                sink.write(0, bytes(sink.nbytes))
            else:
                sink.write(0, codec.encode_blocks(theirs, payload, decode_request(request[0], ELEMENTS)))

        differences = LatticeSwap(7, offload)
        exchanging = asyncio.create_task(differences.exchange(swap, 0, own, own, into))
        await decoding.wait()
        exchanging.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not exchanging.done()
        free.set()
        await asyncio.wait({exchanging})
        assert exchanging.cancelled()
        after = into.clone()
        assert torch.allclose(after, theirs, atol=0.1)
        await asyncio.sleep(0)
        assert torch.equal(into, after)

    run_virtual(main())
