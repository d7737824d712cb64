"""Peers of one network find each other by multicast DNS, over real sockets on the loopback interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from peer.discovery.lan import LanPeers, run_tag
from peer.identity import Identity
from peer.protocol.messages import PeerId, RunId

RUN, OTHER = RunId(b"R" * 32), RunId(b"S" * 32)
HERE = "127.0.0.1"


def anybody() -> PeerId:
    return PeerId(Identity.generate().peer_id)


@asynccontextmanager
async def present(*peers: LanPeers) -> AsyncIterator[None]:
    try:
        for peer in peers:
            peer.start()
        yield
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.05)


def test_peers_of_one_run_find_each_other() -> None:
    async def scene() -> None:
        a, b, c = anybody(), anybody(), anybody()
        first, second = LanPeers(RUN, a, [HERE], 1111), LanPeers(RUN, b, [HERE], 2222)
        foreign = LanPeers(OTHER, c, [HERE], 3333)
        async with present(first, foreign):
            async with present(second):
                await until(lambda: bool(first.found.get(b) and second.found.get(a)))
                assert first.found.get(b) == (f"{HERE}:2222",)
                assert second.found.get(a) == (f"{HERE}:1111",)
            assert not first.found.get(c), "another run"
            assert not first.found.get(a), "oneself"

    asyncio.run(scene())


def test_without_a_private_address_nothing_is_announced() -> None:
    async def scene() -> None:
        alone = LanPeers(RUN, anybody(), ["8.8.8.8"], 1111)
        async with present(alone):
            await until(lambda: alone.why_none == "this machine has no private address")

    asyncio.run(scene())


def test_a_network_without_multicast_is_told() -> None:
    async def scene() -> None:
        alone = LanPeers(RUN, anybody(), ["10.255.254.253"], 1111)  # no interface of this machine has this address
        async with present(alone):
            await until(lambda: bool(alone.why_none))

    asyncio.run(scene())


def test_a_tag_tells_nobody_the_run() -> None:
    assert run_tag(RUN) != run_tag(OTHER)
    assert run_tag(RUN) not in RUN.hex().encode()
