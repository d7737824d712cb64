"""Artifact uploads over real connections obey caps and quotas, and give way to training's exchanges."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import PartnerRefused
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import Answer, PeerId, PeerRecord, RoundKey, RunId, Status, Verdict
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.server import ArtifactServer
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy
from peer.transport.server.state_uploads import YIELD_S
from peer.transport.wire.pacing import BULK_SHARE
from tests.support.artifacts import content, ref_of
from tests.transport.test_budgeted_transport import USED, Used

RUN = RunId(b"B" * 32)
DATA = content(0, 2_000_000)
DIGEST = bytes.fromhex(ref_of(DATA).digest)
TIMEOUT = 25.0


class Swapping(RequestHandler):
    """A handler that accepts every swap and offers artifacts."""

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        return Answer(Verdict.LOCKED)


@contextlib.asynccontextmanager
async def three(folder: Path, policy: TransportPolicy) -> AsyncIterator[list[tuple[GrpcTransport, PeerRecord]]]:
    """Run a donor with this policy, its partner, and a peer that lacks the artifact."""
    (folder / "file").write_bytes(DATA)
    shelf = ArtifactServer(ArtifactCache(folder / "cache", 10**9), {DIGEST.hex(): folder / "file"})
    assert shelf.on_artifacts([DIGEST]) == [True]
    now, ends = RunClock().now, list[tuple[GrpcTransport, PeerRecord]]()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(3):
            identity, handler = Identity.generate(), Swapping(artifacts=shelf)
            end = GrpcTransport(identity, RUN, handler, now, policy if number == 0 else TransportPolicy())
            end.begin_run(RunTerms(b"L" * 32, 10**7))
            stack.push_async_callback(end.close)
            where = (f"127.0.0.1:{await end.start('127.0.0.1', 0)}",)
            me = PeerId(identity.peer_id)
            ends.append((end, PeerRecord(me, RUN, where, True, 1, 1, 0, 0.0, Status.TRAINING, now(), now() + 60)))
        async with asyncio.timeout(90):
            yield ends


async def fetched(of: PeerRecord, by: GrpcTransport) -> float:
    """Fetch the artifact. Return the time at which it was complete."""
    assert await by.fetch_artifact(of, DIGEST, 0, len(DATA), TIMEOUT) == DATA
    return asyncio.get_running_loop().time()


def test_a_swap_under_way_comes_first(tmp_path: Path) -> None:
    cap, nbytes = 1e6, 3_000_000

    async def main() -> None:
        async with three(tmp_path, TransportPolicy(max_upload=cap)) as ((donor, record), (partner, theirs), (late, _)):

            async def half(end: GrpcTransport, other: PeerRecord, given: int, *, dial: bool) -> float:
                sink = BufferSink(given)
                source = BytesSource(bytes(nbytes + 1 - given))
                await end.swap(other, RoundKey(1, 0), source, sink, TIMEOUT, dial)
                return asyncio.get_running_loop().time()

            began = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as group:
                ours = group.create_task(half(donor, theirs, 1, dial=True))
                group.create_task(half(partner, record, nbytes, dial=False))
                artifact = group.create_task(fetched(record, late))
            swap_s = ours.result() - began
            alone_s = nbytes / (BULK_SHARE * cap)
            assert swap_s < 1.3 * alone_s, "an equal share for the artifact would double it"
            assert artifact.result() > ours.result()

    asyncio.run(main())


def test_during_an_exchange_hardly_a_byte_of_an_artifact_is_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path, TransportPolicy()) as ((donor, record), _, (late, _)):
            with donor._caps.meter.sending_exchange():
                fetching = asyncio.ensure_future(fetched(record, late))
                await asyncio.wait({fetching}, timeout=0.75 * YIELD_S)
                assert donor.bytes_sent == 0
                assert not fetching.done()
            await fetching
            assert donor.bytes_sent >= len(DATA)

    asyncio.run(main())


def test_artifacts_take_their_share_of_the_upload_cap(tmp_path: Path) -> None:
    cap = 2e6

    async def main() -> None:
        async with three(tmp_path, TransportPolicy(max_upload=cap)) as ((_, record), _, (late, _)):
            began = asyncio.get_running_loop().time()
            assert await fetched(record, late) - began > 0.9 * len(DATA) / (0.5 * cap)

    asyncio.run(main())


def test_no_artifact_is_given_that_the_quota_does_not_hold(tmp_path: Path) -> None:
    async def main(*, told: bool) -> None:
        async with three(tmp_path, TransportPolicy(quota=Used(told=told))) as ((donor, record), _, (late, _)):
            if told:
                with pytest.raises(PartnerRefused, match="ask another peer"):
                    await late.query_artifacts(record, [DIGEST], TIMEOUT)
            with pytest.raises(PartnerRefused, match=USED):
                await fetched(record, late)
            assert donor.bytes_sent == 0

    for told in (True, False):
        asyncio.run(main(told=told))
