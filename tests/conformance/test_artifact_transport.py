"""Artifacts over both transports: which are held, pieces of the right length, and fetching from several peers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from peer.errors import ArtifactMissing, BadPayload, PartnerLost, PartnerRefused
from peer.lab.sim.links import Link
from peer.lab.sim.network import Network
from peer.protocol.messages import MAX_ARTIFACTS, PIECE_BYTES, PeerId, PeerRecord
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.fetcher import ArtifactFetcher
from peer.state.artifacts.server import ArtifactServer
from tests.conformance.test_transport import TIMEOUT, End, grpc_end, memory_end, scenario, two
from tests.support.artifacts import content, ref_of

SMALL = content(1, 100_000)
LARGE = content(2, PIECE_BYTES + 2**20 + 3)


@pytest.fixture(params=[grpc_end, memory_end], ids=["grpc", "memory"])
def make(request: pytest.FixtureRequest) -> Callable[[Network], Awaitable[End]]:
    return request.param


def gives(end: End, folder: Path, *files: bytes) -> ArtifactServer:
    """Make a peer offer these files, as an operator's node does."""
    cache, sources = ArtifactCache(folder / end.record.peer_id, 10**9), {}
    for number, data in enumerate(files):
        path = folder / f"{end.record.peer_id}-{number}"
        path.write_bytes(data)
        sources[ref_of(data).digest] = path
    end.owner.shelf = ArtifactServer(cache, sources)
    return end.owner.shelf


def digest(data: bytes) -> bytes:
    return blake3(data).digest()


def run(make: Any, test: Callable[[End, End], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(180), two(make) as (low, high):
            await test(low, high)

    asyncio.run(main())


@scenario
async def test_a_peer_without_artifacts_holds_none(low: End, high: End) -> None:
    assert await low.transport.query_artifacts(high.record, [digest(SMALL)] * 3, TIMEOUT) == [False] * 3
    assert await low.transport.query_artifacts(high.record, [], TIMEOUT) == []
    with pytest.raises(PartnerRefused) as gone:
        await low.transport.fetch_artifact(high.record, digest(SMALL), 0, len(SMALL), TIMEOUT)
    assert gone.value.code == "gone"


def test_which_are_held_is_answered_in_the_order_of_the_question(make: Any, tmp_path: Path) -> None:
    async def test(low: End, high: End) -> None:
        gives(high, tmp_path, SMALL, LARGE)
        none = [bytes([number]) * 32 for number in range(MAX_ARTIFACTS - 2)]
        asked = [digest(LARGE), *none, digest(SMALL)]
        held = await low.transport.query_artifacts(high.record, asked, TIMEOUT)
        assert held == [True, *[False] * len(none), True]

    run(make, test)


def test_a_piece_has_exactly_its_length(make: Any, tmp_path: Path) -> None:
    async def test(low: End, high: End) -> None:
        gives(high, tmp_path, LARGE)
        fetch, rest = low.transport.fetch_artifact, len(LARGE) - PIECE_BYTES
        await low.transport.query_artifacts(high.record, [digest(LARGE)], TIMEOUT)
        assert await fetch(high.record, digest(LARGE), 1, rest, TIMEOUT) == LARGE[PIECE_BYTES:]
        for claimed in (rest - 1, rest + 1):
            with pytest.raises(BadPayload) as wrong:
                await fetch(high.record, digest(LARGE), 1, claimed, TIMEOUT)
            assert wrong.value.code == "length"
        for piece in (2, 2**31):
            with pytest.raises(PartnerRefused) as gone:
                await fetch(high.record, digest(LARGE), piece, 1, TIMEOUT)
            assert gone.value.code == "gone"

    run(make, test)


def test_an_artifact_comes_from_two_peers_and_is_then_given_on(make: Any, tmp_path: Path) -> None:
    async def main() -> None:
        network = Network(link=Link("near", 100e6, 100e6, 0.0005))
        ends = [await make(network) for _ in range(4)]
        joiner, late = ends[2:]
        for donor in ends[:2]:
            gives(donor, tmp_path, LARGE)
        cache = ArtifactCache(tmp_path / "joiner", 10**9)
        fetcher = ArtifactFetcher(joiner.transport, directory(ends[:2]), cache, offload=asyncio.to_thread)
        try:
            async with asyncio.timeout(180):
                path = await fetcher.fetch(ref_of(LARGE), 30.0)
                assert await asyncio.to_thread(path.read_bytes) == LARGE
                joiner.owner.shelf = ArtifactServer(cache, {})
                for end in ends[:2]:
                    await end.close()
                other = ArtifactCache(tmp_path / "late", 10**9)
                fetcher = ArtifactFetcher(late.transport, directory([joiner]), other, offload=asyncio.to_thread)
                path = await fetcher.fetch(ref_of(LARGE), 30.0)
                assert await asyncio.to_thread(path.read_bytes) == LARGE
                with pytest.raises(ArtifactMissing, match="does not have it"):
                    await fetcher.fetch(ref_of(SMALL), 1.0, what="a shard")
        finally:
            for end in ends:
                with contextlib.suppress(PartnerLost):
                    await end.close()

    asyncio.run(main())


def directory(ends: Sequence[End]) -> Callable[[], Awaitable[dict[PeerId, PeerRecord]]]:
    async def peers() -> dict[PeerId, PeerRecord]:
        return {end.record.peer_id: replace(end.record) for end in ends}

    return peers
