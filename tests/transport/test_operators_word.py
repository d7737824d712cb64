"""What the transport does on the operator's word: who is banned hears why, and a wire range shuts others out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import PartnerRefused
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import Offer, PeerId, PeerRecord, RoundKey, RunId, Status
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport

RUN = RunId(b"W" * 32)
TIMEOUT = 10.0


class Other(RequestHandler):
    def on_vouch(self, about: PeerId) -> tuple[PeerRecord | None, float | None]:
        return None, None

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        return [(b"why", b"signed")]


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[GrpcTransport, PeerId, GrpcTransport, PeerRecord]]:
    """Us, and another peer that we can dial."""
    now = RunClock().now
    me, them = Identity.generate(), Identity.generate()
    ours, theirs = GrpcTransport(me, RUN, RequestHandler(), now), GrpcTransport(them, RUN, Other(), now)
    try:
        port = await theirs.start("127.0.0.1", 0)
        record = PeerRecord(
            PeerId(them.peer_id), RUN, (f"127.0.0.1:{port}",), True, 1, 1, 0, 0.0, Status.TRAINING, now(), now() + 60
        )
        async with asyncio.timeout(30):
            yield ours, PeerId(me.peer_id), theirs, record
    finally:
        await ours.close()
        await theirs.close()


def test_who_is_banned_is_refused_with_the_reason_and_still_gets_the_amendments() -> None:
    async def main() -> None:
        async with two() as (ours, me, theirs, record):
            theirs.begin_run(RunTerms(why_banned=lambda peer: "sends noise" if peer == me else ""))
            for call in (
                ours.fetch_manifest(record, TIMEOUT),
                ours.describe_state(record, TIMEOUT),
                ours.offer(record, Offer(RoundKey(0, 0)), TIMEOUT),
            ):
                with pytest.raises(PartnerRefused, match="sends noise") as caught:
                    await call
                assert caught.value.code == "banned"
            assert await ours.fetch_amendments(record, 0, bytes(RUN), TIMEOUT) == [(b"why", b"signed")]
            theirs.begin_run(RunTerms())
            with pytest.raises(PartnerRefused) as unbanned:
                await ours.fetch_manifest(record, TIMEOUT)
            assert unbanned.value.code == "no_manifest"

    asyncio.run(main())


def test_who_does_not_speak_the_wire_range_is_refused_at_hello() -> None:
    async def main() -> None:
        async with two() as (ours, _, theirs, record):
            theirs.narrow_wire(1, 3)
            await ours.hello(record, TIMEOUT)
            theirs._facts.wire_min, theirs._facts.wire_max = 2, 3  # as a newer program would
            with pytest.raises(PartnerRefused, match="wire versions 2 to 3") as caught:
                await ours.hello(record, TIMEOUT)
            assert caught.value.code == "wire_version"

    asyncio.run(main())
