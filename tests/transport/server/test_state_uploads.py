"""Limits on the share of a volunteer's line that donating uses."""

from __future__ import annotations

import asyncio

import pytest

from peer.lab.sim.virtual_clock import run_virtual
from peer.protocol.endpoints import HERE
from peer.protocol.messages import PeerId
from peer.protocol.wire.payload import BytesSource
from peer.transport.server.state_uploads import (
    ACTIVE_S,
    JOINERS_RESERVED,
    MAX_JOINERS,
    SHARE,
    YIELD_S,
    StateUploads,
)
from peer.transport.wire.pacing import Pacer
from peer.transport.wire.payload_stream import Caps, Meter, send_payload


def giving(cap: float | None) -> tuple[StateUploads, Caps]:
    now = asyncio.get_running_loop().time
    caps = Caps(Pacer(cap, now), Pacer(None, now), Meter())
    return StateUploads(caps, now), caps


async def nowhere(frame: bytes) -> None:
    return None


def joiner(number: int) -> PeerId:
    return PeerId(f"joiner-{number}")


def busy(gives: StateUploads, number: int, block: str = HERE, *, proven: bool = False) -> tuple[str, float] | None:
    return gives.busy_reason(joiner(number), block, proven=proven)


def test_joiners_together_get_their_share_of_the_cap() -> None:
    async def test() -> None:
        gives, caps = giving(1e6)
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(
                    send_payload(nowhere, BytesSource(bytes(500_000)), caps, 0.0, gives.throttle_for(proven=True))
                )
        took = asyncio.get_running_loop().time() - began
        assert took == pytest.approx(1.5e6 / (SHARE * 1e6), rel=0.05)

    run_virtual(test())


def test_an_exchange_has_the_line_to_itself_and_the_piece_goes_on_after_it() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        gives, caps = giving(1e6)
        sent: list[float] = []

        async def piece(frame: bytes) -> None:
            sent.append(loop.time())

        began = loop.time()
        async with asyncio.TaskGroup() as group:
            group.create_task(send_payload(nowhere, BytesSource(bytes(10_000_000)), caps, 0.0))
            group.create_task(
                send_payload(piece, BytesSource(bytes(2_000_000)), caps, 0.0, gives.throttle_for(proven=True))
            )
        during = [at for at in sent if at < began + 10]
        assert len(during) <= 10 / YIELD_S + 1, "a chunk now and then, so that the joiner knows it is not forgotten"
        gaps = [later - earlier for earlier, later in zip([began, *sent], sent, strict=False)]
        assert max(gaps) < 5
        assert caps.meter.exchanging == 0

    run_virtual(test())


def test_so_many_joiners_and_no_more_and_the_next_hears_when() -> None:
    async def test() -> None:
        gives, _ = giving(None)
        gives.set_state_nbytes(1000)
        for number in range(MAX_JOINERS - JOINERS_RESERVED):
            assert busy(gives, number) is None
            with gives.sending_to(joiner(number), 100, HERE, proven=False):
                await asyncio.sleep(0.5)
        why = busy(gives, 9)
        assert why is not None
        assert str(MAX_JOINERS - JOINERS_RESERVED) in why[0]
        assert 3.0 < why[1] < 20.0, "900 bytes more at what the first of them got so far"
        assert busy(gives, 0) is None
        with gives.sending_to(joiner(0), 100, HERE, proven=False):
            await asyncio.sleep(ACTIVE_S + 1)
            assert busy(gives, 0) is None
        assert busy(gives, 9) is None, "the others have stopped fetching"

    run_virtual(test())


def test_a_piece_that_breaks_off_frees_its_place() -> None:
    async def test() -> None:
        gives, _ = giving(None)
        for number in range(MAX_JOINERS - JOINERS_RESERVED):
            with pytest.raises(ConnectionError), gives.sending_to(joiner(number), 100, HERE, proven=False):
                raise ConnectionError
        assert busy(gives, 9) is not None
        await asyncio.sleep(ACTIVE_S + 0.1)
        assert busy(gives, 9) is None

    run_virtual(test())


def test_joiners_of_one_block_leave_a_place_to_another_and_one_to_proven_peers() -> None:
    async def test() -> None:
        gives, _ = giving(None)
        for number in range(MAX_JOINERS - JOINERS_RESERVED):
            with gives.sending_to(joiner(number), 100, "crowd", proven=False):
                pass
        assert busy(gives, 10, "crowd") is not None
        assert busy(gives, 11, "crowd", proven=True) is None
        assert busy(gives, 12, "other") is None
        with gives.sending_to(joiner(12), 100, "other", proven=False):
            pass
        assert busy(gives, 12, "other") is None
        assert busy(gives, MAX_JOINERS - JOINERS_RESERVED - 1, "crowd") is not None, "the youngest of the crowd is out"
        assert busy(gives, 0, "crowd") is None

    run_virtual(test())
