"""Discard over real gRPC: a peer measures its upload to another peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import DISCARD_BYTES, DISCARD_CHUNK, PeerId, PeerRecord, RunId, Status
from peer.transport.calls import discard
from peer.transport.calls.discard import LineRate, _count
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy
from peer.v1 import exchange_pb2 as pb

RUN = RunId(b"D" * 32)
TIMEOUT_S = 20.0


@contextlib.asynccontextmanager
async def caller_and_peer(
    own: TransportPolicy | None = None, theirs: TransportPolicy | None = None
) -> AsyncIterator[tuple[GrpcTransport, PeerRecord]]:
    """Open two transports. Yield the caller's transport and the other's record."""
    now = RunClock().now
    async with contextlib.AsyncExitStack() as stack:
        ends, ports = list[tuple[GrpcTransport, Identity]](), list[int]()
        for policy in (own, theirs):
            identity = Identity.generate()
            end = GrpcTransport(identity, RUN, RequestHandler(), now, policy or TransportPolicy())
            ports.append(await end.start("127.0.0.1", 0))
            stack.push_async_callback(end.close)
            ends.append((end, identity))
        record = PeerRecord(
            peer_id=PeerId(ends[1][1].peer_id),
            run_id=RUN,
            endpoints=(f"127.0.0.1:{ports[1]}",),
            reachable=True,
            wire_min=2,
            wire_max=2,
            round=0,
            tokens_per_s=0.0,
            status=Status.TRAINING,
            issued_at=now(),
            expires_at=now() + 60,
        )
        yield ends[0][0], record


def measured(
    nbytes: int, own: TransportPolicy | None = None, theirs: TransportPolicy | None = None, times: int = 1
) -> LineRate:
    """Measure the upload `times` times. Return the last result."""

    async def main() -> LineRate:
        async with caller_and_peer(own, theirs) as (caller, peer):
            for _ in range(times - 1):
                await caller.upload_test.measure(peer, TIMEOUT_S, nbytes)
            return await caller.upload_test.measure(peer, TIMEOUT_S, nbytes)

    return asyncio.run(main())


def test_what_arrives_is_counted() -> None:
    found = measured(10 * DISCARD_CHUNK)
    assert found.nbytes == 10 * DISCARD_CHUNK
    assert 0 < found.seconds < TIMEOUT_S


def test_the_callers_own_upload_cap_holds() -> None:
    assert measured(10 * DISCARD_CHUNK, own=TransportPolicy(max_upload=4e5)).bytes_per_s < 6e5


def test_under_a_very_low_cap_the_measurement_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discard, "SENDING_S", 0.1)
    found = measured(10 * DISCARD_CHUNK, own=TransportPolicy(max_upload=4000.0))
    assert found.nbytes < DISCARD_CHUNK
    assert found.bytes_per_s < 40_000


def test_the_download_cap_of_the_peer_holds() -> None:
    """A measurement by others must not exceed the volunteer's own cap."""
    assert measured(10 * DISCARD_CHUNK, theirs=TransportPolicy(max_download=4e5)).bytes_per_s < 6e5


def test_a_block_that_measures_again_and_again_is_refused() -> None:
    allowed = int(discard.OF_BLOCK.burst / DISCARD_BYTES)
    assert measured(DISCARD_CHUNK, times=allowed).nbytes
    with pytest.raises(PartnerRefused) as refused:
        measured(DISCARD_CHUNK, times=allowed + 1)
    assert refused.value.code == "busy"
    assert refused.value.eta_s > 0


def test_more_than_the_bound_is_not_sent() -> None:
    assert measured(100 * DISCARD_BYTES).nbytes == DISCARD_BYTES


@pytest.mark.parametrize("raw", [b"\xff\xff", pb.DiscardReply(nbytes=0).SerializeToString()])
def test_an_answer_that_makes_no_sense_is_no_rate(raw: bytes) -> None:
    with pytest.raises(BadPayload):
        _count(raw, 100)


def test_more_than_was_sent_did_not_arrive() -> None:
    with pytest.raises(BadPayload, match="101 bytes are said"):
        _count(pb.DiscardReply(nbytes=101).SerializeToString(), 100)


def test_a_call_without_an_answer_is_lost() -> None:
    with pytest.raises(PartnerLost):
        _count(None, 100)
