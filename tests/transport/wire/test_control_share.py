"""Control traffic on a line that bulk data fills: the share of the cap left for it, and that no pacer delays it."""

from __future__ import annotations

import asyncio

import pytest

from peer.identity import Identity
from peer.lab.sim.virtual_clock import run_virtual
from peer.protocol.messages import RunId
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy
from peer.transport.wire.pacing import BULK_SHARE, Pacer, chunk_size, for_bulk

LINE = 125_000.0
"""Bytes per second: 1 Mbit/s."""
PING = 400
"""Bytes of a small call on the line, generously."""
MINUTES = 10


def worst_ping_s(bulk_rate: float, line: float = LINE, every_s: float = 0.25) -> float:
    """Simulate a first-in-first-out line that a paced sender saturates, with small calls in between. Return the longest
    delay of a call in seconds."""

    async def main() -> float:
        loop, worst = asyncio.get_running_loop(), 0.0
        pacer, size, busy_until, end = (
            Pacer(bulk_rate, loop.time),
            chunk_size(bulk_rate),
            0.0,
            loop.time() + 60 * MINUTES,
        )

        def through(nbytes: int) -> float:
            nonlocal busy_until
            busy_until = max(busy_until, loop.time()) + nbytes / line
            return busy_until - loop.time()

        async def bulk() -> None:
            while loop.time() < end:
                await pacer.wait_turn(size)
                through(size)

        async def pings() -> None:
            nonlocal worst
            while loop.time() < end:
                worst = max(worst, through(PING))
                await asyncio.sleep(every_s)

        await asyncio.gather(bulk(), pings())
        return worst

    return run_virtual(main())


def test_what_is_left_of_the_cap_keeps_small_calls_quick() -> None:
    share = for_bulk(LINE)
    assert share is not None
    assert worst_ping_s(share) < 0.2


def test_without_it_they_would_queue_up() -> None:
    assert worst_ping_s(LINE) > 2.0


def test_the_transport_leaves_it_both_ways_and_no_cap_is_none() -> None:
    async def main() -> None:
        capped = GrpcTransport(
            Identity.generate(),
            RunId(bytes(32)),
            None,  # type: ignore[arg-type]
            lambda: 0.0,
            TransportPolicy(max_upload=LINE, max_download=4 * LINE),
        )
        assert capped._caps.up.rate == pytest.approx(BULK_SHARE * LINE)
        assert capped._caps.down.rate == pytest.approx(4 * BULK_SHARE * LINE)

    asyncio.run(main())
    assert for_bulk(None) is None
