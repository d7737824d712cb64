"""What donating may take of a volunteer's line."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from peer.lab.sim.virtual_clock import run_virtual
from peer.protocol.messages import PeerId
from peer.protocol.wire.payload import BytesSource
from peer.transport.server.state_uploads import (
    ACTIVE_S,
    ARTIFACTS_AT_ONCE,
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


def test_joiners_together_get_their_share_of_the_cap() -> None:
    async def test() -> None:
        gives, caps = giving(1e6)
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(send_payload(nowhere, BytesSource(bytes(500_000)), caps, 0.0, gives))
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
            group.create_task(send_payload(piece, BytesSource(bytes(2_000_000)), caps, 0.0, gives))
        during = [at for at in sent if at < began + 10]
        assert len(during) <= 10 / YIELD_S + 1, "a chunk now and then, so that the joiner knows it is not forgotten"
        gaps = [later - earlier for earlier, later in zip([began, *sent], sent, strict=False)]
        assert max(gaps) < 5
        assert caps.meter.exchanging == 0

    run_virtual(test())


def test_so_many_joiners_and_no_more_and_the_next_hears_when() -> None:
    async def test() -> None:
        gives, _ = giving(None)
        gives.state_is(1000)
        for number in range(MAX_JOINERS):
            assert gives.why_busy(joiner(number)) is None
            with gives.to(joiner(number), 100):
                await asyncio.sleep(0.5)
        busy = gives.why_busy(joiner(9))
        assert busy is not None
        assert str(MAX_JOINERS) in busy[0]
        assert 3.0 < busy[1] < 20.0, "900 bytes more at what the first of them got so far"
        assert gives.why_busy(joiner(0)) is None
        with gives.to(joiner(0), 100):
            await asyncio.sleep(ACTIVE_S + 1)
            assert gives.why_busy(joiner(0)) is None
        assert gives.why_busy(joiner(9)) is None, "the others have stopped fetching"

    run_virtual(test())


def test_a_piece_that_breaks_off_frees_its_place() -> None:
    async def test() -> None:
        gives, _ = giving(None)
        for number in range(MAX_JOINERS):
            with pytest.raises(ConnectionError), gives.to(joiner(number), 100):
                raise ConnectionError
        assert gives.why_busy(joiner(9)) is not None
        await asyncio.sleep(ACTIVE_S + 0.1)
        assert gives.why_busy(joiner(9)) is None

    run_virtual(test())


def test_artifacts_and_joiners_do_not_take_each_others_places() -> None:
    async def test() -> None:
        gives, _ = giving(None)
        with contextlib.ExitStack() as sending:
            for _ in range(ARTIFACTS_AT_ONCE):
                assert gives.why_no_artifact() is None
                sending.enter_context(gives.artifact())
            busy = gives.why_no_artifact()
            assert busy is not None
            assert 0 < busy[1] < 10
            for number in range(MAX_JOINERS):
                assert gives.why_busy(joiner(number)) is None
                sending.enter_context(gives.to(joiner(number), 100))
        assert gives.why_no_artifact() is None
        assert gives.why_busy(joiner(9)) is not None, "joiners keep their place for a while; artifacts need none"

    run_virtual(test())
