"""Control messages are counted by purpose, with equal results at both ends, and without payloads."""

from __future__ import annotations

import asyncio

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.observe.control_bytes import PURPOSES, ControlMeter, Purpose, sum_control_bytes
from peer.protocol.messages import Offer, PeerId, PeerRecord, RoundKey, RunId, Status
from peer.transport.grpc_transport import GrpcTransport
from peer.v1 import exchange_pb2 as pb

RUN = RunId(b"r" * 32)


def test_what_one_end_sends_the_other_receives() -> None:
    async def main() -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
        key, now = Identity.generate(), RunClock().now
        served = GrpcTransport(key, RUN, RequestHandler(), now)
        caller = GrpcTransport(Identity.generate(), RUN, RequestHandler(), now)
        try:
            where = (f"127.0.0.1:{await served.start('127.0.0.1', 0)}",)
            to = PeerRecord(PeerId(key.peer_id), RUN, where, True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 1e12)
            await caller.offer(to, Offer(RoundKey(3, 0)), 5.0)
            await caller.fetch_papers(to, [b"d" * 32], 5.0)
            return sum_control_bytes(caller.control), sum_control_bytes(served.control)
        finally:
            await caller.close()
            await served.close()

    ours, theirs = asyncio.run(main())
    assert ours.sent == theirs.received
    assert ours.received == theirs.sent
    assert {purpose for purpose, nbytes in ours.sent.items() if nbytes} == {"hello", "offers", "papers"}
    assert ours.sent["papers"] == len(pb.PapersRequest(held=[b"d" * 32]).SerializeToString())


def test_meters_are_summed_and_every_purpose_is_named() -> None:
    one, other = ControlMeter(), ControlMeter()
    one.count(Purpose.DIRECTORY, sent=3)
    other.count(Purpose.DIRECTORY, sent=4, received=5)
    other.encoder(Purpose.OTHER, lambda message: b"12")(None)
    told = sum_control_bytes(one, other)
    assert (told.sent[Purpose.DIRECTORY], told.received[Purpose.DIRECTORY], told.sent[Purpose.OTHER]) == (7, 5, 2)
    assert tuple(told.sent) == tuple(told.received) == PURPOSES
